//! Losing the supervisor: what it left is read, each open operation is given its verdict, the files are put back where the
//! sandbox's policy wants that.
//!
//! [`recover::verdict`](crate::recover::verdict) decides. A supervisor that knows more than the journal means that the
//! journal lost its tail: the sandbox stops there, loudly.

use protocol::table::{OpRow, Table};
use protocol::{
    ApiError, Boot, CrashPolicy, CutId, EndReason, ErrorCode, Event, Head, OpId, Replay, Seq,
    WorkspaceId,
};

use super::Reply;
use super::actor::{Done, Phase, Sandbox, Turn, answer};
use super::cuts::Settling;
use crate::error;
use crate::machine;
use crate::recover::{Files, Verdict, verdict};
use crate::shared::Shared;
use crate::state::{Op, OpState, lost};

/// A supervisor that is gone, and what it left.
pub(super) struct Crashed {
    pub(super) rows: Result<Table, String>,
    pub(super) at_witness: Option<[u8; 32]>,
    /// It did not end by itself, it was shut down.
    pub(super) reason: EndReason,
}

/// What is left to do once the settlements of a crash are durable.
pub(super) struct AfterCrash {
    /// Put the workspace back to the last cut.
    rollback: bool,
    /// The workspace is being put back.
    restoring: bool,
    /// Told once the workspace is as it will stay: a cut of what is put back would be the one to put back to.
    lost: Vec<Settling>,
    /// Journaled with the rollback, so that a daemon that dies between the two does both again.
    ended: Option<Event>,
    /// Runs to be started again.
    reruns: Vec<(OpId, u32)>,
    pub(super) replies: Vec<Reply<()>>,
}

impl Sandbox {
    /// Gives each open operation its verdict: of the boot that is `live`, or after one that ended for this reason. `false`: the
    /// supervisor knows more than the journal.
    pub(super) fn reconcile(
        &mut self,
        rows: &[OpRow],
        live: Option<Boot>,
        ended: Option<EndReason>,
        turn: &mut Turn,
    ) -> bool {
        if let Some(stranger) = rows
            .iter()
            .find(|row| !self.state.ops.contains_key(&row.op))
        {
            let message = format!(
                "the journal of sandbox `{}` lost its tail: the supervisor ran operation `{}`, which it does not hold",
                self.name, stranger.op
            );
            self.fail(ApiError::new(ErrorCode::Corrupt, message).hint(RECONCILE_HINT));
            return false;
        }
        if live.is_some() {
            // A daemon died between writing a settlement and telling of it: a harness's shell waits for that still.
            let untold = rows.iter().filter(|row| {
                let known = self.state.ops.get(&row.op);
                known.is_some_and(|op| op.settlement().is_some())
            });
            for op in untold.map(|row| row.op.clone()) {
                turn.after
                    .push(Box::new(move |sandbox| sandbox.announce(&op)));
            }
        }
        let mut crash = AfterCrash {
            rollback: false,
            restoring: false,
            lost: Vec::new(),
            ended: None,
            reruns: Vec::new(),
            replies: Vec::new(),
        };
        let files = if machine::went_down(&self.shared.config.data) {
            Files::Doubtful
        } else {
            Files::Kept
        };
        for id in self.state.open.clone() {
            // What is to be run again was judged when its supervisor was lost: the row of that run says nothing new.
            if self.reruns.iter().any(|(rerun, _)| *rerun == id) {
                continue;
            }
            let row = rows.iter().find(|row| row.op == id);
            let Some(decision) = self
                .state
                .ops
                .get(&id)
                .and_then(|op| verdict(op, row, live, files))
            else {
                continue;
            };
            self.enliven(&id);
            match decision {
                Verdict::Adopt { attempt } => {
                    if let Some(boot) = live
                        && self.state.ops.get(&id).is_some_and(|op| {
                            matches!(op.state, OpState::Intended { .. }) || op.attempt() < attempt
                        })
                    {
                        self.push(
                            turn,
                            Event::OpStarted {
                                op: id.clone(),
                                boot,
                                attempt,
                            },
                        );
                    }
                    self.push(turn, Event::OpAdopted { op: id.clone() });
                    self.end_unfed(id, turn);
                }
                Verdict::Settle {
                    attempt,
                    settlement,
                } => {
                    if live.is_some() {
                        self.push(turn, Event::OpAdopted { op: id.clone() });
                    }
                    self.settling.push(Settling {
                        op: id,
                        attempt,
                        settlement,
                    });
                }
                Verdict::Start { attempt } => crash.reruns.push((id, attempt)),
                Verdict::Lost {
                    attempt,
                    replay: Replay::Safe,
                    ..
                } => {
                    crash.reruns.push((id, attempt + 1));
                }
                Verdict::Lost {
                    attempt,
                    replay: Replay::Rollback,
                    exit_code,
                } => match self.can_roll_back(&id, ended) {
                    Ok(()) => {
                        crash.rollback = true;
                        crash.reruns.push((id, attempt + 1));
                    }
                    Err(why) => {
                        // Of a run that did something else than the one before, its settlement says that anyway.
                        let kept = (!self.state.writes.has_diverged(&id)).then_some(why.as_str());
                        let lost = self.lost(id, attempt, exit_code, kept);
                        crash.lost.push(lost);
                    }
                },
                Verdict::Lost {
                    attempt, exit_code, ..
                } => {
                    let lost = self.lost(id, attempt, exit_code, None);
                    crash.lost.push(lost);
                }
            }
        }
        if live.is_some() {
            self.reruns.append(&mut crash.reruns);
            self.settling.append(&mut crash.lost);
        } else {
            crash.rollback |=
                self.state.running.is_some() && self.state.spec.on_crash == CrashPolicy::Rollback;
            self.after_crash = Some(crash);
        }
        true
    }

