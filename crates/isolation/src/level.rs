//! The seam between the engine and a way of isolating.

use std::path::{Path, PathBuf};

use protocol::{Image, Limits, SandboxId};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Everything that a sandbox is started with.
#[derive(Debug, Clone)]
pub struct StartSpec {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its host name.
    pub hostname: String,
    /// Its root.
    pub image: Image,
    /// The `durable` binary; visible inside at [`protocol::paths::BIN`] and [`protocol::paths::SHELL`].
    pub binary: PathBuf,
    /// The arguments with which `binary` calls [`crate::container::enter`], such as `__supervisor`.
    pub exe_args: Vec<String>,
    /// Installed harnesses; visible inside, read-only, at [`protocol::paths::HARNESS`].
    pub harness_dir: Option<PathBuf>,
    /// The overlay's writable directory. It and `work` are on one mount.
    pub upper: PathBuf,
    /// The overlay's work directory.
    pub work: PathBuf,
    /// The sandbox's state directory on the host, out of reach of sandboxed processes.
    pub state: PathBuf,
    /// What it may use.
    pub limits: Limits,
    /// TCP ports at which connections to any address end at its doors, beside those of [`protocol::paths::DOOR_PORTS`].
    /// None: no doors at all, and nothing but the loopback can be reached.
    pub doors: Option<Vec<u16>>,
    /// The certificate of the authority that it is to trust beside those of its image, PEM.
    pub ca: Option<String>,
}

impl StartSpec {
    /// Returns the network that it is to have.
    #[must_use]
    pub fn network(&self) -> Network {
        match self.doors {
            Some(_) => Network::Doors,
            None => Network::Loopback,
        }
    }
}

/// What a sandbox can reach beside itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nothing.
    Loopback,
    /// Its doors, whatever address it asks for.
    Doors,
}

/// PID 1 of a sandbox, identified so that a recycled pid is never taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// PID 1 as the host sees it.
    pub pid: i32,
    /// Its start time in clock ticks after boot, from `/proc/PID/stat`.
    pub start_time: u64,
    /// The boot of the machine in which the above mean something.
    pub machine_boot: String,
    /// Name of its cgroups; none where it runs without.
    pub group: Option<String>,
}

/// What a sweep found and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes of sandboxes that nobody knows any more.
    pub killed: usize,
    /// Cgroups, counted once for each hierarchy.
    pub groups: usize,
    /// Generated directories that no sandbox uses any more.
    pub directories: usize,
}

/// How a check of the machine came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// There.
    Ok,
    /// Missing; sandboxes run with less.
    Degraded,
    /// Missing; no sandbox can be started.
    Missing,
}

/// One thing that the machine can or cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at, such as `user namespaces`.
    pub name: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to get it; empty where nothing is missing.
    pub remedy: String,
}

/// A sandbox whose processes stand still. Dropped, it lets them go on.
pub struct Frozen(Option<Box<dyn FnOnce() + Send>>);

impl Frozen {
    /// Keeps what lets them go on.
    #[must_use]
    pub fn new(thaw: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(thaw)))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(thaw) = self.0.take() {
            thaw();
        }
    }
}

/// A way of isolating. All functions block; call them where blocking is allowed.
pub trait Level: Send + Sync {
    /// Starts a sandbox and returns when its supervisor serves.
    ///
    /// The sandbox does not depend on the caller: it goes on when the caller is killed, and [`Level::find`] finds it. A
    /// caller killed in the middle leaves either nothing that runs, or a sandbox that is found.
    ///
    /// # Errors
    /// What failed. Everything made so far is undone.
    fn start(&self, spec: &StartSpec) -> Result<Running, Error>;

    /// Finds the live sandbox of a state directory.
    fn find(&self, state: &Path) -> Option<Running>;

    /// Whether PID 1 of the sandbox still lives.
    fn alive(&self, running: &Running) -> bool;

    /// Stops every process of the sandbox, the supervisor included, until what is returned is dropped, or this process is no
    /// more. None where they cannot be stopped here, or not soon: then all of them run.
    fn freeze(&self, running: &Running) -> Option<Frozen>;

    /// Lets a sandbox go on that a process before this one stopped, whatever became of it.
    fn thaw(&self, running: &Running);

    /// Kills the sandbox. On return every process of it is gone and its cgroups are removed. May be called again.
    ///
    /// # Errors
    /// A process that does not go away.
    fn kill(&self, running: &Running) -> Result<(), Error>;

    /// Removes what a dead sandbox left (its cgroups, the record that finds it). Of one that left nothing: nothing.
    ///
    /// # Errors
    /// What could not be removed, or a sandbox that lives.
    fn clear(&self, state: &Path) -> Result<(), Error>;

    /// Ends and removes what belongs to none of the `live` sandboxes: processes, cgroups, generated directories.
    /// Call it once after a start of the daemon, before sandboxes are started.
    ///
    /// # Errors
    /// What could not be removed.
    fn sweep(&self, live: &[Running]) -> Result<Swept, Error>;

    /// Returns the directory that an image's workspaces are written over, for reading.
    ///
    /// # Errors
    /// An image that is not there.
    fn lower(&self, image: &Image) -> Result<PathBuf, Error>;

    /// Says what this machine can and cannot do.
    fn doctor(&self) -> Vec<Check>;
}
