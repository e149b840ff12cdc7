//! The way out as a whole: real clients on loopback, real TLS origins, real sockets as doors.
//!
//! A door listens on 127.0.0.2 at the port that the origin has on 127.0.0.1, so that "any address at this port leads to the
//! door" holds without a namespace: what a client dials is the door, and where the gateway dials is the origin.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "clippy.toml allows them in test functions, not in what these call"
)]

mod approvals;
mod authority;
mod client;
mod dns;
mod doors;
mod effects;
mod git;
mod limits;
mod names;
mod origin;
mod policy_changes;
mod programs;
mod records;
mod secrets;
mod smuggling;
mod streams;
mod websockets;
mod world;
