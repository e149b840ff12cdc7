//! No query makes the answerer fail, and what it says is an answer to that query.

#![no_main]

use egress::{Answerer, answer_dns};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|query: &[u8]| {
    if let Some(answer) = answer_dns(&Answerer::default(), query) {
        assert!((12..=512).contains(&answer.len()));
        assert_eq!(answer[..2], query[..2]);
        assert_eq!(answer[2] & 0x80, 0x80);
    }
});
