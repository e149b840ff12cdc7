//! Whole-system tests: the real binary and real peers, killed for real, looked at from outside.
//!
//! A [`World`] is one data directory with its own daemon. Effects are counted in [`Effects`], a FIFO that the commands
//! inside write to and no part of the system under test reads. A [`Points`] stops a process of the system at a named place.
//! What is left behind is found by [`litter`] in `/proc`, `/sys` and the mount table, never by asking the system.

#![forbid(unsafe_code)]

pub mod api;
pub mod effects;
pub mod harnesses;
pub mod internet;
pub mod journal;
pub mod litter;
pub mod model;
pub mod origin;
pub mod points;
pub mod process;
pub mod rng;
pub mod run;
pub mod s3;
pub mod servers;
pub mod tools;
mod trouble;
pub mod world;

pub use effects::{Effects, Gate};
pub use points::{Hit, Points};
pub use rng::Rng;
pub use run::{Client, Done};
pub use trouble::{Res, Trouble, trouble};
pub use world::World;
