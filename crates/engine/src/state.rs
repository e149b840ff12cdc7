//! What the journal says about one sandbox: a fold over its events, used alike for replay and live.
//!
//! Nothing here is remembered that the journal does not hold. A settled operation keeps only what an attach needs (who it
//! was, how it ended); its command is read from the journal when somebody asks, so memory does not grow with history.

use std::collections::{BTreeMap, VecDeque};

use protocol::{
    ApprovalId, AskedBody, Boot, CutId, EffectId, EffectKind, Event, Offset, OpId, OpSpec, Origin,
    Outcome, Outgoing, Replay, Role, SandboxId, SandboxName, SandboxSpec, Seq, SessionId,
    Settlement, UnixMillis, WorkspaceId,
};

use crate::writes::Writes;

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
    /// On which branch it was asked for: how often the sandbox had been rewound.
    pub branch: u32,
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

    /// Settles it at a place where nobody can see its end, whatever was known of it elsewhere.
    fn lose(&mut self, why: &str, cut: Option<CutId>, at: Seq) {
        let (stdout, stderr) = self
            .settlement()
            .map_or_else(Default::default, |s| (s.stdout_bytes, s.stderr_bytes));
        self.state = OpState::Settled {
            settlement: lost(stdout, stderr, why),
            cut,
            attempt: self.attempt(),
            at,
        };
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

/// One cut that the pool has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The head that it was taken of.
    pub workspace: WorkspaceId,
    /// Its id.
    pub id: CutId,
    /// Where it stands in the journal.
    pub at: Seq,
    /// The last settlement that was journaled with it: the place that it is a checkpoint of.
    pub until: Seq,
    /// When it was taken.
    pub at_ms: UnixMillis,
    /// Its name, where it is kept for ever.
    pub label: Option<String>,
    /// Whether no operation was running at that instant.
    pub quiet: bool,
    /// Whether every process stood still at that instant.
    pub still: bool,
    /// Whether a rewind left it on another branch.
    pub abandoned: bool,
    /// Whether a blob store has it.
    pub replicated: bool,
}

/// Where a fork came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// What its source was called.
    pub name: SandboxName,
    /// Its source's number.
    pub id: SandboxId,
    /// The place in the source's journal.
    pub at: Seq,
    /// The cut that both have.
    pub cut: Option<CutId>,
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
    /// What it was forked from.
    pub parent: Option<Parent>,
    /// Whether it goes with the client that asked for it.
    pub bound: bool,
    /// Operations of branches that a rewind left, by id and branch.
    pub abandoned: BTreeMap<(OpId, u32), Op>,
    /// How often it was rewound.
    pub branch: u32,
    /// Each rewind: where it stands, and the place that the timeline went on from.
    rewinds: Vec<(Seq, Seq)>,
    /// Where cuts stood that were given back.
    dropped: Vec<Seq>,
    /// Cuts that the pool still has, oldest first.
    pub cuts: VecDeque<Cut>,
    /// The cut that the files were last the same as.
    tip: Option<CutId>,
    /// Heads that were left by a rollback; their cuts may still be kept.
    pub retired: Vec<WorkspaceId>,
    /// Every session by id.
    pub sessions: BTreeMap<SessionId, Session>,
    /// Model requests.
    pub models: gateway::Models,
    /// The last request to a model.
    pub last_model: Seq,
    /// What left of operations that may be rolled back, and may have changed something.
    pub writes: Writes,
    /// Requests that have left and whose end is not known, with the place where they began.
    pub effects: BTreeMap<EffectId, Seq>,
    /// Requests that wait for a person's word, and words that were given and not used.
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// The last place at which an operation settled or a model answered.
    progress: Seq,
}

/// A request that waits for a person's word, or has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// What is to leave.
    pub request: Outgoing,
    /// The rule that wants it asked.
    pub rule: String,
    /// What the word is good for.
    pub digest: String,
    /// What is known of its body.
    pub body: Option<AskedBody>,
    /// How long it is held.
    pub timeout_ms: Option<u64>,
    /// When it was asked.
    pub asked_at: UnixMillis,
    /// The word, once it was given.
    pub allowed: Option<bool>,
}

