//! Checkpoints as users see them: taken, named, found by what people call a place, held for a fork, and gone back to.

use std::collections::HashMap;

use protocol::api::CheckpointView;
use protocol::{ApiError, CutId, ErrorCode, Event, OpId, SandboxName, Seq, WorkspaceId};

use super::actor::{Done, Phase, Sandbox, Turn, answer};
use super::{Handle, Reply, Request};
use crate::remote::push::{Outgoing, Which};
use crate::state::{Cut, OpState};
use crate::trees::Ops;
use crate::{branch, error, trees};

/// The word for the workspace as it was created.
const START: &str = "start";
/// A label is short enough for a column.
const MAX_LABEL: usize = 64;

/// A place in a sandbox's journal with the files as they were there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The place.
    pub at: Seq,
    /// The head and the cut that hold the files; none where they were as created.
    pub cut: Option<(WorkspaceId, CutId)>,
}

/// Keeps a cut from being given back until it is dropped.
pub struct Held {
    /// What is held.
    pub place: Place,
    handle: Handle,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((_, cut)) = self.place.cut.take() else {
            return;
        };
        let requests = self.handle.requests.clone();
        // Where the queue is full somebody must wait, and a drop cannot.
        tokio::spawn(async move {
            // A sandbox that is gone holds nothing.
            let _gone = requests.send(Request::Release { cut }).await;
        });
    }
}

/// A request that waits for the next cut.
pub(super) struct Asked {
    pub(super) label: Option<String>,
    pub(super) hold: Hold,
    pub(super) reply: Reply<Place>,
}

/// Whether the cut is to be held for the asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Yes,
    No,
}

impl Handle {
    /// Takes a checkpoint of the files as they are now; the last one where nothing changed since. Processes go on.
    ///
    /// # Errors
    /// `conflict` for a label that is taken, `invalid` where there is nothing in the workspace yet.
    pub async fn checkpoint(&self, label: Option<String>) -> Result<CheckpointView, ApiError> {
        if let Some(label) = &label {
            check_label(label)?;
        }
        let hold = Hold::No;
        let place = self
            .ask(|reply| Request::Checkpoint { label, hold, reply })
            .await?;
        let Some((_, id)) = place.cut else {
            let empty = format!("sandbox `{}` has no files of its own yet", self.name);
            return Err(ApiError::new(ErrorCode::Invalid, empty)
                .hint("that place needs no checkpoint: it is called `start`"));
        };
        let mut cuts = self.ask(|reply| Request::Checkpoints { reply }).await?;
        let at = cuts.iter().position(|(_, view)| view.id == id);
        let Some(at) = at else {
            return Err(unknown(&self.name, id.as_str()));
        };
        // Only this one, and the one before it to compare with: to look through that as well would cost all of the tree.
        cuts.truncate(at + 1);
        let this = cuts.split_off(at);
        let before = cuts.pop().map(|(cut, _)| cut);
        let costed = self.with_costs(before, this).await?;
        costed
            .into_iter()
            .next_back()
            .ok_or_else(|| unknown(&self.name, id.as_str()))
    }

