//! What the benchmarks and the power-cut test drive the real binary with: a daemon of their own on a data directory of their
//! own, and a blocking client of its public API.
//!
//! It uses nothing that another client could not use, and never looks into the daemon.

#![forbid(unsafe_code)]

pub mod api;
pub mod daemon;
mod failure;
pub mod gateway;

pub use api::Api;
pub use daemon::Daemon;
pub use failure::Failure;
