//! Sandboxes and their levels: how an isolated computer is started, found again, ended and cleaned up after.
//!
//! A level gives the supervisor a place to be PID 1 in; from there on the supervisor rules. The sandbox outlives the
//! process that started it. This crate never runs an operation, never reads the journal and never decides what should live.

pub mod attempts;
pub mod container;
mod error;
mod level;
mod sys;

pub use error::Error;
pub use level::{Check, Frozen, Level, Network, Running, StartSpec, Swept, Verdict};
