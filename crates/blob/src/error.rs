//! What can go wrong with a blob store, with the facts that a person needs.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::id::{ChunkId, PackId, SnapshotId};

/// The result of a store's verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A chunk that cannot be had as it was written, and what needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The snapshot that was read.
    pub snapshot: SnapshotId,
    /// The file, directory or stream that the chunk is a part of, below the tree's root; escaped for reading.
    pub path: String,
    /// The chunk.
    pub chunk: ChunkId,
    /// The pack that holds it, if any index names one.
    pub pack: Option<PackId>,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "snapshot {}: {} needs chunk {}",
            self.snapshot, self.path, self.chunk
        )?;
        match &self.pack {
            Some(pack) => write!(f, " of pack {pack}")?,
            None => write!(f, ", which no pack has")?,
        }
        write!(f, ": {}", self.why)
    }
}

/// What went wrong with a blob store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused something on this machine.
    #[error("cannot {doing} {path}", path = path.display())]
    Io {
        /// The verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The blob store refused something, or could not be reached.
    #[error("cannot {doing} {object} in the blob store")]
    Store {
        /// The verb.
        doing: &'static str,
        /// The object's name below the store's root.
        object: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An object of the store is not what was written.
    #[error("the blob store's {object} is damaged: {why}")]
    Damaged {
        /// The object's name below the store's root.
        object: String,
        /// What does not fit.
        why: String,
    },
    /// A chunk is missing or damaged.
    #[error("{0}")]
    Chunk(Box<Damage>),
    /// There is no such snapshot.
    #[error("the blob store has no snapshot {0}")]
    NoSnapshot(SnapshotId),
    /// The snapshot has no such part.
    #[error("snapshot {snapshot} has no {part}")]
    NoPart {
        /// The snapshot.
        snapshot: SnapshotId,
        /// What was asked for.
        part: String,
    },
    /// The store is encrypted and no key was given.
    #[error("the blob store is encrypted and no key was given")]
    KeyNeeded,
    /// The key that was given opens none of the store's key objects.
    #[error("the key given does not open this blob store")]
    WrongKey,
    /// A key was given for a store that is not encrypted.
    #[error("a key was given, but the blob store is not encrypted")]
    NotEncrypted,
    /// An argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A directory to pull into holds something.
    #[error("{path} is not empty", path = .0.display())]
    NotEmpty(PathBuf),
    /// A pointer was moved by somebody else.
    #[error("ref {name} was moved by somebody else")]
    Moved {
        /// The ref's name.
        name: String,
    },
    /// A garbage collection took chunks away that this push relied on. Pushing again uploads them.
    #[error("a garbage collection took away what this push relied on")]
    Swept,
    /// Another garbage collection is under way.
    #[error("a garbage collection is under way ({lock})")]
    Locked {
        /// The lock object.
        lock: String,
    },
    /// The store was written by a newer release.
    #[error("the blob store's {object} has format {found}, and this release reads up to {known}")]
    TooNew {
        /// The object.
        object: String,
        /// Its version.
        found: u32,
        /// The newest known here.
        known: u32,
    },
}

impl Error {
    /// For `map_err`: says what was done on what.
    pub(crate) fn io(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }

    /// The same for a bare error number.
    pub(crate) fn errno(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |errno| Self::Io {
            doing,
            path,
            source: errno.into(),
        }
    }

    /// An object that is not what was written.
    pub(crate) fn damaged(object: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Damaged {
            object: object.into(),
            why: why.into(),
        }
    }
}

/// Writes a path of arbitrary bytes so that a person can read it and a terminal survives it.
pub(crate) fn escaped(path: &[u8]) -> String {
    if path.is_empty() {
        return "the root".into();
    }
    match std::str::from_utf8(path) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => path.escape_ascii().to_string(),
    }
}
