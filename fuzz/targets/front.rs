//! Whatever passes the strict front passes it however it is cut, and means one thing to another parser.

#![no_main]

use egress::{Front, Step, Violation};
use libfuzzer_sys::fuzz_target;

/// What comes out for `bytes`, pushed in pieces.
fn passed(bytes: &[u8], piece: usize) -> Result<Vec<u8>, Violation> {
    let mut front = Front::default();
    let mut out = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        front.push(piece);
        loop {
            match front.step()? {
                Step::Pass(bytes) => out.extend_from_slice(&bytes),
                Step::Wait => front.decide(false),
                Step::More => break,
            }
        }
    }
    Ok(out)
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else {
        return;
    };
    let whole = passed(bytes, bytes.len());
    assert_eq!(whole, passed(bytes, usize::from(*piece)));
    let Ok(whole) = whole else {
        return;
    };
    if whole.is_empty() {
        return;
    }
    let mut headers = [httparse::EMPTY_HEADER; 256];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(&whole) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => panic!("a head that is not whole passed"),
        // It may be stricter still.
        Err(_) => return,
    }
    let count = |name: &str| {
        request
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name))
            .count()
    };
    assert_eq!(count("host"), 1);
    assert!(count("content-length") + count("transfer-encoding") <= 1);
});
