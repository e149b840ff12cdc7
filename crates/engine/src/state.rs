//! What the journal says about one sandbox: a fold over its events, used alike for replay and live.
//!
//! Nothing here is remembered that the journal does not hold. A settled operation keeps only what an attach needs (who it
//! was, how it ended); its command is read from the journal when somebody asks, so memory does not grow with history.

use std::collections::{BTreeMap, VecDeque};

use protocol::{
    Boot, CutId, Event, Offset, OpId, OpSpec, Origin, Outcome, Role, SandboxSpec, Seq, SessionId,
    Settlement, UnixMillis, WorkspaceId,
};

/// Identity of a command, for "the same id again": equal means attach, different means refuse.
pub type Fingerprint = [u8; 16];

/// Returns the fingerprint of a command asked for by `origin`.
///
/// The shim's environment differs from one start of a harness to the next, so it does not count there.
#[must_use]
pub fn fingerprint(spec: &OpSpec, origin: Origin) -> Fingerprint {
    let env = match origin {
        Origin::Api | Origin::Daemon => Some(&spec.env),
        Origin::Shim => None,
    };
    let text = serde_json::to_vec(&(&spec.argv, &spec.cwd, env, &spec.user)).unwrap_or_default();
    let mut out = [0; 16];
    out.copy_from_slice(&blake3::hash(&text).as_bytes()[..16]);
    out
}

/// intended ──started──▶ running ──settled──▶ settled
///     └────────────────settled───────────────────▲
///                         running ──started (a later attempt, where `replay` allows)──▶ running
#[derive(Debug, Clone, PartialEq)]
pub enum OpState {
    /// Journaled, not known to be started.
    Intended {
        /// What was asked for.
        spec: Box<OpSpec>,
    },
    /// In the supervisor's hands.
    Running {
        /// What was asked for.
        spec: Box<OpSpec>,
        /// In which boot.
        boot: Boot,
        /// Which run.
        attempt: u32,
    },
    /// Ended, durably.
    Settled {
        /// How.
        settlement: Settlement,
        /// The cut after it.
        cut: Option<CutId>,
        /// The last run.
        attempt: u32,
        /// Where the settlement stands.
        at: Seq,
    },
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// Where its intent stands.
    pub intent: Seq,
    /// When its intent was written.
    pub intent_at: UnixMillis,
    /// Who asked.
    pub origin: Origin,
    /// Which part it plays.
    pub role: Role,
    /// The command's identity.
    pub fingerprint: Fingerprint,
    /// The cut before it.
    pub cut_before: Option<CutId>,
    /// How far it is.
    pub state: OpState,
}

impl Op {
    /// Returns the settlement, where there is one.
    #[must_use]
    pub fn settlement(&self) -> Option<&Settlement> {
        match &self.state {
            OpState::Settled { settlement, .. } => Some(settlement),
            OpState::Intended { .. } | OpState::Running { .. } => None,
        }
    }

    /// Returns what was asked for, while it is open.
    #[must_use]
    pub fn open_spec(&self) -> Option<&OpSpec> {
        match &self.state {
            OpState::Intended { spec } | OpState::Running { spec, .. } => Some(spec),
            OpState::Settled { .. } => None,
        }
    }

    /// Returns the number of the latest run, 1 where none began.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match &self.state {
            OpState::Intended { .. } => 1,
            OpState::Running { attempt, .. } | OpState::Settled { attempt, .. } => *attempt,
        }
    }
}

/// One durable agent conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// `claude`, `pi` …
    pub harness: String,
    /// The user's arguments.
    pub args: Vec<String>,
    /// The driver's memory.
    pub detail: serde_json::Value,
    /// 1 for the first start.
    pub attempt: u32,
    /// The operation that runs it now.
    pub op: OpId,
    /// Every operation that ran it, in order.
    pub runs: Vec<OpId>,
    /// Where it began; tool calls of the session come after it.
    pub began: Seq,
    /// When it began.
    pub began_at: UnixMillis,
    /// Operations and model answers seen when it was last resumed, to tell a loop from progress.
    pub resumed_at: Seq,
    /// Resumptions in a row that got nowhere.
    pub stuck: u32,
    /// Set when it ended: why it was given up, or nothing.
    pub ended: Option<Option<String>>,
}

/// The fold.
#[derive(Debug, Clone)]
pub struct State {
    /// What the sandbox was created with.
    pub spec: SandboxSpec,
    /// When.
    pub created_at: UnixMillis,
    /// The writable head.
    pub workspace: WorkspaceId,
    /// The boot that is believed to run.
    pub running: Option<Boot>,
    /// Every operation by id.
    pub ops: BTreeMap<OpId, Op>,
    /// Ids of operations that have not settled, oldest first.
    pub open: Vec<OpId>,
    /// Cuts that the pool still has, oldest first, with the head each was taken of.
    pub cuts: VecDeque<(WorkspaceId, CutId)>,
    /// Heads that were left by a rollback; their cuts may still be kept.
    pub retired: Vec<WorkspaceId>,
    /// Every session by id.
    pub sessions: BTreeMap<SessionId, Session>,
    /// Model requests.
    pub models: gateway::Models,
    /// The last request that left the sandbox.
    pub last_effect: Seq,
    /// The last place at which an operation settled or a model answered.
    progress: Seq,
}

