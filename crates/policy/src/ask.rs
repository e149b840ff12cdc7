//! What is asked of a policy: whether a connection may be made, whether a request may leave.

use crate::git::GitAct;
use crate::host::Host;

/// A connection that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Connect<'a> {
    /// Where to.
    pub host: &'a Host,
    /// At which port.
    pub port: u16,
    /// What its first bytes are.
    pub protocol: Wire,
}

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// A request of HTTP, not encrypted.
    Http,
    /// A ClientHello.
    Tls,
    /// Anything else, or nothing.
    Unknown,
}

/// A request that is asked for, as it came and before anything is put into it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Whose it is.
    pub host: &'a Host,
    /// At which port.
    pub port: u16,
    /// Whether it came over TLS and would leave so.
    pub tls: bool,
    /// Its method.
    pub method: &'a str,
    /// Its path as it was sent, without the query.
    pub path: &'a str,
    /// What stands after `?`.
    pub query: Option<&'a str>,
    /// Whether it asks for a WebSocket, in either version of HTTP.
    pub websocket: bool,
    /// What it is to git: what [`crate::git_act`] says, for a push with the refs that [`crate::push_commands`] found. A push that is
    /// not given here is known all the same, but no rule that names refs allows it.
    pub git: Option<&'a GitAct>,
}