impl State {
    /// Starts the fold with the first event; `None` where that is no `created`.
    #[must_use]
    pub fn begin(first: &protocol::Stored) -> Option<Self> {
        let (spec, workspace, parent, bound) = match &first.event {
            Event::Created { spec, workspace } => (spec, workspace, None, false),
            Event::Forked {
                spec,
                workspace,
                from,
                from_id,
                at,
                cut,
                bound,
            } => {
                let parent = Parent {
                    name: from.clone(),
                    id: *from_id,
                    at: *at,
                    cut: cut.clone(),
                };
                (spec, workspace, Some(parent), *bound)
            }
            _ => return None,
        };
        let tip = parent.as_ref().and_then(|parent| parent.cut.clone());
        let kept = tip.clone().map(|id| Cut {
            workspace: workspace.clone(),
            id,
            at: first.seq,
            until: first.seq,
            at_ms: first.at,
            label: None,
            quiet: true,
            still: true,
            abandoned: false,
            replicated: false,
        });
        Some(Self {
            spec: spec.clone(),
            created_at: first.at,
            workspace: workspace.clone(),
            running: None,
            ops: BTreeMap::new(),
            open: Vec::new(),
            parent,
            bound,
            abandoned: BTreeMap::new(),
            branch: 0,
            rewinds: Vec::new(),
            dropped: Vec::new(),
            cuts: kept.into_iter().collect(),
            tip,
            retired: Vec::new(),
            sessions: BTreeMap::new(),
            models: gateway::Models::default(),
            last_model: Seq(0),
            writes: Writes::default(),
            effects: BTreeMap::new(),
            approvals: BTreeMap::new(),
            progress: first.seq,
        })
    }

    /// Folds one journaled event in. Replay and live use run this same line, so they cannot disagree.
    pub fn apply(&mut self, stored: &protocol::Stored) {
        let seq = stored.seq;
        match &stored.event {
            Event::Created { .. }
            | Event::Forked { .. }
            | Event::LeaseTaken { .. }
            | Event::OpAdopted { .. }
            | Event::EgressDenied { .. } => {}
            Event::Kept => self.bound = false,
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
                    branch: self.branch,
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
                if let Some(last) = self.cuts.back_mut()
                    && cut.as_ref() == Some(&last.id)
                    && last.until.next() == seq
                {
                    last.until = seq;
                }
                if let Some(entry) = self.ops.get_mut(op) {
                    entry.state = OpState::Settled {
                        settlement: settlement.clone(),
                        cut: cut.clone(),
                        attempt: entry.attempt(),
                        at: seq,
                    };
                }
                self.open.retain(|open| open != op);
                let since = self.rolls_since();
                self.writes.forget(op, since);
            }
            Event::CutTaken { cut, open, still } => {
                self.cuts.push_back(Cut {
                    workspace: self.workspace.clone(),
                    id: cut.clone(),
                    at: seq,
                    until: seq,
                    at_ms: stored.at,
                    label: None,
                    quiet: open.is_empty(),
                    still: *still,
                    abandoned: false,
                    replicated: false,
                });
                self.tip = Some(cut.clone());
            }
            Event::CutLabeled { cut, label } => {
                if let Some(known) = self.cuts.iter_mut().find(|known| known.id == *cut) {
                    known.label.clone_from(label);
                }
            }
            Event::CutsDropped { cuts } => {
                let all = std::mem::take(&mut self.cuts).into_iter();
                let (dropped, kept): (VecDeque<Cut>, _) =
                    all.partition(|cut| cuts.contains(&cut.id));
                self.cuts = kept;
                self.dropped.extend(dropped.iter().map(|cut| cut.at));
            }
            Event::Replicated { cuts, .. } => {
                for cut in self.cuts.iter_mut().filter(|cut| cuts.contains(&cut.id)) {
                    cut.replicated = true;
                }
            }
            Event::Pulled {
                workspace, cuts, ..
            } => self.arrive(seq, workspace, cuts),
            Event::Rewound { at, to, workspace } => self.rewind(seq, *at, to, workspace),
            Event::RolledBack { workspace, .. } => {
                self.writes.expect_again();
                let old = std::mem::replace(&mut self.workspace, workspace.clone());
                self.retired.push(old);
            }
            Event::ModelSettled { .. } => {
                self.progress = seq;
                self.models.apply(stored);
            }
            Event::ModelRequested { .. } => {
                self.last_model = seq;
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
            Event::EffectBegun {
                effect,
                class,
                request,
                head,
                ..
            } => {
                if *class == EffectKind::Write && self.rolls_since().is_some() {
                    let (effect, request) = (effect.clone(), request.clone());
                    self.writes.begin(effect, seq, request, head.clone());
                }
                self.effects.insert(effect.clone(), seq);
            }
            Event::EffectOutput { effect, .. } => self.writes.output(effect),
            Event::EffectSettled {
                effect,
                sent,
                error,
                answer,
                unrecorded,
                ..
            } => {
                self.effects.remove(effect);
                let end = match (answer, sent) {
                    (Some(_), Some(sent)) => Ok(sent.clone()),
                    _ => Err(unrecorded
                        .as_ref()
                        .or(error.as_ref())
                        .map_or_else(|| "its answer is not recorded".to_owned(), Clone::clone)),
                };
                self.writes.settle(effect, seq, end);
            }
            Event::EffectReplayed { of, .. } => self.writes.replayed(of),
            Event::ReplayDiverged { request, message } => {
                if let Some(op) = &request.op {
                    self.writes.diverge(op.clone(), message.clone());
                }
            }
            Event::ApprovalAsked {
                approval,
                request,
                rule,
                digest,
                body,
                timeout_ms,
            } => {
                let asked = Approval {
                    request: request.clone(),
                    rule: rule.clone(),
                    digest: digest.clone(),
                    body: body.clone(),
                    timeout_ms: *timeout_ms,
                    asked_at: stored.at,
                    allowed: None,
                };
                self.approvals.insert(approval.clone(), asked);
            }
            Event::ApprovalDecided { approval, allowed } => {
                if let Some(asked) = self.approvals.get_mut(approval) {
                    asked.allowed = Some(*allowed);
                }
            }
            Event::ApprovalUsed { approval } | Event::ApprovalExpired { approval } => {
                self.approvals.remove(approval);
            }
            Event::PolicySet { policy } => {
                self.spec.policy = (!policy.is_empty()).then(|| policy.clone());
            }
        }
    }

