//! What the recorder and the serving side share: the fold, who is being served what, and the decision for a new request.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::{Event, ModelOutcome, ModelRequestId, Offset, Seq};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::relay::spool::Head;
use crate::{Ledger, Models, RelayHandle, Sender, Upstream};

/// Requests of one sandbox that may be with the upstream at a time: more than any harness has sub-agents.
pub(crate) const MAX_RUNNING: usize = 256;
/// How long a request waits for a client that is being served the very same answer: a harness that broke a connection
/// and comes back may be seen before the end of the old one. A second client of its own pays this once.
const GRACE: Duration = Duration::from_millis(500);

/// How an answer ended, for its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// It is whole, and settled in the journal.
    Complete,
    /// The upstream failed.
    Failed(String),
    /// The relay was lost.
    Lost,
    /// The journal cannot be written, or the gateway was closed.
    Stopped,
}

/// How much of an answer may be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Status and headers.
    pub(crate) head: Option<Arc<Head>>,
    /// Bytes of the body.
    pub(crate) bytes: u64,
    /// Its end.
    pub(crate) end: Option<End>,
}

/// Whether an append is awaited until it is on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    Durable,
    Relaxed,
}

/// The state of one sandbox's gateway.
pub(crate) struct Core {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) relay: RelayHandle,
    pub(crate) closed: CancellationToken,
    pub(crate) recorders: Mutex<JoinSet<()>>,
    upstream: Mutex<Option<Upstream>>,
    index: Mutex<Index>,
    released: Notify,
}

struct Index {
    models: Models,
    /// Answers that are being recorded.
    live: HashMap<ModelRequestId, watch::Receiver<Shown>>,
    /// Answers that are being served; one client each.
    claimed: HashMap<ModelRequestId, Sender>,
}

/// What is to be done for a request.
pub(crate) enum Decision {
    /// Serve this answer, recorded or still being recorded.
    Serve(Claim),
    /// Ask the upstream; it is in the fold already, so that nobody decides the same beside it.
    Ask(Claim, watch::Sender<Shown>, Box<Event>),
    /// Too many are running.
    Busy,
}

impl Core {
    pub(crate) fn new(
        ledger: Arc<dyn Ledger>,
        relay: RelayHandle,
        models: Models,
        upstream: Option<Upstream>,
    ) -> Self {
        Self {
            ledger,
            relay,
            closed: CancellationToken::new(),
            recorders: Mutex::default(),
            upstream: Mutex::new(upstream),
            index: Mutex::new(Index {
                models,
                live: HashMap::new(),
                claimed: HashMap::new(),
            }),
            released: Notify::new(),
        }
    }

    pub(crate) fn upstream(&self) -> Option<Upstream> {
        lock(&self.upstream).clone()
    }

    pub(crate) fn set_upstream(&self, upstream: Option<Upstream>) {
        *lock(&self.upstream) = upstream;
    }

    pub(crate) fn inspect<T>(&self, look: impl FnOnce(&Models) -> T) -> T {
        look(&lock(&self.index).models)
    }

    /// Runs a recorder until it ends or the gateway is closed.
    pub(crate) fn spawn(&self, recorder: impl Future<Output = ()> + Send + 'static) {
        let mut recorders = lock(&self.recorders);
        while recorders.try_join_next().is_some() {}
        recorders.spawn(recorder);
    }

    /// Appends and folds.
    pub(crate) async fn append(
        &self,
        events: Vec<Event>,
        durability: Durability,
    ) -> Result<(), String> {
        let count = events.len() as u64;
        let last = match durability {
            Durability::Durable => self.ledger.append(events.clone()).await?,
            Durability::Relaxed => self.ledger.append_relaxed(events.clone()).await?,
        };
        let first = (last.0 + 1).saturating_sub(count);
        let mut index = lock(&self.index);
        for (seq, event) in (first..).zip(&events) {
            index.models.fold(Seq(seq), event);
        }
        Ok(())
    }

    /// Tells where an answer is recorded, from now until [`Core::recorded`].
    pub(crate) fn recording(&self, request: &ModelRequestId) -> watch::Sender<Shown> {
        let shown = watch::Sender::default();
        let mut index = lock(&self.index);
        index.live.insert(request.clone(), shown.subscribe());
        shown
    }

    pub(crate) fn recorded(&self, request: &ModelRequestId) {
        lock(&self.index).live.remove(request);
    }

    /// Takes back a request that could not be journaled: nothing was asked, nothing may be made of it.
    pub(crate) fn never_journaled(&self, request: &ModelRequestId) {
        let event = Event::ModelSettled {
            request: request.clone(),
            outcome: ModelOutcome::Lost,
            bytes: Offset(0),
            tool_calls: Vec::new(),
        };
        lock(&self.index).models.fold(Seq(0), &event);
    }

