//! What the journal tells of effects and denials.

use std::collections::BTreeMap;

use protocol::egress::{DenialView, EffectState, EffectView};
use protocol::{ApiError, EffectId, EffectKind, Event, OpId, SandboxId, Seq, Stored};

use crate::error;
use crate::sandbox::Handle;
use crate::shared::Shared;

/// Events read at a time.
const PAGE: usize = 1024;

impl Handle {
    /// Lists the requests that left, oldest first; of one operation where one is named.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn effects(&self, op: Option<&OpId>) -> Result<Vec<EffectView>, ApiError> {
        let mut effects: BTreeMap<Seq, EffectView> = BTreeMap::new();
        let mut begun: BTreeMap<EffectId, Seq> = BTreeMap::new();
        each_event(&self.shared, self.id, |stored| {
            let at = stored.at;
            match stored.event {
                Event::EffectBegun {
                    effect,
                    request,
                    class,
                    rule,
                    secrets,
                    ..
                } if op.is_none() || request.op.as_ref() == op => {
                    begun.insert(effect.clone(), stored.seq);
                    let view = EffectView {
                        id: effect,
                        seq: stored.seq,
                        at_ms: at,
                        request,
                        class,
                        rule,
                        secrets,
                        state: EffectState::Open,
                        status: None,
                        sent: None,
                        received: None,
                        millis: None,
                        error: None,
                        recorded: false,
                        unrecorded: None,
                        repeats: None,
                    };
                    effects.insert(stored.seq, view);
                }
                Event::EffectReplayed {
                    effect,
                    of,
                    request,
                } if op.is_none() || request.op.as_ref() == op => {
                    let first = begun.get(&of).and_then(|seq| effects.get(seq));
                    let view = EffectView {
                        id: effect,
                        seq: stored.seq,
                        at_ms: at,
                        request,
                        class: EffectKind::Write,
                        rule: String::new(),
                        secrets: Vec::new(),
                        state: EffectState::Replayed,
                        status: first.and_then(|first| first.status),
                        sent: first.and_then(|first| first.sent.clone()),
                        received: first.and_then(|first| first.received.clone()),
                        millis: None,
                        error: None,
                        recorded: false,
                        unrecorded: None,
                        repeats: Some(of),
                    };
                    effects.insert(stored.seq, view);
                }
                Event::EffectSettled {
                    effect,
                    status,
                    sent,
                    received,
                    millis,
                    error,
                    answer,
                    unrecorded,
                } => {
                    let known = begun.get(&effect).and_then(|seq| effects.get_mut(seq));
                    if let Some(view) = known {
                        view.state = if error.is_some() {
                            EffectState::Broken
                        } else {
                            EffectState::Done
                        };
                        view.status = status;
                        view.sent = sent;
                        view.received = received;
                        view.millis = millis;
                        view.error = error;
                        view.recorded = answer.is_some();
                        view.unrecorded = unrecorded;
                    }
                }
                _ => {}
            }
        })
        .await?;
        Ok(effects.into_values().collect())
    }

    /// Lists what was to leave and did not, oldest first.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn denials(&self) -> Result<Vec<DenialView>, ApiError> {
        let mut denials = Vec::new();
        each_event(&self.shared, self.id, |stored| {
            if let Event::EgressDenied {
                request,
                reason,
                rule,
                message,
                times,
            } = stored.event
            {
                denials.push(DenialView {
                    seq: stored.seq,
                    at_ms: stored.at,
                    request,
                    reason,
                    rule,
                    message,
                    times,
                });
            }
        })
        .await?;
        Ok(denials)
    }
}

/// Goes through a journal from its first event on.
async fn each_event(
    shared: &Shared,
    id: SandboxId,
    mut see: impl FnMut(Stored),
) -> Result<(), ApiError> {
    let mut next = Seq(1);
    loop {
        let events = shared.store.read(id, next, PAGE).await;
        let events = events.map_err(|e| error::of_journal(&e))?;
        let Some(last) = events.last() else {
            return Ok(());
        };
        next = last.seq.next();
        events.into_iter().for_each(&mut see);
    }
}