impl State {
    /// Starts the fold with the first event; `None` where that is no `created`.
    #[must_use]
    pub fn begin(first: &protocol::Stored) -> Option<Self> {
        let Event::Created { spec, workspace } = &first.event else {
            return None;
        };
        Some(Self {
            spec: spec.clone(),
            created_at: first.at,
            workspace: workspace.clone(),
            running: None,
            ops: BTreeMap::new(),
            open: Vec::new(),
            cuts: VecDeque::new(),
            retired: Vec::new(),
            sessions: BTreeMap::new(),
            models: gateway::Models::default(),
            last_effect: Seq(0),
            progress: first.seq,
        })
    }

    /// Folds one journaled event in. Replay and live use run this same line, so they cannot disagree.
    pub fn apply(&mut self, stored: &protocol::Stored) {
        let seq = stored.seq;
        match &stored.event {
            Event::Created { .. } | Event::LeaseTaken { .. } | Event::OpAdopted { .. } => {}
            Event::Started { boot } => self.running = Some(*boot),
            Event::Ended { .. } => self.running = None,
            Event::OpIntent {
                op,
                spec,
                origin,
                cut_before,
            } => {
                let entry = Op {
                    intent: seq,
                    intent_at: stored.at,
                    origin: *origin,
                    role: spec.role,
                    fingerprint: fingerprint(spec, *origin),
                    cut_before: cut_before.clone(),
                    state: OpState::Intended {
                        spec: Box::new(spec.clone()),
                    },
                };
                self.ops.insert(op.clone(), entry);
                self.open.push(op.clone());
            }
            Event::OpStarted { op, boot, attempt } => {
                if let Some(entry) = self.ops.get_mut(op)
                    && let Some(spec) = entry.open_spec().cloned()
                {
                    let spec = Box::new(spec);
                    entry.state = OpState::Running {
                        spec,
                        boot: *boot,
                        attempt: *attempt,
                    };
                }
            }
            Event::OpSettled {
                op,
                settlement,
                cut,
            } => {
                self.progress = seq;
                if let Some(entry) = self.ops.get_mut(op) {
                    entry.state = OpState::Settled {
                        settlement: settlement.clone(),
                        cut: cut.clone(),
                        attempt: entry.attempt(),
                        at: seq,
                    };
                }
                self.open.retain(|open| open != op);
            }
            Event::CutTaken { cut, .. } => {
                self.cuts.push_back((self.workspace.clone(), cut.clone()));
            }
            Event::CutsDropped { cuts } => self.cuts.retain(|(_, cut)| !cuts.contains(cut)),
            Event::RolledBack { workspace, .. } => {
                let old = std::mem::replace(&mut self.workspace, workspace.clone());
                self.retired.push(old);
            }
            Event::ModelSettled { .. } => {
                self.progress = seq;
                self.models.apply(stored);
            }
            Event::ModelRequested { .. } => {
                self.last_effect = seq;
                self.models.apply(stored);
            }
            Event::ModelResponded { .. }
            | Event::ModelOutput { .. }
            | Event::ModelDelivered { .. } => self.models.apply(stored),
            Event::SessionStarted {
                session,
                harness,
                args,
                op,
                detail,
            } => {
                let entry = Session {
                    harness: harness.clone(),
                    args: args.clone(),
                    detail: detail.clone(),
                    attempt: 1,
                    op: op.clone(),
                    runs: vec![op.clone()],
                    began: seq,
                    began_at: stored.at,
                    resumed_at: seq,
                    stuck: 0,
                    ended: None,
                };
                self.sessions.insert(session.clone(), entry);
                self.models.apply(stored);
            }
            Event::SessionResumed {
                session,
                attempt,
                op,
                ..
            } => {
                let progress = self.progress;
                if let Some(entry) = self.sessions.get_mut(session) {
                    // The lost harness operation itself settles; that alone is no progress.
                    let own = self.ops.get(&entry.op).map_or(Seq(0), |o| match o.state {
                        OpState::Settled { at, .. } => at,
                        OpState::Intended { .. } | OpState::Running { .. } => Seq(0),
                    });
                    let moved = progress > entry.resumed_at && progress != own;
                    entry.stuck = if moved { 0 } else { entry.stuck + 1 };
                    entry.attempt = *attempt;
                    entry.op = op.clone();
                    entry.runs.push(op.clone());
                    entry.resumed_at = seq;
                }
                self.models.apply(stored);
            }
            Event::SessionEnded { session, error } => {
                if let Some(entry) = self.sessions.get_mut(session) {
                    entry.ended = Some(error.clone());
                }
                self.models.apply(stored);
            }
        }
    }

    /// Returns the last cut.
    #[must_use]
    pub fn last_cut(&self) -> Option<&CutId> {
        self.cuts.back().map(|(_, cut)| cut)
    }

    /// Returns the session that is going on, if one is.
    #[must_use]
    pub fn active_session(&self) -> Option<(&SessionId, &Session)> {
        self.sessions
            .iter()
            .find(|(_, session)| session.ended.is_none())
    }
}

/// Returns the settlement of an operation whose end nobody saw.
#[must_use]
pub fn lost(stdout: Offset, stderr: Offset, why: &str) -> Settlement {
    Settlement {
        outcome: Outcome::Lost,
        stdout_bytes: stdout,
        stderr_bytes: stderr,
        duration_ms: 0,
        error: Some(why.to_owned()),
    }
}
