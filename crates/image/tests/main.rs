//! The store from outside: hostile layers, the union of layers, archives, registries, and kills in the middle.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    reason = "tests say what went wrong by panicking, and what they lack by printing"
)]

mod archives;
mod formats;
mod hostile;
mod images;
mod kills;
mod layers;
mod measure;
mod registries;
mod server;
mod union;
mod wire;
mod world;