    /// Lists every checkpoint, oldest first.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn checkpoints(&self) -> Result<Vec<CheckpointView>, ApiError> {
        let cuts = self.ask(|reply| Request::Checkpoints { reply }).await?;
        self.with_costs(None, cuts).await
    }

    /// Adds what each costs, against the one before it of the same head.
    async fn with_costs(
        &self,
        mut before: Option<Cut>,
        cuts: Vec<(Cut, CheckpointView)>,
    ) -> Result<Vec<CheckpointView>, ApiError> {
        let shared = self.shared.clone();
        let costs = tokio::task::spawn_blocking(move || {
            let mut views = Vec::with_capacity(cuts.len());
            for (cut, mut view) in cuts {
                let earlier = before.as_ref().filter(|b| b.workspace == cut.workspace);
                let earlier = earlier.map(|before| &before.id);
                // One that was given back meanwhile costs nothing that can be told.
                let cost = shared.pool.cost(&cut.workspace, &cut.id, earlier);
                view.cost_bytes = cost.ok().flatten();
                views.push(view);
                before = Some(cut);
            }
            views
        });
        costs
            .await
            .map_err(|e| error::internal("the checkpoints could not be looked at", &e))
    }

    /// Gives a checkpoint a name, or takes it off.
    ///
    /// # Errors
    /// `not_found`; `conflict` for a label that is taken.
    pub async fn label(&self, at: String, label: Option<String>) -> Result<(), ApiError> {
        if let Some(label) = &label {
            check_label(label)?;
        }
        self.ask(|reply| Request::Label { at, label, reply }).await
    }

    /// Finds a place and keeps its cut until the answer is dropped. Without a place: as it is now, of which a cut is taken.
    ///
    /// # Errors
    /// `not_found` for a place that is not there or whose cut was given back.
    pub async fn hold(&self, at: Option<String>) -> Result<Held, ApiError> {
        let place = match at {
            Some(at) => self.ask(|reply| Request::Locate { at, reply }).await?,
            None => {
                let (label, hold) = (None, Hold::Yes);
                self.ask(|reply| Request::Checkpoint { label, hold, reply })
                    .await?
            }
        };
        Ok(self.held(place))
    }

    /// Takes over what the task holds for us.
    pub(crate) fn held(&self, place: Place) -> Held {
        Held {
            place,
            handle: self.clone(),
        }
    }

    /// Ends every process and puts files and timeline back to a place. What came after stays readable.
    ///
    /// # Errors
    /// `not_found` for a place that is not there or whose cut was given back; nothing is changed then but that the sandbox
    /// was stopped.
    pub async fn rewind(&self, to: String, grace_ms: u64) -> Result<(), ApiError> {
        // Before anything is stopped: neither a place that is not there nor a full disk stops anybody.
        self.shared.room_to_begin()?;
        let held = self.hold(Some(to.clone())).await?;
        let mut patience = 5;
        loop {
            self.stop(grace_ms).await?;
            let to = to.clone();
            match self.ask(|reply| Request::Rewind { to, reply }).await {
                // Somebody started it again in between.
                Err(busy) if busy.code == ErrorCode::Unavailable && patience > 0 => patience -= 1,
                done => {
                    drop(held);
                    return done;
                }
            }
        }
    }
}

impl Sandbox {
    pub(super) fn checkpoint(&mut self, asked: Asked, turn: &mut Turn) {
        if let Some(problem) = &self.problem {
            // One that went on elsewhere takes no cuts any more. Who only looks, or forks, gets the last one.
            let looks = asked.hold == Hold::Yes && problem.code == ErrorCode::Conflict;
            let place = match looks {
                true => Ok(self.last_place()),
                false => Err(problem.clone()),
            };
            if let Ok(place) = &place {
                self.hold(place);
            }
            answer(turn, asked.reply, place);
            return;
        }
        if let Some(label) = &asked.label
            && let Some(taken) = self.labeled(label)
        {
            let problem = label_taken(&self.name, label, &taken.id);
            answer(turn, asked.reply, Err(problem));
            return;
        }
        self.asked.push(asked);
        self.maybe_cut();
    }

