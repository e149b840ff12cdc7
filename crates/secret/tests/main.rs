//! The crate from outside: every source with its real peer or one that keeps to the peer's protocol, and the store.

mod bad;
mod memory;
mod peer;
mod sources;
mod store;
mod world;
