//! Why a measurement or a check could not be made.

use std::error::Error;

use protocol::ApiError;

/// Why something could not be measured or checked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The system, a peer or a connection failed.
    #[error("cannot {what}")]
    Cannot {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The daemon refused.
    #[error("{what}: {}: {}", error.code.name(), error.message)]
    Refused {
        /// What was asked for.
        what: String,
        /// Its answer.
        error: ApiError,
    },
    /// It answered, and wrongly: a fast wrong answer is a failure.
    #[error("{0}")]
    Wrong(String),
}

impl Failure {
    /// Wraps an error with what was tried.
    pub fn cannot<E: Into<Box<dyn Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |source| Self::Cannot {
            what,
            source: source.into(),
        }
    }

    /// Says what is wrong with an answer.
    pub fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }

    /// Returns the message with its causes.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
