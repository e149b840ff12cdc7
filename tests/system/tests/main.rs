//! Whole-system tests on the real binary, as a user drives it: one file per subject.

#![forbid(unsafe_code)]

use std::io::Write as _;

mod bad;
mod boundary;
mod branches;
mod clients;
mod edges;
mod egress;
mod exec;
mod file_api;
mod files;
mod flush;
mod full;
mod github;
mod images;
mod journal;
mod many;
mod net;
mod odd;
mod probe;
mod readme;
mod replay;
mod rollback;
mod room;
mod s3;
mod stores;
mod support;
mod trees;
mod user;

/// Whether we are root. A test that needs it says that it was left out.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let words = format!("{test}: left out, it needs root\n");
        // To the terminal, past the capture: nobody must take it for a pass.
        let _told = std::io::stderr().write_all(words.as_bytes());
    }
    root
}
