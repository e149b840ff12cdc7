//! PID 1 of a sandbox: starts operations, spools their output, and is a durable witness of both that outlives the daemon.
//!
//! The contract with the daemon is `protocol::control` (frames), `protocol::table` (the durable table) and
//! `protocol::paths` (names). Nothing is executed before its row is durable, and no settlement is told before it and the
//! output before it are. The supervisor never decides what an operation means, never speaks to the network and never
//! reads a path of the sandbox with its own privileges where a link could lead it out.
//!
//! The same binary serves inside the sandbox as the harness's shell ([`shell_main`]) and as a helper for files
//! ([`box_main`]).

#![deny(unsafe_code)]

mod boxed;
mod core;
mod daemon;
mod doors;
mod files;
mod harden;
mod input;
mod launch;
mod ledger;
mod ops;
mod outbox;
mod owner;
mod pty;
mod pump;
mod reaper;
mod relay;
mod request;
mod run;
mod serve;
mod shell;
mod shims;
mod shutdown;
mod spool;
mod sys;
mod threads;
mod tree;
mod trust;
mod users;
mod words;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

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
    /// Where what leaves the sandbox ends; none where nothing does.
    pub doors: Option<Doors>,
    /// Whether operations are to trust one authority more than their image does: [`protocol::paths::CA_BUNDLE`] is there then.
    pub has_ca: bool,
    /// Gets one byte when the supervisor serves, then is closed.
    pub ready: Option<OwnedFd>,
    /// What the sandbox may use.
    pub limits: Limits,
}

/// The sockets at which what leaves a sandbox ends. The supervisor keeps them for the daemon and accepts nothing.
#[derive(Debug)]
pub struct Doors {
    /// Each with what it is; none of them blocks.
    pub sockets: Vec<(protocol::control::Door, OwnedFd)>,
    /// Asks the kernel about sockets of the sandbox (netlink's `sock_diag`), where there is such a thing.
    pub diag: Option<OwnedFd>,
}

/// Serves until the daemon orders the end; returns the process's exit code: 0 after an orderly end.
///
/// To be called from the main thread of a process that has no other. The process then belongs to the supervisor: its
/// working directory, signal mask and capability sets are changed, and every child is taken. What goes wrong is told on
/// stderr. The caller exits with the code at once, which ends what is left in a PID namespace.
#[must_use]
pub fn run(handles: Handles) -> i32 {
    match serve::run(handles) {
        Ok(()) => 0,
        Err(error) => {
            complain("durable supervisor", &error);
            1
        }
    }
}

/// A tool call that a harness hands to its shell in a wrapping of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id.
    pub op: protocol::OpId,
    /// Program and arguments: the same whenever the same call comes.
    pub argv: Vec<String>,
    /// Added to the environment.
    pub env: std::collections::BTreeMap<String, String>,
}

/// The harness's shell, `durable-shell`; `args` is without the program's name. Returns the exit code.
///
/// A command marked by [`protocol::shim::mark`] becomes an operation of its own; anything else is executed by the
/// sandbox's shell in place of this process. `recognise` finds a tool call in what a harness wraps around it. `--cwd-file FILE` before all else asks for the operation's last working
/// directory to be written to `FILE`.
#[must_use]
pub fn shell_main(args: Vec<OsString>, recognise: &dyn Fn(&str) -> Option<ToolCall>) -> i32 {
    shell::main(args, recognise)
}

/// The helper inside the sandbox, `durable __box`; `args` starts at the verb. Returns the exit code.
///
/// `files` · `change JSON` · `tar-out PATH` · `tar-in DIR` · `apply DIR` · `read PATH` · `write PATH [--mode OCTAL]` · `remove PATH`
#[must_use]
pub fn box_main(args: Vec<OsString>) -> i32 {
    boxed::main(args)
}

/// The pax record that ends an archive of a sandbox which is not whole, with the reason.
pub const PACK_ERROR: &str = boxed::ERROR;
/// The pax record at the end of an archive of a sandbox that tells how many special files were left out.
pub const PACK_SKIPPED: &str = boxed::SKIPPED;

/// Packs a path into a tar archive as `name`, in the way of the helper; returns how many pipes, sockets and devices were
/// left out. No link is followed, and no pipe is waited for.
///
/// # Errors
/// What could not be read or written, in words.
pub fn pack(
    path: &std::path::Path,
    name: &std::path::Path,
    out: &mut impl Write,
) -> Result<u64, String> {
    boxed::pack(path, name, out).map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })
}

/// How long accepting waits when the machine is short of something.
pub(crate) const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Whether accepting may work later: the listener itself is all right.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::MFILE
                | Errno::NFILE
                | Errno::NOBUFS
                | Errno::NOMEM
                | Errno::CONNABORTED
                | Errno::INTR
        )
    )
}

/// Writes an error with its causes to stderr, as one line.
pub(crate) fn complain(who: &str, error: &dyn std::error::Error) {
    let mut line = format!("{who}: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        line.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    line.push('\n');
    // Without a stderr there is nobody to tell.
    let _told: io::Result<()> = io::stderr().write_all(line.as_bytes());
}
