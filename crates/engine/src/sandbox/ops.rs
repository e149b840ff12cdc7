//! Operations: intent, start, settlement, and the frames between.

use protocol::control::{FromSupervisor, ToSupervisor};
use protocol::table::RunSpec;
use protocol::{ApiError, ErrorCode, Event, OpId, OpSpec, Origin, Role};

use super::actor::{Checking, Phase, Sandbox, Turn, answer};
use super::cuts::Settling;
use super::replicate::Waits;
use super::{Attached, Reply, StdinState};
use crate::error;
use crate::state::{OpState, fingerprint};

/// Where programs are looked for that are named without a slash, where nobody says otherwise.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Between SIGTERM and SIGKILL for a helper that nobody feeds any more.
const UNFED_GRACE_MS: u64 = 2000;

impl Sandbox {
    /// Starts an operation, attaches to it, or says why not.
    pub(super) fn exec(
        &mut self,
        op: OpId,
        spec: OpSpec,
        origin: Origin,
        reply: Reply<Attached>,
        turn: &mut Turn,
    ) {
        if let Some(problem) = &self.problem {
            answer(turn, reply, Err(problem.clone()));
            return;
        }
        if let Some(known) = self.state.ops.get(&op) {
            if known.fingerprint != fingerprint(&spec, known.origin) {
                answer(turn, reply, Err(error::other_command(&self.name, &op)));
                return;
            }
            self.reply_attached(op, reply, turn);
            return;
        }
        if let Some(checking) = self.checking.values_mut().find(|c| c.op == op) {
            if checking.spec.same_command(&spec) {
                checking.replies.push(reply);
            } else {
                answer(turn, reply, Err(error::other_command(&self.name, &op)));
            }
            return;
        }
        // A tool call of a session that runs, and its harness, belong to what was begun.
        if origin == Origin::Api
            && let Err(full) = self.shared.room_to_begin()
        {
            answer(turn, reply, Err(full));
            return;
        }
        match &self.phase {
            Phase::Up { .. } => self.check(op, spec, origin, vec![reply]),
            Phase::Starting | Phase::Crashing { .. } => {
                self.waiting.push((op, spec, origin, reply));
            }
            Phase::Down => {
                self.waiting.push((op, spec, origin, reply));
                self.begin_start();
            }
            Phase::Stopping { .. } => answer(turn, reply, Err(self.stopping())),
        }
    }

    /// Asks the supervisor whether the command can be started, before anything is journaled.
    pub(super) fn check(
        &mut self,
        op: OpId,
        spec: OpSpec,
        origin: Origin,
        replies: Vec<Reply<Attached>>,
    ) {
        let Phase::Up { link, .. } = &self.phase else {
            return;
        };
        let token = self.next_token;
        self.next_token += 1;
        link.send(ToSupervisor::Check {
            token,
            run: self.run_spec(&spec),
        });
        self.checking.insert(
            token,
            Checking {
                op,
                spec,
                origin,
                replies,
            },
        );
    }

