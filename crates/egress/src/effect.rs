//! Effects: what left, journaled from its beginning to its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::StatusCode;
use protocol::{DenyReason, EffectId, EffectKind, Event, Outgoing, Passed, SecretUse};

use tokio::task::JoinHandle;

use crate::connection::Client;
use crate::deny::Denial;
use crate::egress::Core;
use crate::life::{Begun, Life};
use crate::record::{Keep, MAX_REQUEST, Recorder};
use crate::seam::Pass;

/// Counts bytes that pass, and their digest.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    /// Two kilobytes, and most requests have no body.
    hash: Option<Box<blake3::Hasher>>,
    /// Whether all of it passed.
    is_whole: bool,
}

impl Meter {
    /// Takes bytes in, for count and digest.
    pub(crate) fn add(&self, bytes: &[u8]) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.bytes += bytes.len() as u64;
        counted.hash.get_or_insert_default().update(bytes);
    }

    /// Counts bytes that nobody will ask the digest of.
    pub(crate) fn count(&self, bytes: usize) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.bytes += bytes as u64;
    }

    /// Says that nothing more comes.
    pub(crate) fn end(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_whole = true;
    }

    fn is_whole(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_whole
    }

    pub(crate) fn passed(&self) -> Passed {
        let counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = counted.hash.as_deref();
        Passed {
            bytes: counted.bytes,
            digest: digest.map(|hash| hash.finalize().to_hex().to_string()),
        }
    }
}

/// One effect that has begun. Dropped without [`Effect::settle`] it is journaled as broken off.
pub(crate) struct Effect {
    core: Arc<Core>,
    id: EffectId,
    begun: Instant,
    pub(crate) sent: Arc<Meter>,
    pub(crate) received: Arc<Meter>,
    pub(crate) status: Option<u16>,
    /// Keeps the answer, where its operation may be run again.
    pub(crate) recorder: Option<Recorder>,
    life: Arc<Life>,
    /// Its place in the boot, until its end is in the journal.
    begun_in: Option<Begun>,
    settled: bool,
}

impl Effect {
    /// Journals that something is about to leave: durably where it may change something, else as soon as its place is certain.
    /// The word of a person that lets it out is used up by that.
    pub(crate) async fn begin(
        client: &Client,
        request: Outgoing,
        class: EffectKind,
        rule: &str,
        secrets: Vec<SecretUse>,
        pass: Option<Pass>,
        keep: Keep,
    ) -> Result<Self, Denial> {
        let core = &client.core;
        let Some(begun_in) = client.life.begin() else {
            return Err(Denial::upstream("the sandbox was lost"));
        };
        let recorder = Recorder::of(&keep);
        let id = effect_id();
        let event = Event::EffectBegun {
            effect: id.clone(),
            request,
            class,
            rule: rule.to_owned(),
            secrets,
            head: match keep {
                Keep::Answer(head) => Some(head),
                Keep::Nothing | Keep::Never(_) => None,
            },
        };
        // In one append: a word is used by what it lets out, or not at all.
        let used = pass.iter().map(|pass| Event::ApprovalUsed {
            approval: pass.approval.clone(),
        });
        let events: Vec<Event> = used.chain([event]).collect();
        let (begun, ledger, life) = (core.clone(), core.ledger.clone(), client.life.clone());
        // A word that lets one request out must not be there again after a crash.
        let must_be_durable = class == EffectKind::Write || pass.is_some();
        // In a task of its own: what is in the journal is settled there, also where the client goes away meanwhile.
        let append = async move {
            let appended = if must_be_durable {
                ledger.append(events).await
            } else {
                ledger.append_relaxed(events).await
            };
            drop(pass);
            appended.map(|_| Self {
                core: begun,
                id,
                begun: Instant::now(),
                sent: Arc::default(),
                received: Arc::default(),
                status: None,
                recorder,
                life,
                begun_in: Some(begun_in),
                settled: false,
            })
        };
        let appended = core.tasks.spawn_on(append, &core.runtime).await;
        let appended = appended.unwrap_or_else(|failed| Err(failed.to_string()));
        let effect = appended.map_err(|error| {
            tracing::warn!(%error, "an effect could not be journaled, so the request is refused");
            Denial::new(
                StatusCode::SERVICE_UNAVAILABLE,
                DenyReason::Upstream,
                "the sandbox's journal takes nothing at the moment, and nothing leaves unless it is journaled; try again later",
            )
        })?;
        failpoint::hit("egress_begun");
        Ok(effect)
    }

    /// Returns the boot that it began in.
    pub(crate) fn life(&self) -> Arc<Life> {
        Arc::clone(&self.life)
    }

    /// Journals the end.
    pub(crate) fn settle(mut self, error: Option<String>) {
        // It is waited for where the gateway, or the boot, ends.
        drop(self.end(error));
    }

    /// Journals the end, durably on return.
    pub(crate) async fn settle_durably(&mut self, error: Option<String>) {
        if let Some(writing) = self.end(error)
            && let Err(failure) = writing.await
        {
            tracing::error!(%failure, "the end of an effect was not journaled");
        }
    }

    fn end(&mut self, error: Option<String>) -> Option<JoinHandle<()>> {
        if std::mem::replace(&mut self.settled, true) {
            return None;
        }
        failpoint::hit("egress_settling");
        let (mut events, mut answer, mut unrecorded) = (Vec::new(), None, None);
        // What a run after a loss is given must be there then.
        let must_be_durable = self.recorder.is_some();
        if let Some(mut recorder) = self.recorder.take() {
            if let Some(error) = &error {
                recorder.fail(format!("there is no whole answer: {error}"));
            } else if self.sent.passed().bytes > MAX_REQUEST {
                recorder.fail(format!("it is longer than {MAX_REQUEST} bytes"));
            } else if !self.sent.is_whole() {
                recorder.fail("it was answered before all of it was sent");
            }
            match recorder.finish(&self.id) {
                Ok((head, pieces)) => (answer, events) = (Some(head), pieces),
                Err(why) => unrecorded = Some(why),
            }
        }
        events.push(Event::EffectSettled {
            effect: self.id.clone(),
            status: self.status,
            sent: Some(self.sent.passed()),
            received: Some(self.received.passed()),
            millis: u64::try_from(self.begun.elapsed().as_millis()).ok(),
            error,
            answer,
            unrecorded,
        });
        let (ledger, begun_in) = (self.core.ledger.clone(), self.begun_in.take());
        let write = async move {
            let appended = if must_be_durable {
                ledger.append(events).await
            } else {
                ledger.append_relaxed(events).await
            };
            if let Err(error) = appended {
                tracing::warn!(%error, "the end of an effect could not be journaled");
            }
            drop(begun_in);
        };
        Some(self.core.tasks.spawn_on(write, &self.core.runtime))
    }
}

impl Drop for Effect {
    fn drop(&mut self) {
        drop(self.end(Some("it was broken off before its end".to_owned())));
    }
}

/// Returns an id that no effect has.
#[must_use]
pub fn effect_id() -> EffectId {
    let text = format!("e{:032x}", rand::random::<u128>());
    text.parse().expect("a letter and hex digits are an id")
}
