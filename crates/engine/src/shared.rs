//! What every sandbox's task shares: the journal, the pool, the isolation level and where things are.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use protocol::{ApiError, ErrorCode, SandboxId, SessionId, UnixMillis, room};

/// Begins the names of files with the secrets of sessions; sandboxes have theirs under a number.
const SESSION_SECRET: &str = "session-";

/// Where things are.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// The `durable` binary, which is also the supervisor.
    pub binary: PathBuf,
    /// Cuts kept per sandbox; older ones go back to the pool.
    pub keep_cuts: usize,
    /// Who we are, for people: host name and process id.
    pub node: String,
}

/// What every sandbox's task shares.
pub struct Shared {
    /// The event log.
    pub store: Arc<dyn journal::Store>,
    /// The writable state.
    pub pool: Arc<dyn workspace::Pool>,
    /// How sandboxes are isolated.
    pub level: Arc<dyn isolation::Level>,
    /// Unpacked images.
    pub images: image::Store,
    /// Held for reading while a sandbox is made on an image, for writing while one is removed.
    pub unpacking: tokio::sync::RwLock<()>,
    /// Blob stores that stay open between pushes.
    pub stores: Arc<crate::remote::Opened>,
    /// The host process that asks model endpoints.
    pub relay: gateway::RelayHandle,
    /// Who signs the certificates that sandboxes see.
    pub authority: Arc<egress::Authority>,
    /// Values of secrets, resolved when a request needs one.
    pub secrets: secret::Secrets,
    /// Where things are.
    pub config: Config,
}

impl Shared {
    /// Returns the host-side state directory of a sandbox.
    #[must_use]
    pub fn state_dir(&self, id: SandboxId) -> PathBuf {
        self.config.data.join("sandboxes").join(id.to_string())
    }

    /// Returns the file that holds a sandbox's model endpoint and key.
    #[must_use]
    pub fn secret_file(&self, id: SandboxId) -> PathBuf {
        self.config.data.join("secrets").join(format!("{id}.json"))
    }

    /// Refuses to begin something on a disk that is almost full: what is left is for what was begun.
    ///
    /// # Errors
    /// `unavailable`, with how much there is.
    pub fn room_to_begin(&self) -> Result<(), ApiError> {
        // A disk that cannot be looked at says so at the first write.
        let Ok(disk) = rustix::fs::statvfs(&self.config.data) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free >= room::to_begin(disk.f_blocks.saturating_mul(disk.f_frsize)) {
            return Ok(());
        }
        let data = self.config.data.display();
        let full =
            format!("the disk of {data} is full ({free} bytes are left), so nothing new is begun");
        Err(ApiError::new(ErrorCode::Unavailable, full).hint(format!(
            "free space on the disk of {data}; what runs goes on, and everything else as soon as there is room"
        )))
    }

    /// Returns the file that holds the model endpoint and key of a session which has not taken them yet.
    #[must_use]
    pub fn session_secret_file(&self, session: &SessionId) -> PathBuf {
        let name = format!("{SESSION_SECRET}{session}.json");
        self.config.data.join("secrets").join(name)
    }

    /// Returns the session that such a file is of, by its name.
    pub(crate) fn session_of_secret(name: &str) -> Option<SessionId> {
        let id = name.strip_prefix(SESSION_SECRET)?.strip_suffix(".json")?;
        id.parse().ok()
    }

    /// Returns where harnesses are installed.
    #[must_use]
    pub fn harness_dir(&self) -> PathBuf {
        self.config.data.join("harness")
    }
}

/// Returns the wall clock. For people only.
#[must_use]
pub(crate) fn now() -> UnixMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Writes a file that only its owner reads, in place of what is there: durable on return, and never half of it.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_dir(path)
}

/// Makes the name of a file durable.
pub(crate) fn sync_dir(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