    /// Fills the sandbox's defaults in.
    pub(super) fn run_spec(&self, spec: &OpSpec) -> RunSpec {
        let defaults = &self.state.spec;
        let mut env = defaults.env.clone();
        let fixed = [("PATH", PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")];
        for (key, value) in fixed {
            env.entry(key.to_owned())
                .or_insert_with(|| value.to_owned());
        }
        if spec.tty.is_some() {
            env.entry("TERM".to_owned())
                .or_insert_with(|| "xterm-256color".to_owned());
        }
        env.extend(self.way.environment());
        env.extend(spec.env.clone());
        // Helpers of ours need every right on the files; they are ours, not the image's.
        let default = defaults
            .user
            .clone()
            .filter(|_| spec.role != Role::Internal);
        let user = spec.user.clone().or(default);
        RunSpec {
            argv: spec.argv.clone(),
            cwd: spec.cwd.clone().unwrap_or_else(|| defaults.cwd.clone()),
            env,
            user,
            timeout_ms: spec.timeout_ms,
            tty: spec.tty,
            stdin: spec.stdin,
            role: spec.role,
        }
    }

    pub(super) fn frame(&mut self, frame: FromSupervisor, turn: &mut Turn) {
        match frame {
            FromSupervisor::Checked { token, problem } => self.checked(token, problem, turn),
            FromSupervisor::Started { op, attempt } => self.started(&op, attempt, turn),
            FromSupervisor::Output {
                op,
                attempt,
                stdout,
                stderr,
            } => {
                if let Some(live) = self.live.get(&op) {
                    live.progress.send_modify(|p| {
                        p.attempt = attempt;
                        p.stdout = stdout;
                        p.stderr = stderr;
                    });
                }
            }
            FromSupervisor::StdinAccepted { op, offset, closed } => {
                if let Some(live) = self.live.get(&op) {
                    live.stdin.send_replace(StdinState { offset, closed });
                }
            }
            FromSupervisor::Settled {
                op,
                attempt,
                settlement,
            } => {
                let open = self
                    .state
                    .ops
                    .get(&op)
                    .is_some_and(|o| o.settlement().is_none());
                if open && !self.settling.iter().any(|s| s.op == op) {
                    self.settling.push(Settling {
                        op,
                        attempt,
                        settlement,
                    });
                    self.maybe_cut();
                }
            }
            FromSupervisor::Shim { shim, request } => self.shim(shim, request, turn),
            // Those of other connections.
            FromSupervisor::FilesReady
            | FromSupervisor::FilesRefused { .. }
            | FromSupervisor::Doors { .. }
            | FromSupervisor::Owner { .. } => {}
            FromSupervisor::Fenced { .. } | FromSupervisor::Refused { .. } => {
                tracing::error!(sandbox = %self.name, "the supervisor answered a fence twice");
            }
        }
    }

    fn checked(&mut self, token: u64, problem: Option<String>, turn: &mut Turn) {
        let Some(checking) = self.checking.remove(&token) else {
            return;
        };
        if let Some(problem) = problem {
            self.tell_started(turn);
            for reply in checking.replies {
                let refused = ApiError::new(
                    ErrorCode::Invalid,
                    format!("cannot run in sandbox `{}`: {problem}", self.name),
                )
                .hint(
                    "nothing was started and nothing was journaled; correct it and send it again",
                );
                answer(turn, reply, Err(refused));
            }
            return;
        }
        let Checking {
            op,
            spec,
            origin,
            replies,
        } = checking;
        // Another client, or the shim, may have taken the id meanwhile.
        if let Some(known) = self.state.ops.get(&op) {
            let same = known.fingerprint == fingerprint(&spec, known.origin);
            for reply in replies {
                if same {
                    self.reply_attached(op.clone(), reply, turn);
                } else {
                    answer(turn, reply, Err(error::other_command(&self.name, &op)));
                }
            }
            return;
        }
        self.intend(op.clone(), spec, origin, turn);
        for reply in replies {
            self.reply_attached(op.clone(), reply, turn);
        }
    }

    /// Journals the intent; the start follows once that is durable.
    pub(super) fn intend(&mut self, op: OpId, spec: OpSpec, origin: Origin, turn: &mut Turn) {
        let cut_before = self.state.last_cut().cloned();
        self.push(
            turn,
            Event::OpIntent {
                op: op.clone(),
                spec,
                origin,
                cut_before,
            },
        );
        self.enliven(&op);
        turn.after.push(Box::new(move |sandbox| {
            if sandbox.state.spec.replicate.is_some() {
                sandbox.replicate(Waits::Start(op));
            } else {
                sandbox.dispatch(&op, 1);
            }
        }));
    }

    /// Tells the supervisor to start a run. Safe to repeat: the supervisor starts a run once.
    pub(super) fn dispatch(&mut self, op: &OpId, attempt: u32) {
        let Some(spec) = self.state.ops.get(op).and_then(|o| o.open_spec()) else {
            return;
        };
        let run = self.run_spec(spec);
        if let Phase::Up { link, .. } = &self.phase {
            link.send(ToSupervisor::Start {
                op: op.clone(),
                attempt,
                run,
                witness: self.head,
            });
        } else if !self.reruns.iter().any(|(known, _)| known == op) {
            self.reruns.push((op.clone(), attempt));
        }
    }

    /// Ends a helper whose input came from a daemon that is gone: nobody else has the rest of it.
    pub(super) fn end_unfed(&mut self, op: OpId, turn: &mut Turn) {
        let is_unfed = self.state.ops.get(&op).is_some_and(|known| {
            let takes = known.open_spec().is_some_and(|spec| spec.stdin);
            takes && known.role == Role::Internal && known.origin == Origin::Daemon
        });
        if is_unfed {
            turn.after.push(Box::new(move |sandbox| {
                let grace_ms = UNFED_GRACE_MS;
                // It ends in this very moment.
                let _ended = sandbox.to_open(&op.clone(), ToSupervisor::Cancel { op, grace_ms });
            }));
        }
    }

    fn started(&mut self, op: &OpId, attempt: u32, turn: &mut Turn) {
        let Phase::Up { boot, .. } = self.phase else {
            return;
        };
        let news = self.state.ops.get(op).is_some_and(|o| match &o.state {
            OpState::Intended { .. } => true,
            OpState::Running { attempt: known, .. } => *known < attempt,
            OpState::Settled { .. } => false,
        });
        if news {
            self.push(
                turn,
                Event::OpStarted {
                    op: op.clone(),
                    boot,
                    attempt,
                },
            );
            if let Some(live) = self.live.get(op) {
                // What it printed before it was run again is in other files.
                live.progress.send_modify(|p| {
                    if p.attempt != attempt {
                        p.attempt = attempt;
                        p.stdout = protocol::Offset(0);
                        p.stderr = protocol::Offset(0);
                    }
                });
            }
        }
    }

    pub(super) fn reply_attached(&mut self, op: OpId, reply: Reply<Attached>, turn: &mut Turn) {
        turn.after.push(Box::new(move |sandbox| {
            let attached = sandbox
                .attached(&op)
                .ok_or_else(|| error::no_op(&sandbox.name, &op));
            // A client that went away needs no answer; the operation goes on.
            let _gone = reply.send(attached);
        }));
    }

    pub(super) fn input(&self, op: &OpId, frame: ToSupervisor) -> Result<(), ApiError> {
        let takes = self
            .state
            .ops
            .get(op)
            .and_then(|o| o.open_spec())
            .map(|spec| spec.stdin);
        if takes == Some(false) {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("operation `{op}` was started without input"),
            )
            .hint("start it with stdin (`durable exec -i`)"));
        }
        self.to_open(op, frame)
    }

    /// Sends a frame about an open operation.
    pub(super) fn to_open(&self, op: &OpId, frame: ToSupervisor) -> Result<(), ApiError> {
        let Some(entry) = self.state.ops.get(op) else {
            return Err(error::no_op(&self.name, op));
        };
        if let Some(settlement) = entry.settlement() {
            let how = settlement.outcome.name();
            return Err(ApiError::new(
                ErrorCode::Conflict,
                format!("operation `{op}` has settled already ({how})"),
            ));
        }
        match &self.phase {
            Phase::Up { link, .. } => {
                link.send(frame);
                Ok(())
            }
            _ => Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("sandbox `{}` is not running", self.name),
            )
            .hint("try again in a moment")),
        }
    }
}