    /// Whether putting the workspace back to the cut before it undoes this operation and nothing else, and whatever it sent can
    /// be answered again.
    ///
    /// # Errors
    /// Why not.
    fn can_roll_back(&self, id: &OpId, ended: Option<EndReason>) -> Result<(), String> {
        let Some(op) = self.state.ops.get(id) else {
            return Err("it is not known".to_owned());
        };
        let alone = self.is_alone(id, op, ended);
        alone.map_err(|why| match self.state.writes.told(id) {
            sent if sent.is_empty() => why,
            sent => format!("{why}; it had sent: {sent}"),
        })?;
        self.state.writes.can_repeat(id, op.intent)
    }

    /// Whether nothing else is undone by that.
    fn is_alone(&self, id: &OpId, op: &Op, ended: Option<EndReason>) -> Result<(), String> {
        let why = |why: &str| Err(why.to_owned());
        match ended {
            Some(EndReason::Crashed) => {}
            Some(EndReason::Stopped) => return why("the sandbox was told to stop"),
            None => return why("the sandbox had been started again before"),
        }
        // What another operation did since that cut would be undone without being run again.
        let others = self.state.open.iter().filter(|open| *open != id);
        let others = others.chain(self.settling.iter().map(|settling| &settling.op));
        let others: Vec<String> = others.map(|other| format!("`{other}`")).collect();
        if !others.is_empty() {
            return Err(format!(
                "the files of all operations of a sandbox are put back together, and beside it there ran {}",
                others.join(", ")
            ));
        }
        if op.cut_before.as_ref() != self.state.last_cut() {
            return why("another operation, or a checkpoint, made a cut since it began");
        }
        if self.state.last_model > op.intent {
            return why("a model was asked since it began");
        }
        Ok(())
    }

    fn lost(&self, op: OpId, attempt: u32, exit_code: Option<u8>, kept: Option<&str>) -> Settling {
        let length =
            |stream| protocol::Offset(crate::spool::length(&self.dir, &op, attempt, stream));
        let why = match exit_code {
            None => {
                "the sandbox's supervisor was lost while it ran; it may or may not have taken effect".to_owned()
            }
            Some(code) => format!(
                "it exited with {code}, and the machine went down before its files were in a cut; they may be missing"
            ),
        };
        let why = match kept {
            Some(kept) => {
                format!("{why}. Its files were not put back, and it was not run again: {kept}")
            }
            None => why,
        };
        let settlement = lost(
            length(protocol::Stream::Stdout),
            length(protocol::Stream::Stderr),
            &why,
        );
        Settling {
            op,
            attempt,
            settlement,
        }
    }

