//! What the benchmark of the gateway and its client say to each other: one task as JSON on the client's command line, and what
//! was measured as JSON on its stdout.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the client holds up to say that all of its streams are open.
pub const OPEN: &str = "open";

/// How many bytes the smallest answer has, and each first piece of a stream that is held open.
pub const SMALL: usize = 1024;

/// How many pieces of an event stream come in a second.
pub const EVENTS_PER_SECOND: u32 = 500;

/// The header by which the origin says whether a request brought the secret.
pub const AUTHORIZED: &str = "x-authorized";

/// What a client is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Task {
    /// Whether it speaks HTTP/2.
    pub http2: bool,
    /// Authorities that it trusts, as PEM.
    pub roots: PathBuf,
    /// Where it connects to.
    pub address: SocketAddr,
    /// Whether a proxy is there, which is asked to `CONNECT`.
    pub proxy: bool,
    /// `host:port` of the origin.
    pub authority: String,
    /// What its paths begin with: by this the policy tells requests apart.
    pub prefix: String,
    /// The measurement.
    pub what: What,
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// So many small requests on one connection, after some that are not counted; milliseconds of each.
    Warm(usize),
    /// So many small requests, each on a connection of its own; milliseconds of each.
    Cold(usize),
    /// So many bytes in one answer; mebibytes a second.
    Download(usize),
    /// So many bytes in one request; mebibytes a second.
    Upload(usize),
    /// So many events of one stream; milliseconds from when each was sent to when it was read.
    Events(usize),
    /// So many streams on so many connections, which stay open until the origin ends them.
    Hold(usize, usize),
}

/// What a client found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Measured {
    /// In the unit of what was asked for.
    pub values: Vec<f64>,
    /// Whether all of its requests brought the secret, as the origin saw it.
    pub authorized: bool,
}