    /// Returns how far an answer may be shown: live, or as the journal has it.
    pub(crate) fn shown(&self, request: &ModelRequestId) -> watch::Receiver<Shown> {
        let index = lock(&self.index);
        if let Some(live) = index.live.get(request) {
            return live.clone();
        }
        let known = index.models.get(request);
        let head = known.and_then(|known| known.head.clone());
        let shown = Shown {
            head: head.map(|(status, headers)| Arc::new(Head { status, headers })),
            bytes: known.map_or(0, |known| known.bytes.0),
            end: Some(match known.and_then(|known| known.outcome.clone()) {
                Some(ModelOutcome::Complete) => End::Complete,
                Some(ModelOutcome::Failed { error }) => End::Failed(error),
                Some(ModelOutcome::Lost) => End::Lost,
                None => End::Stopped,
            }),
        };
        watch::channel(shown).1
    }

    /// Decides what is done for a request: the whole of "the upstream is asked once" is in this function.
    ///
    /// An answer that a client is being served right now belongs to that client; a second one waits a moment for it to
    /// let go, then asks for itself.
    pub(crate) async fn decide(self: &Arc<Self>, asked: &Asked) -> Decision {
        let grace = tokio::time::sleep(GRACE);
        tokio::pin!(grace);
        let mut waited = false;
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // From here on no release is missed.
            released.as_mut().enable();
            let sender = self.ledger.sender();
            {
                let mut index = lock(&self.index);
                let taken = match index.candidates(asked, &sender) {
                    Candidates::Free(request) => {
                        return Decision::Serve(self.claim(&mut index, request, &sender));
                    }
                    Candidates::Taken => true,
                    Candidates::None => false,
                };
                if !taken || waited {
                    if index.live.len() >= MAX_RUNNING {
                        return Decision::Busy;
                    }
                    return self.ask(&mut index, asked, sender);
                }
            }
            tokio::select! {
                () = released => {}
                () = &mut grace => waited = true,
            }
        }
    }

    /// Returns the answer that was given to a conversation, for a harness that was resumed after the answer that ended it.
    pub(crate) fn answered(self: &Arc<Self>, conversation: &str) -> Option<Claim> {
        let sender = self.ledger.sender();
        let mut index = lock(&self.index);
        let request = index.models.answered(conversation, &sender)?.clone();
        Some(self.claim(&mut index, request, &sender))
    }

    fn ask(self: &Arc<Self>, index: &mut Index, asked: &Asked, sender: Sender) -> Decision {
        let event = Event::ModelRequested {
            request: asked.fresh_id(),
            path: asked.path.clone(),
            digest: asked.digest.clone(),
            conversation: asked.conversation.clone(),
            attempt: sender.attempt,
        };
        let Event::ModelRequested { request, .. } = &event else {
            return Decision::Busy;
        };
        index.models.set_sender(sender.clone());
        index.models.fold(Seq(0), &event);
        let shown = watch::Sender::default();
        index.live.insert(request.clone(), shown.subscribe());
        let claim = self.claim(index, request.clone(), &sender);
        Decision::Ask(claim, shown, Box::new(event))
    }

    fn claim(
        self: &Arc<Self>,
        index: &mut Index,
        request: ModelRequestId,
        sender: &Sender,
    ) -> Claim {
        index.claimed.insert(request.clone(), sender.clone());
        Claim {
            core: Arc::clone(self),
            request,
            attempt: sender.attempt,
        }
    }
}

impl Index {
    fn candidates(&self, asked: &Asked, sender: &Sender) -> Candidates {
        let mut found = Candidates::None;
        let matching = self
            .models
            .matching(&asked.digest, &asked.conversation, sender);
        for request in matching {
            // A client of an earlier attempt is a process that is gone.
            if self.claimed.get(request).is_none_or(|by| by != sender) {
                return Candidates::Free(request.clone());
            }
            found = Candidates::Taken;
        }
        found
    }
}

enum Candidates {
    None,
    Taken,
    Free(ModelRequestId),
}

/// What a request is known by.
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) digest: String,
    pub(crate) conversation: String,
}

impl Asked {
    /// Ids are unique over all sandboxes: the relay keeps their files in one directory.
    fn fresh_id(&self) -> ModelRequestId {
        loop {
            if let Ok(id) = format!("m{:032x}", rand::random::<u128>()).parse() {
                return id;
            }
        }
    }
}

/// The right to serve one answer to one client; given back when it is dropped.
pub(crate) struct Claim {
    core: Arc<Core>,
    request: ModelRequestId,
    attempt: u32,
}

impl Claim {
    pub(crate) fn request(&self) -> &ModelRequestId {
        &self.request
    }

    /// Journals that the client has the whole answer.
    pub(crate) async fn delivered(self) {
        // The attempt that asked: a harness that has been restarted since has not seen it.
        let event = Event::ModelDelivered {
            request: self.request.clone(),
            attempt: self.attempt,
        };
        // Where the journal takes no more, nothing is served any more either.
        let _appended: Result<(), String> =
            self.core.append(vec![event], Durability::Relaxed).await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.core.index).claimed.remove(&self.request);
        self.core.released.notify_waiters();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
