//! Drivers for coding agents of other makers, unmodified: how each is started in a sandbox, how its shell commands come
//! to us under its own tool-call ids, and how its transcript is repaired and it goes on after it was killed.
//!
//! Everything but [`install`] is a pure function: a driver says what to run and which files to write ([`Plan`]); the
//! engine does it. This crate never talks to a sandbox, a model or a journal.

#![forbid(unsafe_code)]

mod driver;
mod error;

pub use driver::{
    CallResult, Dialect, Driver, Ended, Phase, Plan, PlanFile, Program, Repair, Start, ToolUse,
    TranscriptAt, Write,
};
pub use error::Error;
