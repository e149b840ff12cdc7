//! Nothing is told that the blob store has not: with `replicate`, an intent is there before the operation is started, and a
//! settlement with its cut before anyone hears of it. What comes while a push is under way shares the next one.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use protocol::{ApiError, ErrorCode, OpId, StoreAt};
use tokio::sync::mpsc;

use super::actor::{Done, Sandbox};
use super::{Handle, Request};
use crate::remote::push::Which;

/// After a store refused. It is asked again and again: what waits must not be told before.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// What must not happen before the store has the journal up to here.
pub(super) enum Waits {
    Start(OpId),
    Announcement(OpId),
}

/// What replication needs and is about.
pub(super) struct Replica {
    requests: mpsc::WeakSender<Request>,
    gateway: Arc<OnceLock<Arc<gateway::Gateway>>>,
    waiting: Vec<Waits>,
    under_way: bool,
    /// Why what waits has to go on waiting.
    pub(super) trouble: Option<ApiError>,
}

impl Replica {
    pub(super) fn new(handle: &Handle) -> Self {
        Self {
            requests: handle.requests.downgrade(),
            gateway: handle.gateway.clone(),
            waiting: Vec::new(),
            under_way: false,
            trouble: None,
        }
    }
}

impl Sandbox {
    pub(super) fn replicate(&mut self, waits: Waits) {
        self.replica.waiting.push(waits);
        self.next_push();
    }

    /// After a start: what was journaled when the daemon was lost may not be in the store.
    pub(super) fn replicate_anew(&mut self) {
        if self.state.spec.replicate.is_some() && !self.replica.under_way {
            self.push_now();
        }
    }

    fn next_push(&mut self) {
        if !self.replica.under_way && !self.replica.waiting.is_empty() {
            self.push_now();
        }
    }

    fn push_now(&mut self) {
        let Some(store) = self.state.spec.replicate.clone() else {
            return;
        };
        // Nobody has the sandbox any more: its task is about to end.
        let Some(requests) = self.replica.requests.upgrade() else {
            return;
        };
        self.replica.under_way = true;
        let handle = Handle {
            id: self.id,
            name: self.name.clone(),
            shared: self.shared.clone(),
            requests,
            sender: self.sender.clone(),
            gateway: self.replica.gateway.clone(),
            way: self.way.clone(),
            // For a push, which makes no forks.
            forking: std::sync::Arc::default(),
        };
        let waiting = std::mem::take(&mut self.replica.waiting);
        let done = self.done.clone();
        tokio::spawn(async move {
            let result = push_until_there(handle, &store, &done).await;
            let _ended = done.send(Done::Replicated(waiting, result));
        });
    }

    pub(super) fn replicated(&mut self, waiting: Vec<Waits>, result: Result<(), ApiError>) {
        self.replica.under_way = false;
        self.replica.trouble = None;
        if let Err(problem) = result {
            tracing::error!(sandbox = %self.name, error = %problem.message, "this sandbox goes on elsewhere");
            self.fail(problem);
            return;
        }
        for waits in waiting {
            match waits {
                Waits::Start(op) => self.dispatch(&op, 1),
                Waits::Announcement(op) => self.announce_now(&op),
            }
        }
        self.next_push();
    }
}

/// Pushes until the store has it. An error: it never will, because the sandbox went on elsewhere.
async fn push_until_there(
    handle: Handle,
    store: &StoreAt,
    done: &mpsc::UnboundedSender<Done>,
) -> Result<(), ApiError> {
    let mut pause = FIRST_PAUSE;
    loop {
        match handle.push_to(store, &handle.name, Which::Labeled).await {
            Ok(_) => return Ok(()),
            Err(problem) if problem.code == ErrorCode::Conflict => return Err(problem),
            // Removed meanwhile: nobody waits.
            Err(_) if handle.requests.is_closed() => return Ok(()),
            Err(problem) => {
                tracing::warn!(sandbox = %handle.name, error = %problem.message, "the store does not take it yet");
                let told = format!(
                    "nothing is told until the store has it: {}",
                    problem.message
                );
                let _ended = done.send(Done::Unreplicated(ApiError::new(problem.code, told)));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
