//! Secrets: what a reference to one means, where its value comes from, and what may be done with the value.
//!
//! A [`Source`] is a reference (`env:`, `file:`, `age:`, `keyring:`, `op:`, `vault:`, `command:`). [`Secrets`] resolves it on
//! the host, when a request needs it, into a [`Value`] that cannot be printed and is wiped when it is dropped. [`Store`] is
//! the store of our own, one age file per secret. Beside these: [`placeholder`] (what a program inside is shown instead),
//! [`scrub`] (values taken out of answers), [`sigv4`] and [`github`] (credentials made out of secrets).
//!
//! This crate never decides who gets a secret (`policy` does), never speaks HTTP (`egress` does), and no value is ever in
//! one of its errors.

#![forbid(unsafe_code)]

mod client;
mod error;
mod file;
mod flight;
pub mod github;
mod literal;
mod placeholder;
pub mod scrub;
mod secrets;
pub mod sigv4;
mod source;
mod store;
mod value;
mod whole;

pub use error::{Error, Result, Why};
pub use placeholder::placeholder;
pub use secrets::{Env, Secrets};
pub use source::{Source, SourceError, check_name};
pub use store::{Entry, Store};
pub use value::{FingerprintKey, MAX_BYTES, NotText, Value};
