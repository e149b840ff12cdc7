//! Snapshots of file trees and byte streams in a blob store: content-addressed, deduplicated, compressed, optionally
//! encrypted, and incremental, so that cost follows what changed.
//!
//! A [`Store`] is a directory or a bucket. A [`Push`] reads a directory that nobody changes meanwhile (a cut) and byte
//! streams, and ends with a small snapshot object, written last. [`Store::pull_tree`] gives the same files back, bit for
//! bit; every chunk is checked against its name on the way, and damage is told by path, chunk and pack. The format, and
//! why a garbage collection beside a push is safe, is told in `docs/blob-format.md`.
//!
//! This crate knows no journal, engine, image or pool. It never decides what is kept, and it never writes to a
//! directory that it was asked to read. Its calls block; an async caller puts them on a blocking thread.

#![deny(unsafe_code)]

mod affected;
mod backend;
mod cache;
mod chunker;
mod config;
mod content;
mod directory;
mod entry;
mod envelope;
mod error;
mod fetch;
mod files;
mod gc;
mod id;
mod index;
mod key;
mod pack;
mod plan;
mod pull;
mod push;
mod refs;
mod scan;
mod sink;
mod snapshot;
mod store;
mod stream;
mod verify;
mod wire;

pub use error::{Damage, Error, Result};
pub use gc::{GcOptions, GcReport, Run};
pub use id::{ChunkId, PackId, SnapshotId};
pub use key::Key;
pub use pull::{PullOptions, PullReport};
pub use push::{Hint, Push, PushReport};
pub use refs::{Generation, Moving};
pub use snapshot::{Snapshot, Stream};
pub use store::{Options, Store, directory};
pub use verify::VerifyReport;
