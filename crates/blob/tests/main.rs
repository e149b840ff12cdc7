//! The blob store's promises: the same files back, little work for little change, damage named, nothing lost.
//!
//! Everything random comes from a seed, which a failure prints. `BLOB_SEEDS=200` runs more of them. The big cases are
//! ignored by default: `cargo test -p durable-blob --release -- --ignored big_ --nocapture` (some 45 GiB of disk).

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod big;
mod crash;
mod damage;
mod gc;
mod incremental;
mod keys;
mod refs;
mod round_trip;
mod streams;
mod tree;
mod world;
