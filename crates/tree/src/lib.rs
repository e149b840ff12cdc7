//! Compares, prints and merges file trees: what `durable diff`, `durable compose` and `durable blame` say about two cuts.
//!
//! A [`View`] is an overlay's upper directory over its lower one, read without mounting. [`changes`] tells how two views
//! differ, [`patch`] prints one change as git does, [`merge`] decides what three views make together, and
//! [`write_actions`] turns that into a tar stream.
//!
//! This crate never writes into a tree, never follows a symbolic link of one, and knows no journal, engine or pool. All of
//! it blocks. Memory grows with the number of changed paths and the size of one text file, never with what a tree holds.

mod changes;
mod compare;
mod entry;
mod error;
mod layer;
mod lines;
mod patch;
mod quote;
mod rename;
mod view;
mod walk;

pub use changes::{Change, Options, Renames, Status, Trust, changes};
pub use compare::What;
pub use entry::{Entry, Kind, Layer, Time, Xattrs};
pub use error::{Error, Result};
pub use patch::{Extra, PatchOptions, patch};
pub use view::{Named, View};

/// The largest file that is looked at as text; a larger one is binary to [`patch`] and [`merge`](fn@changes).
pub const TEXT_BYTES: u64 = 8 << 20;
