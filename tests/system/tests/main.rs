//! Whole-system tests on the real binary, as a user drives it. Run by `make system`; what needs root says so where it is not.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "in tests the panic is the message, also in their helpers"
)]

mod bad;
mod exec;
mod files;
mod journal;
mod many;
mod net;
mod odd;
mod replay;
mod support;
mod user;

use std::io::Write as _;

/// Whether we are root; where not, the missing test is told past the test runner's silence.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let line = format!("NOT RUN: {test}: it needs root\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    root
}
