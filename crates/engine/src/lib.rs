//! Sandboxes, operations, sessions and cuts: one task per sandbox that turns requests into journaled events, and events into
//! actions, in that order.
//!
//! The state of a sandbox is a fold over its journal ([`state`]); what to do after a loss is a pure decision ([`recover`]).
//! This crate speaks no HTTP and knows no file format; it never tells anybody of an event that is not yet durable.

#![forbid(unsafe_code)]

mod bound;
mod branch;
mod compose;
mod create;
mod engine;
mod error;
mod files;
mod flush;
mod forks;
mod handoff;
mod images;
mod link;
mod machine;
mod models;
pub mod recover;
pub mod remote;
mod retention;
mod sandbox;
mod session;
mod shared;
pub mod spool;
mod startup;
pub mod state;
mod trees;
mod way;
mod writes;

pub use bound::Bound;
pub use engine::{Engine, Recovery};
pub use files::{Changed, Files, Helper, Piece, Refusal};
pub use sandbox::{Attached, Force, Handle, Held, Place, Progress, StdinState};
pub use shared::{Config, Shared};
pub use trees::{Compared, Side};
