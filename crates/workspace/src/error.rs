//! What can go wrong in a pool, with the facts that a person needs.

use std::io;
use std::path::PathBuf;

use protocol::{CutId, ErrorCode, WorkspaceId};
use rustix::io::Errno;

/// The result of a pool's verb.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong in a pool.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no head of that name.
    #[error("workspace {workspace} has no head in the pool")]
    NoHead {
        /// The name asked for.
        workspace: WorkspaceId,
    },
    /// There is no cut of that name.
    #[error("workspace {workspace} has no cut {cut}")]
    NoCut {
        /// The workspace asked for.
        workspace: WorkspaceId,
        /// The cut asked for.
        cut: CutId,
    },
    /// A cut of that name was taken before.
    #[error("workspace {workspace} already has a cut {cut}")]
    CutExists {
        /// The workspace.
        workspace: WorkspaceId,
        /// The name that is taken.
        cut: CutId,
    },
    /// The pool, or the disk below it, has no room. What was there before is intact.
    #[error("the workspace pool at {path} is full ({doing})", path = path.display())]
    Full {
        /// What could not be done.
        doing: &'static str,
        /// Where the pool is.
        path: PathBuf,
    },
    /// A head holds a btrfs subvolume, which no snapshot of the head would contain.
    #[error("workspace {workspace} holds a btrfs subvolume of its own ({path}), which a cut cannot contain", path = path.display())]
    Nested {
        /// The workspace.
        workspace: WorkspaceId,
        /// Where it is, below the head.
        path: PathBuf,
    },
    /// The daemon may not read a file of the workspace, so it cannot be copied.
    #[error("cannot read {path} (owner {uid}, mode {mode:o}) to copy it", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Its owner as the daemon sees it.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// The wanted kind of pool cannot be had here.
    #[error("no {kind} pool can be had at {path}: {why}", path = path.display())]
    Unavailable {
        /// The kind.
        kind: &'static str,
        /// The data directory.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// A pool that cannot hold a head to a size.
    #[error("the workspace pool at {path} cannot limit a workspace: {why}", path = path.display())]
    NoLimits {
        /// Where the pool is.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
        /// What can be done.
        hint: String,
    },
    /// The pool's file system stopped itself after an I/O error and is read-only until it is mounted anew.
    #[error("the file system of the workspace pool at {path} stopped after an i/o error", path = path.display())]
    Stopped {
        /// Where the pool is.
        path: PathBuf,
    },
    /// The system refused something.
    #[error("cannot {doing} {path}", path = path.display())]
    Io {
        /// The verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: says what was done on what. A full disk becomes [`Error::Full`].
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::Full { doing, path },
            Some(Errno::ROFS) => Self::Stopped { path },
            _ => Self::Io {
                doing,
                path,
                source,
            },
        }
    }

    /// The same for a bare error number.
    pub(crate) fn errno(doing: &'static str, path: impl Into<PathBuf>, errno: Errno) -> Self {
        Self::io(doing, path)(errno.into())
    }

    /// Tells what the caller must do.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoHead { .. } | Self::NoCut { .. } => ErrorCode::NotFound,
            Self::CutExists { .. } | Self::Nested { .. } => ErrorCode::Conflict,
            Self::Full { .. } | Self::Stopped { .. } | Self::Unavailable { .. } => {
                ErrorCode::Unavailable
            }
            Self::NoLimits { .. } => ErrorCode::Invalid,
            Self::Unreadable { .. } => ErrorCode::Denied,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }

    /// Says what to do about it, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Full { path, .. } => Some(format!(
                "remove sandboxes or old cuts, or free space on the disk of {}",
                path.display()
            )),
            Self::Stopped { .. } => Some(
                "look into the kernel log; stop every sandbox and restart the daemon to mount it anew".into(),
            ),
            Self::NoLimits { hint, .. } => Some(hint.clone()),
            Self::Unavailable { kind: "btrfs", .. } => Some(
                "`durable doctor` tells what is missing; the copy pool works everywhere".into(),
            ),
            Self::Unreadable { .. } => {
                Some("run the daemon as root, or map sandbox users to the daemon's own".into())
            }
            Self::Nested { path, .. } => Some(format!(
                "remove it: btrfs subvolume delete {}",
                path.display()
            )),
            _ => None,
        }
    }
}