    pub(super) fn link_ended(&mut self, turn: &mut Turn) {
        self.tell_started(turn);
        match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Stopping { waiting, .. } => {
                self.phase = Phase::Crashing { stopped: waiting };
                self.spawn_autopsy(EndReason::Stopped);
            }
            Phase::Up { .. } => {
                // Requests that were being checked are asked again of the next supervisor; nothing of them is journaled.
                for (_, checking) in std::mem::take(&mut self.checking) {
                    let mut replies = checking.replies.into_iter();
                    if let Some(reply) = replies.next() {
                        self.waiting
                            .push((checking.op, checking.spec, checking.origin, reply));
                    }
                    for reply in replies {
                        let again = ApiError::new(ErrorCode::Unavailable, "the sandbox was lost");
                        answer(
                            turn,
                            reply,
                            Err(again.hint("send it again: nothing was started")),
                        );
                    }
                }
                if self.shared.level.find(&self.dir).is_some() {
                    self.phase = Phase::Starting;
                    self.spawn_connect(None);
                } else {
                    self.phase = Phase::Crashing {
                        stopped: Vec::new(),
                    };
                    self.spawn_autopsy(EndReason::Crashed);
                }
            }
            other => self.phase = other,
        }
    }

    /// Makes sure that nothing of a boot is left, then reads what its supervisor wrote last.
    pub(super) fn spawn_autopsy(&self, reason: EndReason) {
        let (shared, done) = (self.shared.clone(), self.done.clone());
        let (id, dir, way) = (self.id, self.dir.clone(), self.way.clone());
        tokio::spawn(async move {
            let (level, path) = (shared.level.clone(), dir.clone());
            let swept = tokio::task::spawn_blocking(move || {
                if let Some(running) = level.find(&path) {
                    level.kill(&running)?;
                }
                level.clear(&path)
            })
            .await;
            match swept {
                Ok(Ok(())) => {}
                Ok(Err(failure)) => {
                    tracing::warn!(sandbox = %id, error = %error::chain(&failure), "something of the sandbox is left");
                }
                Err(failure) => {
                    tracing::error!(sandbox = %id, %failure, "the clean-up was abandoned")
                }
            }
            let rows = match std::fs::read(dir.join(protocol::paths::state::TABLE)) {
                Ok(bytes) => Table::read(&bytes)
                    .map(|(table, _)| table)
                    .map_err(|e| e.to_string()),
                Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => {
                    Ok(Table::default())
                }
                Err(failure) => Err(failure.to_string()),
            };
            // What it sent is known only now: answers are recorded until their end.
            way.end_boot().await;
            let witness = rows.as_ref().map_or(Head::EMPTY, |table| table.witness);
            let at_witness = hash_at(&shared, id, witness).await.unwrap_or_default();
            let _ended = done.send(Done::Crashed(Crashed {
                rows,
                at_witness,
                reason,
            }));
        });
    }

    pub(super) fn crashed(&mut self, crashed: Crashed, turn: &mut Turn) {
        let stopped = match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Crashing { stopped } => stopped,
            other => {
                self.phase = other;
                return;
            }
        };
        let table = match crashed.rows {
            Ok(table) => table,
            Err(why) => {
                let message = format!(
                    "the operation table of sandbox `{}` is damaged: {why}",
                    self.name
                );
                self.fail(ApiError::new(ErrorCode::Corrupt, message).hint(RECONCILE_HINT));
                return;
            }
        };
        if !agrees(self.head, table.witness, crashed.at_witness) {
            self.fail(lost_tail(&self.name, table.witness, self.head));
            return;
        }
        let rows: Vec<OpRow> = table
            .ops
            .into_values()
            .filter(|row| !row.announced)
            .collect();
        self.phase = Phase::Crashing {
            stopped: Vec::new(),
        };
        if !self.reconcile(&rows, None, Some(crashed.reason), turn) {
            return;
        }
        let mut ended = self.state.running.map(|boot| Event::Ended {
            boot,
            reason: crashed.reason,
        });
        if let Some(after) = &mut self.after_crash {
            if crashed.reason == EndReason::Stopped {
                // It was told to end: nothing is put back, and nothing is begun again behind the user's back.
                after.rollback = false;
                after.replies = stopped;
            }
            if after.rollback {
                after.ended = ended.take();
            } else {
                self.settling.append(&mut after.lost);
            }
        }
        if let Some(ended) = ended {
            self.push(turn, ended);
        }
        self.maybe_cut();
        turn.after.push(Box::new(Self::maybe_after_crash));
    }

    /// Goes on after a crash once every settlement of it is durable.
    pub(super) fn maybe_after_crash(&mut self) {
        if self.cutting || !self.settling.is_empty() {
            return;
        }
        let Some(after) = &mut self.after_crash else {
            return;
        };
        if after.restoring {
            return;
        }
        if after.rollback {
            after.restoring = true;
            let (shared, done) = (self.shared.clone(), self.done.clone());
            let of = self.state.workspace.clone();
            // A cut of an earlier head lives with that head.
            let cut = self.state.last_cut().and_then(|id| self.state.cut(id));
            let cut = cut.map(|cut| (cut.workspace.clone(), cut.id.clone()));
            tokio::task::spawn_blocking(move || {
                let (source, cut) = match cut {
                    Some((source, cut)) => (source, Some(cut)),
                    None => (of, None),
                };
                let restored = shared.pool.restore(&source, cut.as_ref());
                let restored = restored
                    .map(|workspace| (cut, workspace))
                    .map_err(|e| error::of_pool(&e));
                let _ended = done.send(Done::Restored(restored));
            });
            return;
        }
        let Some(AfterCrash {
            mut reruns,
            replies,
            ..
        }) = self.after_crash.take()
        else {
            return;
        };
        self.phase = Phase::Down;
        self.reruns.append(&mut reruns);
        for reply in replies {
            let _gone = reply.send(Ok(()));
        }
        if !self.reruns.is_empty() || !self.waiting.is_empty() || !self.starters.is_empty() {
            self.begin_start();
        } else {
            self.recovery_done();
        }
    }

    pub(super) fn restored(
        &mut self,
        restored: Result<(Option<CutId>, WorkspaceId), ApiError>,
        turn: &mut Turn,
    ) {
        match restored {
            Ok((to, workspace)) => {
                let ended = self.after_crash.as_mut().and_then(|after| {
                    (after.rollback, after.restoring) = (false, false);
                    self.settling.append(&mut after.lost);
                    after.ended.take()
                });
                self.push(turn, Event::RolledBack { to, workspace });
                if let Some(ended) = ended {
                    self.push(turn, ended);
                }
                turn.after.push(Box::new(|sandbox| {
                    if let Some(old) = sandbox.state.retired.last().cloned() {
                        let shared = sandbox.shared.clone();
                        tokio::task::spawn_blocking(move || {
                            if let Err(failure) = shared.pool.retire(&old) {
                                tracing::warn!(error = %error::chain(&failure), "an old head stays");
                            }
                        });
                    }
                    sandbox.maybe_cut();
                    sandbox.maybe_after_crash();
                }));
            }
            Err(problem) => self.fail(problem),
        }
    }
}

