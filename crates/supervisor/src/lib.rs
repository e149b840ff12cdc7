//! PID 1 of a sandbox: starts operations, spools their output, and is a durable witness of both that outlives the daemon.
//!
//! The contract with the daemon is `protocol::control` (frames), `protocol::table` (the durable table) and
//! `protocol::paths` (names). Nothing is executed before its row is durable, and no settlement is told before it and the
//! output before it are. The supervisor never decides what an operation means, never speaks to the network and never
//! reads a path of the sandbox with its own privileges where a link could lead it out.
//!
//! The same binary serves inside the sandbox as the harness's shell ([`shell_main`]) and as a helper for files
//! ([`box_main`]).

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use protocol::Limits;

/// Everything the supervisor gets from whoever made the sandbox. It opens nothing of the host by itself.
#[derive(Debug)]
pub struct Handles {
    /// The sandbox's state directory on the host; the only way to it.
    pub state: OwnedFd,
    /// The daemon connects here.
    pub control: UnixListener,
    /// The model gateway's loopback port inside the sandbox.
    pub model: Option<TcpListener>,
    /// Sandboxed processes connect here ([`protocol::paths::SHIM_SOCKET`]).
    pub shim: UnixListener,
    /// Gets one byte when the supervisor serves, then is closed.
    pub ready: Option<OwnedFd>,
    /// What the sandbox may use.
    pub limits: Limits,
}

/// Serves until the daemon orders the end; returns the process's exit code.
///
/// To be called from the main thread of a process that has no other. What goes wrong before it serves is told on stderr.
#[must_use]
pub fn run(handles: Handles) -> i32 {
    drop(handles);
    1
}

/// The harness's shell, `durable-shell`; `args` is without the program's name. Returns the exit code.
#[must_use]
pub fn shell_main(args: Vec<OsString>) -> i32 {
    drop(args);
    125
}

/// The helper inside the sandbox, `durable __box`; `args` starts at the verb. Returns the exit code.
#[must_use]
pub fn box_main(args: Vec<OsString>) -> i32 {
    drop(args);
    2
}
