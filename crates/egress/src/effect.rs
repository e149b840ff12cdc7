//! Effects: what left, journaled from its beginning to its end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::StatusCode;
use protocol::{DenyReason, EffectId, EffectKind, Event, Outgoing, Passed, SecretUse};

use crate::deny::Denial;
use crate::egress::Core;
use crate::seam::Pass;

/// Counts bytes that pass, and their digest.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    bytes: u64,
    /// Two kilobytes, and most requests have no body.
    hash: Option<Box<blake3::Hasher>>,
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
    settled: bool,
}

impl Effect {
    /// Journals that something is about to leave: durably where it may change something, else as soon as its place is certain.
    /// The word of a person that lets it out is used up by that.
    pub(crate) async fn begin(
        core: &Arc<Core>,
        request: Outgoing,
        class: EffectKind,
        rule: &str,
        secrets: Vec<SecretUse>,
        pass: Option<Pass>,
    ) -> Result<Self, Denial> {
        let id = effect_id();
        let event = Event::EffectBegun {
            effect: id.clone(),
            request,
            class,
            rule: rule.to_owned(),
            secrets,
        };
        // In one append: a word is used by what it lets out, or not at all.
        let used = pass.iter().map(|pass| Event::ApprovalUsed {
            approval: pass.approval.clone(),
        });
        let events: Vec<Event> = used.chain([event]).collect();
        let (begun, ledger) = (core.clone(), core.ledger.clone());
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

    /// Journals the end.
    pub(crate) fn settle(mut self, error: Option<String>) {
        self.end(error);
    }

    fn end(&mut self, error: Option<String>) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        failpoint::hit("egress_settling");
        let event = Event::EffectSettled {
            effect: self.id.clone(),
            status: self.status,
            sent: Some(self.sent.passed()),
            received: Some(self.received.passed()),
            millis: u64::try_from(self.begun.elapsed().as_millis()).ok(),
            error,
        };
        let ledger = self.core.ledger.clone();
        let write = async move {
            if let Err(error) = ledger.append_relaxed(vec![event]).await {
                tracing::warn!(%error, "the end of an effect could not be journaled");
            }
        };
        self.core.tasks.spawn_on(write, &self.core.runtime);
    }
}

impl Drop for Effect {
    fn drop(&mut self) {
        self.end(Some("it was broken off before its end".to_owned()));
    }
}

fn effect_id() -> EffectId {
    let text = format!("e{:032x}", rand::random::<u128>());
    text.parse().expect("a letter and hex digits are an id")
}
