//! The container level from the inside and the outside, with real processes. Needs root.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in tests a failed step is a failed test"
)]

mod boundary;
mod door;
mod hostile;
mod life;
mod limits;
mod unprivileged;
mod workspace;
mod world;
