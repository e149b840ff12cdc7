//! Requests that wait for a person's word. The word is good for one request of that digest, is used up by the append in which
//! that request's effect begins, and is kept until one comes: a client that was told to wait, or whose daemon was killed
//! meanwhile, asks again and finds it. A question that nobody waits for any more expires with its time limit, once its
//! operation has ended.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use egress::{Ask, Pass};
use policy::Policy;
use protocol::egress::ApprovalView;
use protocol::{ApiError, ApprovalId, ErrorCode, Event, UnixMillis};
use tokio::sync::oneshot;

use super::Reply;
use super::actor::{Sandbox, Turn, answer};
use crate::shared::now;
use crate::state::Approval;

/// Questions of one sandbox at a time. One more is refused: nobody reads so many.
const MOST: usize = 256;
/// How many characters of a command are told.
const MOST_OF_COMMAND: usize = 4096;
/// How long a question is kept that does not say how long it is held.
const USUAL_MS: u64 = 90_000;

/// What a request that waits is told.
#[derive(Debug)]
pub(crate) enum Word {
    /// It may leave: by a word for it alone, or by one that has become a rule.
    Allowed(Option<Pass>),
    Refused,
}

/// A word that is to become a rule.
pub(crate) struct Remember {
    /// The policy with that rule, which is in force before anybody is told.
    pub(crate) policy: Arc<Policy>,
}

/// Clients whose request is held open, and words that are on their way to one.
#[derive(Default)]
pub(super) struct Parked {
    waiting: HashMap<ApprovalId, Vec<oneshot::Sender<Word>>>,
    given: HashMap<ApprovalId, Weak<()>>,
}

impl Parked {
    fn hold(&mut self, id: ApprovalId, word: oneshot::Sender<Word>) {
        let waiting = self.waiting.entry(id).or_default();
        waiting.retain(|word| !word.is_closed());
        waiting.push(word);
    }

    fn take(&mut self, id: &ApprovalId) -> Vec<oneshot::Sender<Word>> {
        let mut waiting = self.waiting.remove(id).unwrap_or_default();
        waiting.retain(|word| !word.is_closed());
        waiting
    }

    fn holds(&self, id: &ApprovalId) -> bool {
        let waiting = self.waiting.get(id);
        waiting.is_some_and(|waiting| waiting.iter().any(|word| !word.is_closed()))
    }

    /// Whether a request has the word and has not left yet.
    fn is_given(&self, id: &ApprovalId) -> bool {
        self.given
            .get(id)
            .is_some_and(|pass| pass.strong_count() > 0)
    }

    /// Makes the one pass that there is of a word.
    fn give(&mut self, approval: ApprovalId) -> Pass {
        self.given.retain(|_, pass| pass.strong_count() > 0);
        let held = Arc::new(());
        self.given.insert(approval.clone(), Arc::downgrade(&held));
        Pass { approval, held }
    }
}

impl Sandbox {
    /// Gives the word that was given already, or asks for it; what is returned hears it.
    pub(super) fn ask_approval(
        &mut self,
        ask: Ask,
        reply: Reply<oneshot::Receiver<Word>>,
        turn: &mut Turn,
    ) {
        if let Some(problem) = &self.problem {
            return answer(turn, reply, Err(problem.clone()));
        }
        self.expire_approvals(turn);
        let (word, heard) = oneshot::channel();
        let mut alike = self
            .state
            .approvals
            .iter()
            .filter(|(id, asked)| asked.digest == ask.digest && !self.parked.is_given(id))
            .map(|(id, asked)| (id.clone(), asked.allowed))
            .collect::<Vec<_>>();
        // One that was decided before one that was not.
        alike.sort_by_key(|(_, allowed)| allowed.is_none());
        match alike.into_iter().next() {
            Some((approval, Some(true))) => {
                let pass = self.parked.give(approval);
                turn.after.push(Box::new(move |_| {
                    // A client that went away asks again, and the word is still there.
                    let _gone = word.send(Word::Allowed(Some(pass)));
                }));
            }
            Some((approval, Some(false))) => {
                self.push(turn, Event::ApprovalUsed { approval });
                turn.after.push(Box::new(move |_| {
                    let _gone = word.send(Word::Refused);
                }));
            }
            Some((approval, None)) => self.parked.hold(approval, word),
            None if self.state.approvals.len() >= MOST => {
                let full = format!("{MOST} requests of `{}` wait for approval", self.name);
                let hint = format!("decide them: `durable approvals {}`", self.name);
                return answer(
                    turn,
                    reply,
                    Err(ApiError::new(ErrorCode::Unavailable, full).hint(hint)),
                );
            }
            None => {
                let timeout = u64::try_from(ask.timeout.as_millis()).unwrap_or(u64::MAX);
                let asked = Approval {
                    request: ask.request,
                    rule: ask.rule,
                    digest: ask.digest,
                    body: ask.body,
                    timeout_ms: Some(timeout),
                    asked_at: now(),
                    allowed: None,
                };
                let approval = self.question(asked, turn);
                self.parked.hold(approval, word);
            }
        }
        answer(turn, reply, Ok(heard));
    }

