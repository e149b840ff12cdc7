//! The daemon's public HTTP API: thin translations between requests and the engine.
//!
//! Served on a Unix socket in the data directory (whoever may open it may do all) and, where asked for, on TCP with a
//! bearer token. It holds no state and makes no promise of its own.

#![forbid(unsafe_code)]

mod api;
mod body;
mod error;
mod follow;
mod listen;
mod openapi;

use std::sync::Arc;

use axum::Router;
use engine::Engine;

pub use listen::{Listener, serve};
pub use openapi::document;

/// Makes the API of an engine.
pub fn router(engine: Arc<Engine>) -> Router {
    api::router().with_state(engine)
}
