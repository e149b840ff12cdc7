//! The one error that ends a store, and who is told of it.

use std::sync::Arc;

use tokio::sync::watch;

use super::command::Command;
use crate::queue::Queue;
use crate::{Error, Failure};

pub(super) struct Fault {
    failed: watch::Sender<Option<Failure>>,
    queue: Arc<Queue<Command>>,
}

impl Fault {
    pub(super) fn new(queue: Arc<Queue<Command>>) -> Self {
        Self {
            failed: watch::Sender::new(None),
            queue,
        }
    }

    /// Ends the store: no call is let in from now on. The first failure stays.
    pub(super) fn set(&self, failure: Failure) {
        self.queue.shut(Error::Failed(failure.clone()));
        self.failed.send_if_modified(|failed| {
            if failed.is_some() {
                return false;
            }
            tracing::error!(error = %failure, "the journal store failed");
            *failed = Some(failure);
            true
        });
    }

    pub(super) fn get(&self) -> Option<Failure> {
        self.failed.borrow().clone()
    }

    /// Returns what a call gets that cannot be answered.
    pub(super) fn error(&self) -> Error {
        self.get().map_or(Error::Closed, Error::Failed)
    }

    /// Refuses where the store has failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.get().map_or(Ok(()), |f| Err(Error::Failed(f)))
    }

    pub(super) fn watch(&self) -> watch::Receiver<Option<Failure>> {
        self.failed.subscribe()
    }
}

/// Why a transaction is not there.
#[derive(Clone)]
pub(super) enum Trouble {
    /// The disk is full. SQLite has taken all of it back, and a later one may go through.
    NoSpace,
    /// What is on disk is unknown.
    Failed(Failure),
}

impl Trouble {
    /// Returns what a call gets that was in it.
    pub(super) fn error(&self) -> Error {
        match self {
            Self::NoSpace => Error::NoSpace,
            Self::Failed(failure) => Error::Failed(failure.clone()),
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        // Only of a write, and the commit's own is the last before the sync: that a sync failed is told in another way.
        match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => Self::NoSpace,
            _ => Self::Failed(error.into()),
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            what: "cannot write to the journal",
            why: error.to_string().into(),
        }
    }
}