    /// Returns where the first open operation was asked for that may be rolled back.
    #[must_use]
    pub fn rolls_since(&self) -> Option<Seq> {
        let open = self.open.iter().filter_map(|id| self.ops.get(id));
        let rolls = open.filter(|op| {
            op.open_spec()
                .is_some_and(|spec| spec.replay == Replay::Rollback)
        });
        rolls.map(|op| op.intent).min()
    }

    /// Returns the last cut of this timeline.
    #[must_use]
    pub fn last_cut(&self) -> Option<&CutId> {
        self.tip.as_ref()
    }

    /// Returns where somebody last went back.
    #[must_use]
    pub fn last_rewind(&self) -> Option<Seq> {
        self.rewinds.last().map(|(seq, _)| *seq)
    }

    /// Finds a cut that the pool has.
    #[must_use]
    pub fn cut(&self, id: &CutId) -> Option<&Cut> {
        self.cuts.iter().find(|cut| cut.id == *id)
    }

    /// Returns the source and the cut of a fork whose files are still that cut's: nothing was ever run in it.
    #[must_use]
    pub fn as_forked(&self) -> Option<(SandboxId, &CutId)> {
        let parent = self.parent.as_ref()?;
        let untouched = self.ops.is_empty() && self.abandoned.is_empty() && self.branch == 0;
        let cut = parent.cut.as_ref()?;
        (untouched && self.cuts.iter().any(|kept| kept.id == *cut)).then_some((parent.id, cut))
    }

    /// Returns the stretches of the journal that lead to `place`, the latest first: what a rewind left is in none.
    fn timeline(&self, place: Seq) -> Vec<(Seq, Seq)> {
        let mut stretches = Vec::new();
        let mut end = place;
        for (seq, at) in self.rewinds.iter().rev() {
            if *seq <= end {
                stretches.push((*seq, end));
                end = *at;
            }
        }
        stretches.push((Seq(1), end));
        stretches
    }

    /// Whether what stands at `early` came before `late` on one timeline: no rewind left it between them.
    #[must_use]
    pub fn leads_to(&self, early: Seq, late: Seq) -> bool {
        let stretches = self.timeline(late);
        stretches
            .iter()
            .any(|(from, to)| early >= *from && early <= *to)
    }

