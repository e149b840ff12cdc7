//! Why a layer was not applied.

use std::io;

use rustix::io::Errno;

use crate::digest::Digest;
use crate::text::shown;

/// Why a layer was not applied.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The blob cannot be unpacked, or is no tar.
    #[error("it is damaged or of a form that is not understood: {why}")]
    Malformed {
        /// What was found.
        why: String,
    },
    /// An entry does what no honest layer does.
    #[error("its entry `{path}` is refused: {why}")]
    Refused {
        /// The entry's name, escaped.
        path: String,
        /// What it tries.
        why: &'static str,
    },
    /// A limit would be passed.
    #[error("its entry `{path}` goes beyond {limit}, which is {allowed}")]
    Limit {
        /// The name of the limit, see [`crate::Limits`].
        limit: &'static str,
        /// What is allowed.
        allowed: u64,
        /// The entry's name, escaped.
        path: String,
    },
    /// The blob is not the one that was asked for.
    #[error("the blob's digest is {found}")]
    BlobDigest {
        /// What came.
        found: Digest,
    },
    /// The blob has another length than the manifest says.
    #[error("the blob is {found} bytes long, and the manifest says {expected}")]
    BlobSize {
        /// What the manifest says.
        expected: u64,
        /// What came; one more than expected where it was cut off there.
        found: u64,
    },
    /// The content is not the one that the configuration names.
    #[error(
        "its unpacked content has the digest {found}, which is not what the image's configuration says"
    )]
    DiffId {
        /// What came.
        found: Digest,
    },
    /// The blob could not be read.
    #[error("the blob could not be read")]
    Read {
        /// Why.
        source: io::Error,
    },
    /// The system refused something.
    #[error("cannot {doing} `{path}`")]
    Io {
        /// The verb.
        doing: &'static str,
        /// The path within the image, escaped.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl LayerError {
    pub(crate) fn malformed(why: impl Into<String>) -> Self {
        Self::Malformed { why: why.into() }
    }

    pub(crate) fn refused(path: &[u8], why: &'static str) -> Self {
        Self::Refused {
            path: shown(path),
            why,
        }
    }

    pub(crate) fn limit(limit: &'static str, allowed: u64, path: &[u8]) -> Self {
        Self::Limit {
            limit,
            allowed,
            path: shown(path),
        }
    }

    /// For `map_err`: says what was done on what.
    pub(crate) fn io(doing: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Io {
            doing,
            path: shown(path),
            source: errno.into(),
        }
    }

    /// Takes back out what a reader of ours put into an I/O error; anything else is the decompressor's complaint.
    pub(crate) fn from_reader(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(error) => Self::malformed(error.to_string()),
        }
    }
}
