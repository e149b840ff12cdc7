//! The relay: a process of its own that holds the connections to upstreams, so that a killed daemon loses no paid token.
//!
//! It asks an upstream once per request id, reads the answer to its end whether or not anybody listens, and keeps it in a
//! file per request (`spool.rs`). The daemon starts it when it needs it, reads the files itself and is told over the
//! socket how far they reach. Keys travel over that socket and stay in the relay's memory; they are in no file, argument
//! or log. A relay without a daemon and without a request ends by itself. At most one serves a socket: it holds a lock
//! beside it.

mod client;
mod fetch;
mod frames;
mod host;
pub(crate) mod spool;

pub(crate) use client::{Progress, State};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

pub use client::{RelayConfig, RelayError, RelayHandle};
pub(crate) use fetch::{HttpClient, client as http_client, with_causes};
pub use host::{HostError, Options, main};

pub(crate) use frames::{Begin, MAX_BODY, Stage};

/// Returns a way to `socket` that fits a socket address however long the path is; good while the file is open.
fn reachable(socket: &Path) -> io::Result<(File, PathBuf)> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let dir = match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = File::open(dir)?;
    let name = socket.file_name().ok_or_else(missing)?;
    let path = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name);
    Ok((dir, path))
}

/// What a relay prints when it listens.
const READY: &str = "ready";
