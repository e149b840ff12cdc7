//! The supervisor as a process, driven over its real control socket with real commands.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod commands;
mod crash;
mod fence;
mod input;
mod load;
mod relay;
mod shim;
mod world;
