//! Requests that wait for a person's word. The word is good for one request of that digest, and is kept until one comes:
//! a client that was told to wait, or whose daemon was killed meanwhile, asks again and finds it.

use std::collections::HashMap;

use egress::Ask;
use protocol::egress::ApprovalView;
use protocol::{ApiError, ApprovalId, ErrorCode, Event, Outgoing};
use tokio::sync::oneshot;

use super::Reply;
use super::actor::{Sandbox, Turn, answer};

/// Requests of one sandbox that wait at a time. One more is refused: nobody reads so many.
const MOST: usize = 256;

/// Clients whose request is held open.
#[derive(Default)]
pub(super) struct Parked(HashMap<ApprovalId, Vec<oneshot::Sender<bool>>>);

impl Parked {
    fn hold(&mut self, id: ApprovalId, word: oneshot::Sender<bool>) {
        let waiting = self.0.entry(id).or_default();
        waiting.retain(|word| !word.is_closed());
        waiting.push(word);
    }

    fn take(&mut self, id: &ApprovalId) -> Vec<oneshot::Sender<bool>> {
        let mut waiting = self.0.remove(id).unwrap_or_default();
        waiting.retain(|word| !word.is_closed());
        waiting
    }

    fn holds(&self, id: &ApprovalId) -> bool {
        let waiting = self.0.get(id);
        waiting.is_some_and(|waiting| waiting.iter().any(|word| !word.is_closed()))
    }
}

impl Sandbox {
    /// Gives the word that was given already, or asks for it; what is returned hears it.
    pub(super) fn ask_approval(
        &mut self,
        ask: Ask,
        reply: Reply<oneshot::Receiver<bool>>,
        turn: &mut Turn,
    ) {
        if let Some(problem) = &self.problem {
            return answer(turn, reply, Err(problem.clone()));
        }
        let (word, heard) = oneshot::channel();
        let mut approvals = self.state.approvals.iter();
        let known = approvals.find(|(_, asked)| asked.digest == ask.digest);
        match known.map(|(id, asked)| (id.clone(), asked.allowed)) {
            Some((approval, Some(allowed))) => {
                self.push(turn, Event::ApprovalUsed { approval });
                turn.after.push(Box::new(move |_| {
                    // A client that went away asks again.
                    let _gone = word.send(allowed);
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
                let approval = fresh();
                self.parked.hold(approval.clone(), word);
                let Ask {
                    request,
                    rule,
                    digest,
                    ..
                } = ask;
                self.push(
                    turn,
                    Event::ApprovalAsked {
                        approval,
                        request,
                        rule,
                        digest,
                    },
                );
            }
        }
        answer(turn, reply, Ok(heard));
    }

    /// Takes a person's word. Returns what was asked, and by which rule.
    pub(super) fn decide_approval(
        &mut self,
        approval: ApprovalId,
        allowed: bool,
        reply: Reply<(Outgoing, String)>,
        turn: &mut Turn,
    ) {
        let asked = match self.state.approvals.get(&approval) {
            Some(asked) if self.problem.is_none() => asked,
            found => {
                let missing = format!("`{}` has no approval `{approval}` to give", self.name);
                let hint = format!("`durable approvals {}` lists them", self.name);
                let problem = match (&self.problem, found) {
                    (Some(problem), _) => problem.clone(),
                    (None, _) => ApiError::new(ErrorCode::NotFound, missing).hint(hint),
                };
                return answer(turn, reply, Err(problem));
            }
        };
        let question = (asked.request.clone(), asked.rule.clone());
        if asked.allowed != Some(allowed) {
            let decided = Event::ApprovalDecided {
                approval: approval.clone(),
                allowed,
            };
            self.push(turn, decided);
        }
        let waiting = self.parked.take(&approval);
        if !waiting.is_empty() {
            self.push(turn, Event::ApprovalUsed { approval });
        }
        turn.after.push(Box::new(move |_| {
            for word in waiting {
                let _gone = word.send(allowed);
            }
        }));
        answer(turn, reply, Ok(question));
    }

    pub(super) fn approval_views(&self) -> Vec<ApprovalView> {
        let mut views: Vec<ApprovalView> = self
            .state
            .approvals
            .iter()
            .map(|(id, asked)| ApprovalView {
                id: id.clone(),
                at_ms: asked.asked_at,
                request: asked.request.clone(),
                rule: asked.rule.clone(),
                allowed: asked.allowed,
                held: self.parked.holds(id),
            })
            .collect();
        views.sort_by_key(|view| view.at_ms);
        views
    }
}

fn fresh() -> ApprovalId {
    let id = format!("a-{:016x}", rand::random::<u64>());
    id.parse().expect("letters, digits and a dash are an id")
}
