//! Settlements and the cut that goes with them: files and journal are one consistent cut, or nothing is told.
//!
//! Operations that end while a cut is being taken share the next one, so many at once cost two cuts, not many.

use std::cell::Cell;
use std::sync::Arc;

use protocol::control::ToSupervisor;
use protocol::{ApiError, CutId, Event, OpId, Seq, Settlement};

use super::actor::{Done, Phase, Sandbox, Turn, answer};
use super::checkpoints::Asked;
use super::replicate::Waits;
use crate::error;

/// An operation that ended and is not journaled as such yet.
pub(super) struct Settling {
    pub(super) op: OpId,
    pub(super) attempt: u32,
    pub(super) settlement: Settlement,
}

/// What became of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Nothing changed, so none was taken.
    Nothing,
    /// One was, of processes that stood still or went on.
    Cut { still: bool },
}

/// Makes a cut's id. The place makes it readable, the rest makes it differ from a cut that a crash left unnamed.
fn fresh_id(at: Seq) -> String {
    format!("c{at}-{:04x}", rand::random::<u16>())
}

/// Whether a text has the form of a cut's id, of one that is there or not.
pub(super) fn is_id(text: &str) -> bool {
    let parts = text.strip_prefix('c').and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(at, rest)| {
        let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        !at.is_empty()
            && at.bytes().all(|b| b.is_ascii_digit())
            && rest.len() == 4
            && rest.bytes().all(hex)
    })
}

impl Sandbox {
    /// Takes a cut for everything that ended, unless one is being taken already.
    pub(super) fn maybe_cut(&mut self) {
        if self.cutting || (self.settling.is_empty() && self.asked.is_empty()) {
            return;
        }
        self.cutting = true;
        let ops = std::mem::take(&mut self.settling);
        let asked = std::mem::take(&mut self.asked);
        let text = fresh_id(self.head.seq.next());
        let (shared, workspace) = (self.shared.clone(), self.state.workspace.clone());
        let (done, dir) = (self.done.clone(), self.dir.clone());
        tokio::task::spawn_blocking(move || {
            let cut: CutId = match text.parse() {
                Ok(cut) => cut,
                Err(bad) => unreachable_id(&bad),
            };
            let running = shared.level.find(&dir);
            let still = Cell::new(running.is_none());
            let stop = || -> Box<dyn Send> {
                let frozen = running.as_ref().and_then(|r| shared.level.freeze(r));
                if frozen.is_some() {
                    still.set(true);
                }
                Box::new(frozen)
            };
            let result = shared.pool.cut_still(&workspace, &cut, &stop);
            let still = still.get();
            let result = result
                .map(|cut| cut.map_or(Taken::Nothing, |_| Taken::Cut { still }))
                .map_err(|e| error::of_pool(&e));
            // The task may have ended: then nobody settles, and the next daemon takes the cut again.
            let _ended = done.send(Done::Cut {
                ops,
                asked,
                cut,
                result,
            });
        });
    }

    pub(super) fn cut_done(
        &mut self,
        ops: Vec<Settling>,
        asked: Vec<Asked>,
        cut: CutId,
        result: Result<Taken, ApiError>,
        turn: &mut Turn,
    ) {
        self.cutting = false;
        if let Some(problem) = &self.problem {
            // Its journal is another's, or is being removed: nothing is written into it, and nobody waits for that.
            for one in asked {
                answer(turn, one.reply, Err(problem.clone()));
            }
            return;
        }
        let refused = result.as_ref().err().cloned();
        let (cut, failed) = match result {
            Ok(Taken::Cut { still }) => (Some((cut, still)), None),
            Ok(Taken::Nothing) => (None, None),
            Err(error) => {
                tracing::error!(sandbox = %self.name, error = %error.message, "no cut could be taken");
                (
                    None,
                    Some(format!("no cut could be taken: {}", error.message)),
                )
            }
        };
        if let Some((cut, still)) = &cut {
            let open = &self.state.open;
            let open = open
                .iter()
                .filter(|op| !ops.iter().any(|s| s.op == **op))
                .cloned()
                .collect();
            self.push(
                turn,
                Event::CutTaken {
                    cut: cut.clone(),
                    open,
                    still: *still,
                },
            );
        }
        let cut = cut.map(|(cut, _)| cut);
        for Settling {
            op,
            attempt,
            mut settlement,
        } in ops
        {
            let known = self
                .state
                .ops
                .get(&op)
                .map(|o| (o.attempt(), o.settlement().is_some()));
            let Some((journaled, false)) = known else {
                continue;
            };
            if attempt > journaled
                && let Phase::Up { boot, .. } = self.phase
            {
                self.push(
                    turn,
                    Event::OpStarted {
                        op: op.clone(),
                        boot,
                        attempt,
                    },
                );
            }
            if let Some(failed) = &failed {
                let before = settlement
                    .error
                    .take()
                    .map(|e| format!("{e}; "))
                    .unwrap_or_default();
                settlement.error = Some(format!("{before}{failed}"));
            }
            self.state.writes.amend(&op, &mut settlement);
            let cut = match (&cut, &failed) {
                (None, None) => self.cut_since(&op),
                (cut, _) => cut.clone(),
            };
            self.push(
                turn,
                Event::OpSettled {
                    op: op.clone(),
                    settlement,
                    cut,
                },
            );
            turn.after
                .push(Box::new(move |sandbox| sandbox.announce(&op)));
        }
        self.checkpointed(asked, refused.as_ref(), turn);
        self.retain(turn);
        turn.after.push(Box::new(|sandbox| {
            sandbox.maybe_cut();
            sandbox.maybe_after_crash();
        }));
    }

    /// Returns the last cut, where it was taken since this operation was asked for: with nothing changed after it, it holds
    /// whatever the operation wrote.
    fn cut_since(&self, op: &OpId) -> Option<CutId> {
        let last = self.state.last_cut();
        let before = self.state.ops.get(op)?.cut_before.as_ref();
        last.filter(|last| Some(*last) != before).cloned()
    }

    /// Tells everybody of a durable settlement, once it is as durable as was asked for.
    pub(super) fn announce(&mut self, op: &OpId) {
        if self.state.spec.replicate.is_some() {
            self.replicate(Waits::Announcement(op.clone()));
        } else {
            self.announce_now(op);
        }
    }

    pub(super) fn announce_now(&mut self, op: &OpId) {
        self.cancelled.remove(op);
        if let Phase::Up { link, .. } | Phase::Stopping { link, .. } = &self.phase {
            link.send(ToSupervisor::Announce {
                op: op.clone(),
                witness: self.head,
            });
        }
        let Some(entry) = self.state.ops.get(op) else {
            return;
        };
        let view = Arc::new(self.op_view(op, entry));
        let Some(live) = self.live.remove(op) else {
            return;
        };
        live.stdin.send_modify(|s| s.closed = true);
        live.progress.send_modify(|p| {
            p.attempt = view.attempt;
            p.stdout = view.stdout_bytes;
            p.stderr = view.stderr_bytes;
            p.settled = Some(view);
        });
    }
}

fn unreachable_id(bad: &protocol::IdError) -> ! {
    unreachable!("our own cut ids keep the rule: {bad}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_told_from_what_people_write() {
        for seq in [1, 70_000] {
            assert!(is_id(&fresh_id(Seq(seq))));
        }
        for other in [
            "c12",
            "c-beef",
            "c12-bee",
            "c12-beefs",
            "c12-BEEF",
            "cut-beef",
            "12",
        ] {
            assert!(!is_id(other), "{other}");
        }
    }
}
