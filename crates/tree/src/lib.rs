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
mod glob;
mod layer;
mod lines;
mod merge;
mod one;
mod patch;
mod quote;
mod rename;
mod stream;
mod view;
mod walk;
mod weave;

pub use changes::{Change, Options, Renames, Status, Touched, Trust, changes};
pub use compare::What;
pub use entry::{Entry, Kind, Layer, Time, Xattrs};
pub use error::{Error, Result};
pub use merge::{
    Action, By, Conflict, ConflictKind, Content, Merge, MergeOptions, Sides, Strategy, merge,
};
pub use one::{Usage, entry_changed, usage};
pub use patch::{Extra, PatchOptions, patch};
pub use stream::{StreamOptions, write_actions};
pub use view::{Named, View};
pub use weave::Labels;

/// The largest file that is looked at as text; a larger one is binary to [`patch`] and [`merge`].
pub const TEXT_BYTES: u64 = 8 << 20;