    /// Answers those who asked for the cut that was just taken, or found to need no taking.
    pub(super) fn checkpointed(
        &mut self,
        asked: Vec<Asked>,
        failed: Option<&ApiError>,
        turn: &mut Turn,
    ) {
        for Asked { label, hold, reply } in asked {
            if let Some(failed) = failed {
                answer(turn, reply, Err(failed.clone()));
                continue;
            }
            let tip = self
                .state
                .last_cut()
                .and_then(|id| self.state.cut(id))
                .cloned();
            if let (Some(label), Some(tip)) = (label, &tip) {
                if let Some(taken) = self.labeled(&label) {
                    let problem = label_taken(&self.name, &label, &taken.id);
                    answer(turn, reply, Err(problem));
                    continue;
                }
                // Nothing changed since: the name that it has is not taken off without a word.
                if let Some(other) = tip.label.as_ref().filter(|other| **other != label) {
                    let problem = labeled_already(&self.name, other, &tip.id);
                    answer(turn, reply, Err(problem));
                    continue;
                }
                self.push(
                    turn,
                    Event::CutLabeled {
                        cut: tip.id.clone(),
                        label: Some(label),
                    },
                );
            }
            let place = Place {
                at: Seq(self.head.seq.0 + turn.events.len() as u64),
                cut: tip.map(|cut| (cut.workspace, cut.id)),
            };
            if hold == Hold::Yes {
                self.hold(&place);
            }
            answer(turn, reply, Ok(place));
        }
    }

    /// The end of the journal with the last cut.
    fn last_place(&self) -> Place {
        let tip = self.state.last_cut().and_then(|id| self.state.cut(id));
        Place {
            at: self.head.seq,
            cut: tip.map(|cut| (cut.workspace.clone(), cut.id.clone())),
        }
    }

    pub(super) fn checkpoint_views(&self) -> Vec<(Cut, CheckpointView)> {
        let current = self.state.last_cut();
        let view = |cut: &Cut| CheckpointView {
            id: cut.id.clone(),
            seq: cut.at,
            at_ms: cut.at_ms,
            label: cut.label.clone(),
            current: current == Some(&cut.id),
            abandoned: cut.abandoned,
            quiet: cut.quiet,
            still: cut.still,
            holds: "files".to_owned(),
            durability: if cut.replicated {
                "replicated"
            } else {
                "local"
            }
            .to_owned(),
            cost_bytes: None,
        };
        let cuts = self.state.cuts.iter();
        cuts.map(|cut| (cut.clone(), view(cut))).collect()
    }

