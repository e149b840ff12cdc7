//! Drivers for coding agents of other makers, unmodified: how each is started in a sandbox, how its shell commands come
//! to us under its own tool-call ids, and how its transcript is repaired and it goes on after it was killed.
//!
//! Everything but [`install`] is a pure function: a driver says what to run and which files to write ([`Plan`]); the
//! engine does it. This crate never talks to a sandbox, a model or a journal.

#![forbid(unsafe_code)]

mod args;
mod claude;
mod clock;
mod driver;
mod error;
mod files;
pub mod hook;
mod ids;
pub mod install;
mod jsonl;
mod pi;
pub mod shell;
mod text;
mod turn;
mod words;

pub use claude::Claude;
pub use driver::{
    CallResult, Dialect, Driver, Ended, Phase, Plan, PlanFile, Program, Repair, Start, ToolUse,
    TranscriptAt, Write,
};
pub use error::Error;
pub use pi::Pi;
pub use text::{OUTPUT_KEPT, shorten};

/// Returns the driver of the harness with this name.
///
/// # Errors
/// There is none.
pub fn driver(name: &str) -> Result<&'static dyn Driver, Error> {
    match name {
        "claude" => Ok(&Claude),
        "pi" => Ok(&Pi),
        _ => Err(Error::UnknownHarness {
            name: name.chars().take(64).collect(),
        }),
    }
}
