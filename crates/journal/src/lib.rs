//! The append-only event log of every sandbox, behind one trait.
//!
//! [`Store`] is the contract, [`Sqlite`] the embedded engine and [`Oracle`] the same contract in memory. This crate never
//! reads a wall clock, never decides who should write and never interprets an event; it keeps events, in order, and shuts out whoever lost the right to write.

#![forbid(unsafe_code)]

pub mod conformance;
mod copy;
mod damage;
mod encoded;
mod error;
pub mod oracle;
mod queue;
pub mod sqlite;
mod store;

pub use damage::{Damage, Flaw, Report};
pub use encoded::Raw;
pub use error::{Error, Failure};
pub use oracle::Oracle;
pub use sqlite::{OnDamagedWal, OpenError, Sqlite};
pub use store::{Append, BoxFuture, Durability, Lease, MAX_APPEND_BYTES, New, Resolution, Store};
