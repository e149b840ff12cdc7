//! The model gateway: the only way from a sandbox to a model, and the reason why an answer is paid for once.
//!
//! A harness inside sees a base URL and a dummy key. Each of its requests is journaled before the upstream is asked, the
//! answer as it arrives; a client that comes back with the same request gets the recorded part first and the live rest.
//! Three parts: the [`relay`] (a process that owns the upstream connections and outlives the daemon), the recorder (from
//! the relay's files into the journal) and the [`Gateway`] that serves the sandbox.
//!
//! This crate never starts operations, never decides about sessions, and never writes a key or a request's body anywhere.

mod core;
mod dialect;
mod gateway;
mod ledger;
mod models;
mod recorder;
pub mod relay;
mod secret;
mod serve;
mod upstream;

pub use gateway::Gateway;
pub use ledger::{BoxFuture, Ledger, Sender};
pub use models::{Models, Request};
pub use relay::{RelayConfig, RelayError, RelayHandle};
pub use secret::Secret;
pub use upstream::{Upstream, UpstreamError};