    /// Lists every cut with the operations that may have changed what is in it and not in the one before.
    pub(super) fn cuts_with_ops(&self) -> Vec<(Cut, Ops)> {
        let cuts = self.state.cuts.iter().cloned().collect();
        let mut ended: Vec<(Seq, OpId)> = Vec::new();
        for (id, op) in &self.state.ops {
            // One that settled without a cut changed nothing.
            if let OpState::Settled {
                at, cut: Some(_), ..
            } = &op.state
            {
                ended.push((*at, id.clone()));
            }
        }
        ended.sort();
        let open_at = |place: Seq| {
            let open = self.state.ops.iter().filter(|(_, op)| {
                let ended = match &op.state {
                    OpState::Settled { at, .. } => *at,
                    OpState::Intended { .. } | OpState::Running { .. } => Seq(u64::MAX),
                };
                op.intent < place && ended > place
            });
            open.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        trees::ops_of_cuts(cuts, &ended, open_at)
    }

    pub(super) fn set_label(
        &mut self,
        at: &str,
        label: Option<String>,
        turn: &mut Turn,
    ) -> Result<(), ApiError> {
        let place = self.place(at)?;
        let Some((_, cut)) = place.cut else {
            return Err(unknown(&self.name, at));
        };
        if let Some(label) = &label
            && let Some(taken) = self.labeled(label)
        {
            if taken.id == cut {
                return Ok(());
            }
            return Err(label_taken(&self.name, label, &taken.id));
        }
        self.push(turn, Event::CutLabeled { cut, label });
        Ok(())
    }

    fn labeled(&self, label: &str) -> Option<&Cut> {
        let mut cuts = self.state.cuts.iter();
        cuts.find(|cut| cut.label.as_deref() == Some(label))
    }

    /// Finds what people call a place: a checkpoint's id or label, a place in the journal, or `start`.
    pub(super) fn place(&self, text: &str) -> Result<Place, ApiError> {
        let of = |cut: &Cut, at| Place {
            at,
            cut: Some((cut.workspace.clone(), cut.id.clone())),
        };
        if text == START {
            // A fork starts with its source's cut.
            let first = self.state.cut_at(Seq(1)).map_err(|_| self.dropped(text))?;
            return Ok(first.map_or(
                Place {
                    at: Seq(1),
                    cut: None,
                },
                |cut| of(cut, Seq(1)),
            ));
        }
        if let Ok(at) = text.parse::<Seq>() {
            if at == Seq(0) || at > self.head.seq {
                let message = format!(
                    "sandbox `{}` has no event {at}: its journal ends at {}",
                    self.name, self.head.seq
                );
                return Err(ApiError::new(ErrorCode::NotFound, message)
                    .hint(format!("`durable log {}` shows every place", self.name)));
            }
            let cut = self.state.cut_at(at).map_err(|_| self.dropped(text))?;
            return Ok(cut.map_or(Place { at, cut: None }, |cut| of(cut, at)));
        }
        let by_id = self.state.cuts.iter().find(|cut| cut.id.as_str() == text);
        by_id
            .or_else(|| self.labeled(text))
            .map(|cut| of(cut, cut.until))
            .ok_or_else(|| unknown(&self.name, text))
    }

    fn dropped(&self, text: &str) -> ApiError {
        let message = format!(
            "the files of sandbox `{}` at `{text}` are not kept any more",
            self.name
        );
        let hint = format!(
            "`durable checkpoint ls {}` lists what is; a label keeps a checkpoint for ever",
            self.name
        );
        ApiError::new(ErrorCode::NotFound, message).hint(hint)
    }

    /// Returns what a push needs, and holds its cuts.
    pub(super) fn outgoing(&mut self, after: Seq, which: Which) -> Result<Outgoing, ApiError> {
        // One that was overtaken elsewhere can still be pushed under another name.
        if let Some(problem) = &self.problem
            && problem.code != ErrorCode::Conflict
        {
            return Err(problem.clone());
        }
        let outgoing = Outgoing::new(&self.state, self.head, after, which);
        for place in outgoing.places() {
            self.hold(&place);
        }
        Ok(outgoing)
    }

    pub(super) fn hold(&mut self, place: &Place) {
        if let Some((_, cut)) = &place.cut {
            *self.held.entry(cut.clone()).or_insert(0) += 1;
        }
    }

    pub(super) fn rewind(&mut self, to: &str, reply: Reply<()>, turn: &mut Turn) {
        let place = match (&self.problem, self.place(to)) {
            (Some(problem), _) => return answer(turn, reply, Err(problem.clone())),
            (None, Err(problem)) => return answer(turn, reply, Err(problem)),
            (None, Ok(place)) => place,
        };
        let quiet = matches!(self.phase, Phase::Down)
            && !self.cutting
            && self.settling.is_empty()
            && self.after_crash.is_none();
        if !quiet {
            let busy = format!("sandbox `{}` is not at rest", self.name);
            let busy = ApiError::new(ErrorCode::Unavailable, busy).hint("try again");
            return answer(turn, reply, Err(busy));
        }
        self.phase = Phase::Crashing {
            stopped: Vec::new(),
        };
        let (shared, done) = (self.shared.clone(), self.done.clone());
        let of = self.state.workspace.clone();
        tokio::task::spawn_blocking(move || {
            let restored = match &place.cut {
                Some((of, cut)) => shared.pool.restore(of, Some(cut)),
                None => shared.pool.restore(&of, None),
            };
            let result = restored.map_err(|e| error::of_pool(&e));
            let _ended = done.send(Done::Rewound {
                place,
                result,
                reply,
            });
        });
    }

    pub(super) fn rewound(
        &mut self,
        place: Place,
        result: Result<WorkspaceId, ApiError>,
        reply: Reply<()>,
        turn: &mut Turn,
    ) {
        let stopped = match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Crashing { stopped } => stopped,
            other => {
                self.phase = other;
                Vec::new()
            }
        };
        for reply in stopped {
            answer(turn, reply, Ok(()));
        }
        let workspace = match result {
            Ok(workspace) => workspace,
            Err(problem) => {
                answer(turn, reply, Err(problem));
                turn.after.push(Box::new(Self::go_on));
                return;
            }
        };
        failpoint::hit("before_rewound");
        self.push(
            turn,
            Event::Rewound {
                at: place.at,
                to: place.cut.map(|(_, cut)| cut),
                workspace,
            },
        );
        turn.after.push(Box::new(|sandbox| {
            failpoint::hit("after_rewound");
            if let Err(failure) = branch::settle(&sandbox.dir, sandbox.state.branch) {
                let what = "the output of the branch that was left cannot be set aside";
                let problem = error::internal(what, &failure);
                let _gone = reply.send(Err(problem.clone()));
                sandbox.fail(problem);
                return;
            }
            if let Some(old) = sandbox.state.retired.last().cloned() {
                let shared = sandbox.shared.clone();
                tokio::task::spawn_blocking(move || {
                    if let Err(failure) = shared.pool.retire(&old) {
                        tracing::warn!(error = %error::chain(&failure), "an old head stays");
                    }
                });
            }
            let _gone = reply.send(Ok(()));
            sandbox.go_on();
        }));
    }

