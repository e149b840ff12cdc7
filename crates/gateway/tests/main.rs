//! The gateway as a whole: real HTTP clients, a real relay process and a scripted model server as a process.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy.toml allows them in test functions, not in what these call"
)]

mod client;
mod failures;
mod kills;
mod process;
mod recording;
mod secrets;
mod tls;
mod world;