    fn question(&mut self, asked: Approval, turn: &mut Turn) -> ApprovalId {
        let approval = fresh();
        let question = Event::ApprovalAsked {
            approval: approval.clone(),
            request: asked.request,
            rule: asked.rule,
            digest: asked.digest,
            body: asked.body,
            timeout_ms: asked.timeout_ms,
        };
        self.push(turn, question);
        approval
    }

    /// Takes a person's word.
    pub(super) fn decide_approval(
        &mut self,
        approval: ApprovalId,
        allowed: bool,
        remember: Option<Remember>,
        reply: Reply<()>,
        turn: &mut Turn,
    ) {
        if let Some(problem) = &self.problem {
            return answer(turn, reply, Err(problem.clone()));
        }
        self.expire_approvals(turn);
        let asked = self.state.approvals.get(&approval).cloned();
        let Some(asked) = asked.filter(|_| !self.parked.is_given(&approval)) else {
            let missing = format!("`{}` has no approval `{approval}` to give", self.name);
            let hint = format!(
                "`durable approvals {}` lists them; one that was used or that nobody waits for any more is gone",
                self.name
            );
            let missing = ApiError::new(ErrorCode::NotFound, missing).hint(hint);
            return answer(turn, reply, Err(missing));
        };
        if asked.allowed != Some(allowed) {
            let decided = Event::ApprovalDecided {
                approval: approval.clone(),
                allowed,
            };
            self.push(turn, decided);
        }
        let mut waiting = self.parked.take(&approval);
        if let Some(Remember { policy }) = remember {
            // The rule answers from here on: nothing is left of the word that could let out one more.
            let text = policy.text().to_owned();
            self.push(turn, Event::PolicySet { policy: text });
            self.push(turn, Event::ApprovalUsed { approval });
            turn.after.push(Box::new(move |sandbox| {
                sandbox.way.set_policy(&policy);
                for word in waiting {
                    let _gone = word.send(verdict(allowed));
                }
            }));
        } else if !allowed {
            if !waiting.is_empty() {
                self.push(turn, Event::ApprovalUsed { approval });
            }
            turn.after.push(Box::new(move |_| {
                for word in waiting {
                    let _gone = word.send(Word::Refused);
                }
            }));
        } else if !waiting.is_empty() {
            let first = waiting.remove(0);
            let pass = self.parked.give(approval);
            if !waiting.is_empty() {
                // It was one word, and there are more of the same request.
                let again = self.question(asked, turn);
                for word in waiting {
                    self.parked.hold(again.clone(), word);
                }
            }
            turn.after.push(Box::new(move |_| {
                let _gone = first.send(Word::Allowed(Some(pass)));
            }));
        }
        answer(turn, reply, Ok(()));
    }

    /// Forgets questions that nobody waits for any more.
    fn expire_approvals(&mut self, turn: &mut Turn) {
        let now = now();
        let stale: Vec<ApprovalId> = self
            .state
            .approvals
            .iter()
            .filter(|(id, asked)| self.is_stale(id, asked, now))
            .map(|(id, _)| id.clone())
            .collect();
        for approval in stale {
            self.push(turn, Event::ApprovalExpired { approval });
        }
    }

    /// Whether nobody waits for a word, and nobody can be expected to: its time is over, and so is its operation. A word that was
    /// given is kept.
    fn is_stale(&self, id: &ApprovalId, asked: &Approval, now: UnixMillis) -> bool {
        let limit = asked.timeout_ms.unwrap_or(USUAL_MS);
        let late = now.0.saturating_sub(asked.asked_at.0) > limit;
        asked.allowed.is_none() && late && !self.parked.holds(id) && !self.runs(asked)
    }

    fn runs(&self, asked: &Approval) -> bool {
        let op = asked.request.op.as_ref();
        op.is_some_and(|op| self.state.open.contains(op))
    }

    pub(super) fn approval_views(&self) -> Vec<ApprovalView> {
        let now = now();
        let mut views: Vec<ApprovalView> = self
            .state
            .approvals
            .iter()
            .filter(|(id, asked)| !self.parked.is_given(id) && !self.is_stale(id, asked, now))
            .map(|(id, asked)| ApprovalView {
                id: id.clone(),
                at_ms: asked.asked_at,
                request: asked.request.clone(),
                body: asked.body.clone(),
                command: self.command_of(asked),
                rule: asked.rule.clone(),
                timeout_ms: asked.timeout_ms,
                allowed: asked.allowed,
                held: self.parked.holds(id),
            })
            .collect();
        views.sort_by_key(|view| view.at_ms);
        views
    }

    fn command_of(&self, asked: &Approval) -> Option<Vec<String>> {
        let op = self.state.ops.get(asked.request.op.as_ref()?)?;
        let mut left = MOST_OF_COMMAND;
        let mut words = Vec::new();
        for word in &op.open_spec()?.argv {
            let shown: String = word.chars().take(left).collect();
            let is_cut = shown.len() < word.len();
            left -= shown.chars().count();
            words.push(if is_cut { shown + "…" } else { shown });
            if is_cut {
                break;
            }
        }
        Some(words)
    }
}

fn verdict(allowed: bool) -> Word {
    if allowed {
        Word::Allowed(None)
    } else {
        Word::Refused
    }
}

fn fresh() -> ApprovalId {
    let id = format!("a-{:016x}", rand::random::<u64>());
    id.parse().expect("letters, digits and a dash are an id")
}