    /// Starts the supervisor where somebody waited for the end of what held it back.
    fn go_on(&mut self) {
        let waits = !self.waiting.is_empty() || !self.starters.is_empty();
        if waits && matches!(self.phase, Phase::Down) {
            self.begin_start();
        }
        self.maybe_cut();
    }
}

/// Cuts that somebody holds, and how often.
pub(super) type Holds = HashMap<CutId, usize>;

pub(super) fn release(holds: &mut Holds, cut: &CutId) {
    if let Some(count) = holds.get_mut(cut) {
        *count -= 1;
        if *count == 0 {
            holds.remove(cut);
        }
    }
}

pub(super) fn unknown(name: &SandboxName, text: &str) -> ApiError {
    let text: String = text.chars().take(MAX_LABEL).collect();
    let message = format!("sandbox `{name}` has no checkpoint {text:?}");
    ApiError::new(ErrorCode::NotFound, message).hint(format!(
        "`durable checkpoint ls {name}` lists them; a place in the journal and `start` do as well"
    ))
}

fn label_taken(name: &SandboxName, label: &str, by: &CutId) -> ApiError {
    let message = format!("label `{label}` of sandbox `{name}` belongs to checkpoint {by}");
    ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "pick another, or take it off first: `durable checkpoint unlabel {name} {label}`"
    ))
}

fn labeled_already(name: &SandboxName, other: &str, cut: &CutId) -> ApiError {
    let message = format!(
        "nothing changed in sandbox `{name}` since checkpoint {cut}, which is labeled `{other}`"
    );
    ApiError::new(ErrorCode::Conflict, message).hint(format!(
        "use that label, or take it off first: `durable checkpoint unlabel {name} {other}`"
    ))
}

/// A label must not look like anything else that names a place.
fn check_label(label: &str) -> Result<(), ApiError> {
    let why = if label.is_empty() || label.len() > MAX_LABEL {
        "it must have 1 to 64 characters"
    } else if label == START || label.bytes().all(|b| b.is_ascii_digit()) {
        "`start` and numbers name places already"
    } else if label.contains(['@', '/'])
        || label.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        "`@`, `/` and white space are not allowed"
    } else {
        return Ok(());
    };
    let label: String = label.chars().take(MAX_LABEL).collect();
    Err(ApiError::new(
        ErrorCode::Invalid,
        format!("label {label:?} is not usable: {why}"),
    ))
}
