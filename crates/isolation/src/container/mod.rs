//! The container level: namespaces, cgroups, seccomp and capabilities of the host's own kernel.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use protocol::Limits;

use crate::{Check, Error, Level, Running, StartSpec, Swept};

/// What the supervisor gets as PID 1 of a new sandbox. All descriptors are closed on exec.
#[derive(Debug)]
pub struct Entered {
    /// The sandbox's state directory on the host (`O_RDONLY|O_DIRECTORY`); the only way there.
    pub state: OwnedFd,
    /// Listens at `control.sock` in the state directory.
    pub control: UnixListener,
    /// Listens at [`protocol::paths::MODEL_PORT`] on the sandbox's loopback.
    pub model: TcpListener,
    /// Listens at [`protocol::paths::SHIM_SOCKET`].
    pub shim: UnixListener,
    /// Write one byte when serving, then drop it: [`Level::start`] returns then.
    pub ready: OwnedFd,
    /// What the sandbox may use.
    pub limits: Limits,
}

/// Makes this process the launcher of a sandbox; returns only in PID 1 of it.
///
/// Call it first thing in `main`, single-threaded, in the process that [`Level::start`] spawned: its standard input is
/// the way to the daemon, every other descriptor from 3 on is closed.
///
/// # Errors
/// What failed. The daemon has been told; the caller only exits.
pub fn enter() -> Result<Entered, Error> {
    Err(Error::Unsupported {
        what: "containers are not built yet".to_owned(),
        remedy: String::new(),
    })
}

/// The container level on one data directory.
#[derive(Debug)]
pub struct Container {
    _data: PathBuf,
}

impl Container {
    /// Opens the level. `data` is the data directory: it keeps the generated root of `image: host` and names the cgroups.
    ///
    /// # Errors
    /// A data directory that cannot be used.
    pub fn new(data: &Path) -> Result<Self, Error> {
        Ok(Self {
            _data: data.to_owned(),
        })
    }

    /// Prepares a launcher in the background, so that the next [`Level::start`] with the same program is faster.
    pub fn warm(&self, _binary: &Path, _exe_args: &[String]) {}
}

impl Level for Container {
    fn start(&self, _spec: &StartSpec) -> Result<Running, Error> {
        Err(Error::Unsupported {
            what: "containers are not built yet".to_owned(),
            remedy: String::new(),
        })
    }
    fn find(&self, _state: &Path) -> Option<Running> {
        None
    }
    fn alive(&self, _running: &Running) -> bool {
        false
    }
    fn kill(&self, _running: &Running) -> Result<(), Error> {
        Ok(())
    }
    fn sweep(&self, _live: &[Running]) -> Result<Swept, Error> {
        Ok(Swept::default())
    }
    fn doctor(&self) -> Vec<Check> {
        Vec::new()
    }
}
