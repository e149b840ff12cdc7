//! Why a registry gave nothing.

use std::io;

use crate::digest::Digest;
use crate::error::{Kind, io_kind};
use crate::manifest::ManifestError;

/// Why a registry gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It, or a host that it sent us to, did not answer.
    #[error("{host} cannot be reached: {why}")]
    Unreachable {
        /// The host.
        host: String,
        /// What happened.
        why: String,
    },
    /// It wants other credentials.
    #[error("{host} denies access to {repository}{said}")]
    Denied {
        /// The registry.
        host: String,
        /// The image's name there.
        repository: String,
        /// What it said, after a colon.
        said: String,
    },
    /// It has no such image. Some registries also say so to those who may not see it.
    #[error("{host} has no {what}{said}")]
    NotFound {
        /// The registry.
        host: String,
        /// The image's name there, and the tag or digest.
        what: String,
        /// What it said, after a colon.
        said: String,
    },
    /// It answers with something else.
    #[error("{host} answers with status {status}{said}")]
    Status {
        /// The registry.
        host: String,
        /// The HTTP status.
        status: u16,
        /// What it said, after a colon.
        said: String,
    },
    /// A document is not the one that was asked for.
    #[error("the {what} that came has the digest {found}, and {expected} was asked for")]
    Digest {
        /// The document.
        what: &'static str,
        /// What was asked for.
        expected: Digest,
        /// What came.
        found: Digest,
    },
    /// A document is too large.
    #[error("the {what} is larger than {allowed} bytes")]
    TooLarge {
        /// The document.
        what: &'static str,
        /// What is allowed.
        allowed: u64,
    },
    /// It leads to somewhere that it must not.
    #[error("the registry leads to `{url}`: {why}")]
    Misled {
        /// Where to, escaped.
        url: String,
        /// Why that is refused.
        why: &'static str,
    },
    /// A blob broke off again and again.
    #[error(
        "the download of {digest} broke off after {sent} of {size} bytes, again and again: {why}"
    )]
    Broken {
        /// The blob.
        digest: Digest,
        /// How much came.
        sent: u64,
        /// How much there is.
        size: u64,
        /// What happened last.
        why: String,
    },
    /// What it wants as a proof is not understood.
    #[error("{host} wants credentials in a way that is not understood")]
    Challenge {
        /// The registry.
        host: String,
    },
    /// The credentials on this machine cannot be read.
    #[error("the credentials for the registry cannot be had from {from}: {why}")]
    Credentials {
        /// The file or the program.
        from: String,
        /// What happened; never a secret.
        why: String,
    },
    /// The file with the credentials cannot be read.
    #[error("cannot read {path}")]
    Config {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A document is of no use.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl RegistryError {
    /// Tells whether the same request may well succeed in a moment.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status == 408 || *status >= 500,
            _ => false,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Denied { .. } | Self::Credentials { .. } => Kind::Denied,
            Self::NotFound { .. } => Kind::NotFound,
            Self::Digest { .. } => Kind::Corrupt,
            Self::TooLarge { .. }
            | Self::Misled { .. }
            | Self::Challenge { .. }
            | Self::Manifest(_) => Kind::Invalid,
            Self::Unreachable { .. } | Self::Broken { .. } | Self::Status { .. } => {
                Kind::Unavailable
            }
            Self::Config { source, .. } => io_kind(source),
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Denied { host, .. } => Some(format!(
                "log in with `docker login {host}`, or correct the name"
            )),
            Self::NotFound { .. } => {
                Some("look at the name and the tag; a private image needs `docker login`".into())
            }
            Self::Unreachable { .. } => {
                Some("look at the name of the registry and at the network".into())
            }
            Self::Digest { .. } => {
                Some("somebody on the way changes what the registry sends, or it is damaged".into())
            }
            Self::Status { status: 429, .. } => {
                Some("wait, or log in: the registry counts pulls".into())
            }
            _ => None,
        }
    }
}
