//! Why a sandbox could not be started, found or ended.

use std::io;
use std::path::PathBuf;

/// A step that failed, with what to do about it where that is known (see [`Error::remedy`]).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One step failed.
    #[error("cannot {step}")]
    Step {
        /// The step, such as `mount the overlay`.
        step: String,
        /// What would help.
        remedy: Option<String>,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A step inside the new sandbox failed; this is what it reported.
    #[error("{message}")]
    Inside {
        /// What failed, the system's answer included.
        message: String,
        /// What would help.
        remedy: Option<String>,
    },
    /// The image cannot be used.
    #[error("image {path} cannot be used: {why}")]
    Image {
        /// The image's directory.
        path: PathBuf,
        /// The rule that it breaks.
        why: String,
    },
    /// A limit was asked for that this machine cannot enforce for this user.
    #[error("the {limit} limit cannot be enforced: {why}")]
    Limit {
        /// Which one.
        limit: &'static str,
        /// What is missing.
        why: String,
    },
    /// The machine lacks something that every sandbox needs.
    #[error("{what}")]
    Unsupported {
        /// What is missing.
        what: String,
        /// How to get it.
        remedy: String,
    },
}

impl Error {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<&str> {
        match self {
            Self::Step { remedy, .. } | Self::Inside { remedy, .. } => remedy.as_deref(),
            Self::Unsupported { remedy, .. } => Some(remedy),
            Self::Limit { .. } => Some(
                "run the daemon as root or in a delegated cgroup (systemd: `Delegate=yes`), or drop the limit",
            ),
            Self::Image { .. } => None,
        }
    }

    pub(crate) fn step(step: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Step {
            step: step.into(),
            remedy: None,
            source: source.into(),
        }
    }
}
