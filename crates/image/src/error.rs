//! What can go wrong with an image, with the facts that a person needs.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::archive::ArchiveError;
use crate::digest::Digest;
use crate::layer::LayerError;
use crate::manifest::ManifestError;
use crate::registry::RegistryError;
use crate::source::BadSource;

/// The result of a store's verb.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request, or the image, is wrong; the same again will fail again.
    Invalid,
    /// There is no such image.
    NotFound,
    /// Not allowed: other credentials, or another user.
    Denied,
    /// Somebody uses it.
    InUse,
    /// Not now; the same request may work later.
    Unavailable,
    /// What came, or what is stored, is not what it should be.
    Corrupt,
    /// The disk has no room.
    Full,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source is none.
    #[error(transparent)]
    Source(#[from] BadSource),
    /// The registry did not give it.
    #[error("cannot pull {source_name}")]
    Registry {
        /// The image.
        source_name: String,
        /// Why.
        source: RegistryError,
    },
    /// The archive did not give it.
    #[error("cannot read the image in {path}", path = file.display())]
    Archive {
        /// The archive.
        file: PathBuf,
        /// Why.
        source: ArchiveError,
    },
    /// A document of the image is of no use.
    #[error("cannot use the image {source_name}")]
    Manifest {
        /// The image.
        source_name: String,
        /// Why.
        source: ManifestError,
    },
    /// A layer was not applied.
    #[error("cannot unpack layer {number} ({digest}) of {source_name}")]
    Layer {
        /// The image.
        source_name: String,
        /// Which layer, counted from one, the lowest first.
        number: usize,
        /// Its blob, or its content where an archive names no blob.
        digest: Digest,
        /// Why.
        source: LayerError,
    },
    /// The image is not in the store.
    #[error("there is no image {digest}")]
    NoImage {
        /// The digest asked for.
        digest: Digest,
    },
    /// The image cannot be removed.
    #[error("image {digest} is in use by {}", users.join(", "))]
    InUse {
        /// The image.
        digest: Digest,
        /// Who uses it.
        users: Vec<String>,
    },
    /// What is stored of an image cannot be understood.
    #[error("what is stored of an image in {path} is damaged: {why}", path = path.display())]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        why: String,
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
        let io = Self::io(doing, path);
        move |errno| io(errno.into())
    }

    /// Tells what the caller must do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Source(_) | Self::Manifest { .. } => Kind::Invalid,
            Self::Registry { source, .. } => source.kind(),
            Self::Archive { source, .. } => source.kind(),
            Self::Layer { source, .. } => layer_kind(source),
            Self::NoImage { .. } => Kind::NotFound,
            Self::InUse { .. } => Kind::InUse,
            Self::Damaged { .. } => Kind::Corrupt,
            Self::Io { source, .. } => io_kind(source),
        }
    }

    /// Says what to do about it, where there is something.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            _ if self.kind() == Kind::Full => Some(
                "free space on the disk, or remove images: `durable image ls`, `durable image rm`"
                    .into(),
            ),
            Self::Registry { source, .. } => source.hint(),
            Self::Archive { source, .. } => source.hint(),
            Self::Layer {
                source: LayerError::Limit { limit, .. },
                ..
            } => Some(format!("if you trust the image, raise {limit}")),
            Self::Layer { source, .. } if layer_kind(source) == Kind::Corrupt => Some(
                "pull it again; if the same comes back, the image is damaged where it is kept"
                    .into(),
            ),
            Self::InUse { .. } => Some("remove who uses it first".into()),
            Self::Damaged { path, .. } => Some(format!(
                "remove {} and pull the image again",
                path.display()
            )),
            Self::NoImage { .. } => Some("`durable image ls` tells what there is".into()),
            _ => None,
        }
    }
}

fn layer_kind(error: &LayerError) -> Kind {
    match error {
        LayerError::Refused { .. } | LayerError::Limit { .. } => Kind::Invalid,
        LayerError::Malformed { .. }
        | LayerError::BlobDigest { .. }
        | LayerError::BlobSize { .. }
        | LayerError::DiffId { .. } => Kind::Corrupt,
        LayerError::Read { source } | LayerError::Io { source, .. } => io_kind(source),
    }
}

pub(crate) fn io_kind(error: &io::Error) -> Kind {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Kind::Full,
        Some(Errno::ACCESS | Errno::PERM) => Kind::Denied,
        Some(Errno::NOENT) => Kind::NotFound,
        _ => Kind::Unavailable,
    }
}