const RECONCILE_HINT: &str = "nothing goes on in it: look at `durable log NAME`, restore the journal from a copy, or `durable rm` it";

pub(super) fn lost_tail(name: &protocol::SandboxName, witness: Head, head: Head) -> ApiError {
    ApiError::new(
        ErrorCode::Corrupt,
        format!(
            "the journal of sandbox `{name}` lost its tail: the supervisor was shown event {}, the journal {}",
            witness.seq,
            if witness.seq > head.seq {
                format!("ends at {}", head.seq)
            } else {
                "holds another one there".to_owned()
            },
        ),
    )
    .hint(RECONCILE_HINT)
}

/// Whether what the supervisor was shown is what the journal holds.
pub(super) fn agrees(head: Head, witness: Head, at_witness: Option<[u8; 32]>) -> bool {
    witness.seq == Seq(0) || (witness.seq <= head.seq && at_witness == Some(witness.hash))
}

pub(super) async fn hash_at(
    shared: &Shared,
    id: protocol::SandboxId,
    witness: Head,
) -> Result<Option<[u8; 32]>, ApiError> {
    if witness.seq == Seq(0) {
        return Ok(None);
    }
    let events = shared
        .store
        .read(id, witness.seq, 1)
        .await
        .map_err(|e| error::of_journal(&e))?;
    Ok(events
        .first()
        .filter(|event| event.seq == witness.seq)
        .map(|event| event.hash))
}
