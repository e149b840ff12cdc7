//! The supervisor as a process, driven over its real control socket with real commands.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failing test panics, a skipped one says so"
)]

mod commands;
mod crash;
mod doors;
mod fence;
mod input;
mod load;
mod namespace;
mod relay;
mod shim;
mod world;