    /// Finds the cut that holds the files as they were at a place in the journal; `None` where they were as created.
    ///
    /// # Errors
    /// The place of a cut that was given back.
    pub fn cut_at(&self, place: Seq) -> Result<Option<&Cut>, Seq> {
        for (from, to) in self.timeline(place) {
            let inside = |at: &Seq| *at >= from && *at <= to;
            let kept = self.cuts.iter().filter(|cut| inside(&cut.at));
            let kept = kept.max_by_key(|cut| cut.at);
            let dropped = self.dropped.iter().filter(|at| inside(at)).max();
            match (kept, dropped) {
                (Some(kept), dropped) if dropped.is_none_or(|at| *at < kept.at) => {
                    return Ok(Some(kept));
                }
                (_, Some(dropped)) => return Err(*dropped),
                (_, None) => {}
            }
        }
        Ok(None)
    }

    /// Goes on in another place, with the cuts that came along. What ran where it came from cannot be seen from here.
    fn arrive(&mut self, now: Seq, workspace: &WorkspaceId, cuts: &[CutId]) {
        self.workspace.clone_from(workspace);
        self.retired.clear();
        self.running = None;
        // Numbers of sandboxes, and clients, mean something in one data directory only.
        self.parent = None;
        self.bound = false;
        let all = std::mem::take(&mut self.cuts).into_iter();
        let (came, left): (VecDeque<Cut>, _) = all.partition(|cut| cuts.contains(&cut.id));
        self.cuts = came;
        self.dropped.extend(left.iter().map(|cut| cut.at));
        for cut in &mut self.cuts {
            cut.workspace.clone_from(workspace);
            cut.replicated = true;
        }
        for id in std::mem::take(&mut self.open) {
            if let Some(op) = self.ops.get_mut(&id) {
                let why =
                    "it had not ended when the sandbox was pushed, and nobody here can see its end";
                op.lose(why, self.tip.clone(), now);
            }
        }
        self.writes.clear();
        self.end_sessions("the sandbox was pulled to another place");
    }

    fn end_sessions(&mut self, why: &str) {
        for session in self.sessions.values_mut() {
            session.ended.get_or_insert_with(|| Some(why.to_owned()));
        }
    }

    /// Leaves everything behind that does not lead to `at`. Nothing runs: the sandbox was stopped before.
    fn rewind(&mut self, now: Seq, at: Seq, to: &Option<CutId>, workspace: &WorkspaceId) {
        let old = std::mem::replace(&mut self.workspace, workspace.clone());
        self.retired.push(old);
        self.tip.clone_from(to);
        self.branch += 1;
        self.running = None;
        self.open.clear();
        let stretches = self.timeline(at);
        let leads_here = |place: Seq| {
            stretches
                .iter()
                .any(|(from, to)| place >= *from && place <= *to)
        };
        for cut in &mut self.cuts {
            cut.abandoned = !leads_here(cut.at);
        }
        let ops = std::mem::take(&mut self.ops);
        let mut all = std::mem::take(&mut self.abandoned);
        all.extend(ops.into_iter().map(|(id, op)| ((id, op.branch), op)));
        for ((id, branch), mut op) in all {
            if !leads_here(op.intent) {
                self.abandoned.insert((id, branch), op);
                continue;
            }
            // One that was running at that place: what it did afterwards is undone.
            if !matches!(op.state, OpState::Settled { at: end, .. } if leads_here(end)) {
                let why = "the sandbox was rewound to a place before its end";
                op.lose(why, to.clone(), now);
            }
            self.ops.insert(id, op);
        }
        // What was answered on the branch that is left is nothing to whoever runs on this one.
        self.writes.clear();
        self.end_sessions("the sandbox was rewound");
        self.rewinds.push((now, at));
    }

    /// Finds an operation: of this timeline, else the latest one of its id on a branch that was left.
    #[must_use]
    pub fn any_op(&self, id: &OpId) -> Option<&Op> {
        let left = || {
            let of_id = self
                .abandoned
                .range((id.clone(), 0)..=(id.clone(), u32::MAX));
            of_id.map(|(_, op)| op).next_back()
        };
        self.ops.get(id).or_else(left)
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
