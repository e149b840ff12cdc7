//! What the journal says about model requests, as a fold; and the decision whether an answer is already there.
//!
//! ```text
//! requested ──responded──▶ answering ──settled──▶ settled(complete · failed · lost)
//!      └───────────────settled────────────────────────▲          + delivered, any number of times
//! ```
//! Output itself is not kept here, only where in the journal it lies.

use std::collections::HashMap;

use protocol::{Event, ModelOutcome, ModelRequestId, Offset, Seq, Stored, ToolCall};

use crate::Sender;

/// One request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Path and query.
    pub path: String,
    /// Of method, path and body.
    pub digest: String,
    /// Of the conversation in it.
    pub conversation: String,
    /// Who sent it.
    pub sender: Sender,
    /// The upstream's status and headers, when it answered.
    pub head: Option<(u16, Vec<(String, String)>)>,
    /// How much of the body is in the journal.
    pub bytes: Offset,
    /// The first and the last event that hold output of it.
    pub output: Option<(Seq, Seq)>,
    /// Its end.
    pub outcome: Option<ModelOutcome>,
    /// The tool calls in the answer; known when it is settled.
    pub tool_calls: Vec<ToolCall>,
    /// The latest attempt of its session that got the whole answer.
    pub delivered: Option<u32>,
}

impl Request {
    /// Whether its answer may stand for a request that comes now: complete or still coming, and no error.
    fn usable(&self) -> bool {
        let status = self
            .head
            .as_ref()
            .is_none_or(|(status, _)| (200..300).contains(status));
        status && matches!(self.outcome, None | Some(ModelOutcome::Complete))
    }
}

/// Every model request of one sandbox.
#[derive(Debug, Clone, Default)]
pub struct Models {
    requests: HashMap<ModelRequestId, Request>,
    order: Vec<ModelRequestId>,
    sender: Sender,
}

impl Models {
    /// Folds one journaled event in; events of other kinds are ignored.
    pub fn apply(&mut self, stored: &Stored) {
        self.fold(stored.seq, &stored.event);
    }

    /// Returns a request.
    #[must_use]
    pub fn get(&self, request: &ModelRequestId) -> Option<&Request> {
        self.requests.get(request)
    }

    /// Returns every request with its id, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&ModelRequestId, &Request)> {
        self.order
            .iter()
            .filter_map(|id| self.requests.get_key_value(id))
    }

    /// Returns the tool call that a model made under this id, the latest where there are several.
    #[must_use]
    pub fn tool_call(&self, id: &str) -> Option<(&ModelRequestId, &ToolCall)> {
        self.iter().rev().find_map(|(request, known)| {
            let call = known.tool_calls.iter().find(|call| call.id == id)?;
            Some((request, call))
        })
    }

    /// Tells who sends from now on, ahead of the session's own event.
    pub(crate) fn set_sender(&mut self, sender: Sender) {
        self.sender = sender;
    }

    pub(crate) fn fold(&mut self, seq: Seq, event: &Event) {
        match event {
            Event::SessionStarted { session, .. } => {
                self.sender = Sender {
                    session: Some(session.clone()),
                    attempt: 1,
                };
            }
            Event::SessionResumed {
                session, attempt, ..
            } => {
                self.sender = Sender {
                    session: Some(session.clone()),
                    attempt: *attempt,
                };
            }
            Event::SessionEnded { .. } => self.sender = Sender::default(),
            Event::ModelRequested {
                request,
                path,
                digest,
                conversation,
                attempt,
            } => {
                let known = Request {
                    path: path.clone(),
                    digest: digest.clone(),
                    conversation: conversation.clone(),
                    sender: Sender {
                        session: self.sender.session.clone(),
                        attempt: *attempt,
                    },
                    head: None,
                    bytes: Offset(0),
                    output: None,
                    outcome: None,
                    tool_calls: Vec::new(),
                    delivered: None,
                };
                // Live, it is folded when it is decided and again when it is journaled.
                if !self.requests.contains_key(request) {
                    self.requests.insert(request.clone(), known);
                    self.order.push(request.clone());
                }
            }
            Event::ModelResponded {
                request,
                status,
                headers,
            } => {
                if let Some(known) = self.requests.get_mut(request) {
                    known.head = Some((*status, headers.clone()));
                }
            }
            Event::ModelOutput {
                request,
                offset,
                data,
            } => {
                if let Some(known) = self.requests.get_mut(request) {
                    let end = Offset(offset.0 + data.len() as u64);
                    known.bytes = known.bytes.max(end);
                    let first = known.output.map_or(seq, |(first, _)| first);
                    known.output = Some((first, seq));
                }
            }
            Event::ModelSettled {
                request,
                outcome,
                tool_calls,
                ..
            } => {
                if let Some(known) = self.requests.get_mut(request) {
                    known.outcome = Some(outcome.clone());
                    known.tool_calls.clone_from(tool_calls);
                }
            }
            Event::ModelDelivered { request, attempt } => {
                if let Some(known) = self.requests.get_mut(request) {
                    known.delivered = Some(*attempt);
                }
            }
            Event::Created { .. }
            | Event::Forked { .. }
            | Event::Kept
            | Event::LeaseTaken { .. }
            | Event::Started { .. }
            | Event::Ended { .. }
            | Event::OpIntent { .. }
            | Event::OpStarted { .. }
            | Event::OpAdopted { .. }
            | Event::OpSettled { .. }
            | Event::CutTaken { .. }
            | Event::CutLabeled { .. }
            | Event::CutsDropped { .. }
            | Event::Rewound { .. }
            | Event::Replicated { .. }
            | Event::Pulled { .. }
            | Event::RolledBack { .. }
            | Event::EffectBegun { .. }
            | Event::EffectOutput { .. }
            | Event::EffectSettled { .. }
            | Event::EffectReplayed { .. }
            | Event::ReplayDiverged { .. }
            | Event::EgressDenied { .. }
            | Event::ApprovalAsked { .. }
            | Event::ApprovalDecided { .. }
            | Event::ApprovalUsed { .. }
            | Event::ApprovalExpired { .. }
            | Event::PolicySet { .. } => {}
        }
    }

    /// Returns requests of this session whose answer may stand for one with this digest and conversation, the best first.
    ///
    /// Either the very same request whose answer never got through, or one that an earlier attempt of the harness made
    /// about the same conversation and that this attempt has not had yet: a restarted harness does not know that it asked.
    pub(crate) fn matching<'a>(
        &'a self,
        digest: &'a str,
        conversation: &'a str,
        sender: &'a Sender,
    ) -> impl Iterator<Item = &'a ModelRequestId> {
        let fresh = move |known: &Request| {
            known.sender.session == sender.session
                && known.delivered != Some(sender.attempt)
                && known.usable()
        };
        let same = self.iter().rev().filter(move |(_, known)| {
            known.digest == digest && known.delivered.is_none() && fresh(known)
        });
        let earlier = self.iter().rev().filter(move |(_, known)| {
            known.conversation == conversation
                && known.sender.attempt < sender.attempt
                && fresh(known)
        });
        same.chain(earlier).map(|(id, _)| id)
    }

    /// Returns the latest complete answer to this conversation in this session, delivered or not.
    pub(crate) fn answered(&self, conversation: &str, sender: &Sender) -> Option<&ModelRequestId> {
        self.iter()
            .rev()
            .find(|(_, known)| {
                known.conversation == conversation
                    && known.sender.session == sender.session
                    && known.usable()
            })
            .map(|(id, _)| id)
    }
}
