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

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self {
            what: "cannot write to the journal",
            why: error.to_string().into(),
        }
    }
}
