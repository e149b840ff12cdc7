//! The workspace pool: where the writable file state of sandboxes lives, and its cuts.
//!
//! A workspace is a pair of directories, `upper` and `work`, that somebody else mounts an overlay over; a cut is a
//! read-only copy of `upper` as it was at one instant, taken under the live mount. Two engines keep the same contract
//! ([`Pool`]): btrfs snapshots where the machine allows them, plain copies everywhere else.
//!
//! This crate never mounts an overlay, knows no image and no journal, and decides nothing: when a cut is taken, kept or
//! gone back to is the engine's business.

#![deny(unsafe_code)]

mod btrfs;
mod copy;
mod doctor;
mod error;
mod gc;
mod mounts;
mod names;
mod open;
mod pool;
mod sys;
mod xattr;

pub use doctor::{Fact, doctor};
pub use error::{Error, Result};
pub use mounts::{Mounts, private_mounts};
pub use names::{empty, new_workspace};
pub use open::{Choice, Options, open, open_with};
pub use pool::{Cut, Keep, Layout, Pool, Swept, Usage};
