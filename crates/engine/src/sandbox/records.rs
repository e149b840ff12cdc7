//! Requests of operations that may be rolled back: what leaves, and what is answered with what their lost run was answered.

use egress::{Write, effect_id};
use protocol::{ApiError, EffectId, Event, Replay, Seq};

use super::Reply;
use super::actor::{Sandbox, Turn, answer};
use crate::writes::Judgment;

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Decided {
    /// It leaves, and nobody asks for its answer again.
    Leaves,
    /// It leaves, and its answer is to be recorded.
    Recorded,
    /// Its body decides.
    Body {
        most: u64,
    },
    /// It is answered with what these events of the journal hold.
    Answered {
        of: EffectId,
        from: Seq,
        events: u64,
    },
    Refused(String),
}

impl Sandbox {
    /// Decides about a request that may change something. That one repeats another is journaled before it is answered.
    pub(super) fn decide_write(&mut self, write: Write, reply: Reply<Decided>, turn: &mut Turn) {
        let before = turn.events.len();
        let decided = match &self.problem {
            Some(problem) => Err(problem.clone()),
            None => self.decided(write, turn),
        };
        if turn.events.len() > before {
            answer(turn, reply, decided);
        } else {
            // It tells of nothing that is not durable, so it need not wait. A client that went away needs no answer.
            let _gone = reply.send(decided);
        }
    }

    fn decided(&mut self, write: Write, turn: &mut Turn) -> Result<Decided, ApiError> {
        let Some(op) = write.request.op.clone() else {
            // It could be the one that is run again; and where the supervisor does not answer, it may be lost, and what leaves now
            // would keep an operation from being run again.
            let refused = if self.state.writes.expects_any() {
                Some("one is being run again after a loss, whose requests must not leave twice")
            } else if write.is_unasked && self.state.rolls_since().is_some() {
                Some("one is running that may be rolled back, which needs to know what it sent")
            } else {
                None
            };
            return Ok(refused.map_or(Decided::Leaves, |why| {
                let message = "nobody knows which operation sends this";
                Decided::Refused(format!("{message}, and {why}; send it again later"))
            }));
        };
        let spec = self.state.ops.get(&op).and_then(|known| known.open_spec());
        if spec.is_none_or(|spec| spec.replay != Replay::Rollback) {
            return Ok(Decided::Leaves);
        }
        Ok(match self.state.writes.judge(&op, &write) {
            Judgment::Leaves => Decided::Recorded,
            Judgment::Body { most } => Decided::Body { most },
            Judgment::Repeats { of, from, events } => {
                let replayed = Event::EffectReplayed {
                    effect: effect_id(),
                    of: of.clone(),
                    request: write.request,
                };
                self.push(turn, replayed);
                Decided::Answered { of, from, events }
            }
            Judgment::Diverges(message) => {
                if !self.state.writes.has_diverged(&op) {
                    let diverged = Event::ReplayDiverged {
                        request: write.request,
                        message: message.clone(),
                    };
                    self.push(turn, diverged);
                }
                Decided::Refused(message)
            }
        })
    }
}
