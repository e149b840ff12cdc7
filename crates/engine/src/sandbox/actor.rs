//! The task itself: batches in, one append, answers and actions out.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use journal::{Append, Durability, New};
use protocol::api::{ForkedFrom, OpPhase, OpView, SandboxState, SandboxView, SessionView};
use protocol::control::{FromSupervisor, ToSupervisor};
use protocol::{
    ApiError, Boot, CutId, Epoch, ErrorCode, Event, EventId, Head, OpId, OpSpec, Origin, Outcome,
    SandboxId, SandboxName, Seq, Settlement, Stored,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::approvals::Parked;
use super::checkpoints::{Asked, Holds, Place, release};
use super::cuts::{Settling, Taken};
use super::loss::{AfterCrash, Crashed};
use super::notes::{Note, Noted, notes};
use super::replicate::{Replica, Waits};
use super::start::Up;
use super::{Attached, Handle, Progress, QUEUE, Reply, Request, StdinState};
use crate::forks::{self, Made};
use crate::link::Link;
use crate::shared::{Shared, now};
use crate::state::{Op, OpState, State};
use crate::way::Way;
use crate::{branch, error};

/// The most messages in one batch. It bounds the append, and how long the first one waits for the last.
const BATCH: usize = 256;
/// How often a journal without room is asked again; there is no event for it.
pub(super) const ROOM_AGAIN: std::time::Duration = std::time::Duration::from_millis(200);

/// Something that the task itself began has ended.
pub(super) enum Done {
    Up(Result<Up, ApiError>),
    Cut {
        ops: Vec<Settling>,
        asked: Vec<Asked>,
        cut: protocol::CutId,
        result: Result<Taken, ApiError>,
    },
    Crashed(Crashed),
    Restored(Result<(Option<protocol::CutId>, protocol::WorkspaceId), ApiError>),
    Rewound {
        place: Place,
        result: Result<protocol::WorkspaceId, ApiError>,
        reply: Reply<()>,
    },
    Removed(Result<(), ApiError>, Reply<()>),
    Replicated(Vec<Waits>, Result<(), ApiError>),
    /// The store does not take it: nothing is told meanwhile, but this.
    Unreplicated(ApiError),
}

enum Message {
    Request(Request),
    Frame(FromSupervisor),
    LinkEnded,
    Done(Done),
    Note(Note),
    /// What was noted has waited long enough.
    NotesDue,
}

/// down ──start──▶ starting ──fenced──▶ up ──shutdown──▶ stopping ──▶ down
///   ▲                 └──failed──▶ down       └──lost──▶ crashing ──▶ down
pub(super) enum Phase {
    Down,
    Starting,
    Up {
        link: Link,
        boot: Boot,
    },
    Stopping {
        link: Link,
        boot: Boot,
        waiting: Vec<Reply<()>>,
    },
    Crashing {
        stopped: Vec<Reply<()>>,
    },
}

/// An operation as the task lives with it while it is open.
pub(super) struct Live {
    pub(super) progress: watch::Sender<Progress>,
    pub(super) stdin: watch::Sender<StdinState>,
}

/// An operation that the supervisor was asked about and that is not journaled yet.
pub(super) struct Checking {
    pub(super) op: OpId,
    pub(super) spec: OpSpec,
    pub(super) origin: Origin,
    pub(super) replies: Vec<Reply<Attached>>,
}

pub(super) type After = Box<dyn FnOnce(&mut Sandbox) + Send>;

/// What one batch decided.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) events: Vec<New>,
    pub(super) after: Vec<After>,
    /// What of the events nobody waits for.
    pub(super) noted: Noted,
}

pub(super) struct Sandbox {
    pub(super) id: SandboxId,
    pub(super) name: SandboxName,
    pub(super) shared: Arc<Shared>,
    pub(super) dir: PathBuf,
    pub(super) state: State,
    pub(super) head: Head,
    /// Events behind the head that are being written.
    writing: u64,
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
    pub(super) problem: Option<ApiError>,
    /// Cuts that the pool had lost when the daemon started.
    lost: HashSet<CutId>,
    pub(super) live: HashMap<OpId, Live>,
    pub(super) waiting: Vec<(OpId, OpSpec, Origin, Reply<Attached>)>,
    pub(super) starters: Vec<Reply<()>>,
    pub(super) checking: HashMap<u64, Checking>,
    pub(super) next_token: u64,
    /// Operations that the user asked to end, so that a harness among them is not resumed.
    pub(super) cancelled: HashSet<OpId>,
    pub(super) settling: Vec<Settling>,
    pub(super) cutting: bool,
    /// Who waits for the next cut besides operations.
    pub(super) asked: Vec<Asked>,
    /// Cuts that must not be given back now.
    pub(super) held: Holds,
    /// Cuts that were left when some were last given back.
    pub(super) retained: usize,
    /// A boot that runs and is not journaled yet; it is before anything else is.
    pub(super) untold: Option<Boot>,
    pub(super) after_crash: Option<AfterCrash>,
    /// Runs that must be started when the supervisor is up.
    pub(super) reruns: Vec<(OpId, u32)>,
    pub(super) removed: bool,
    /// As it was when the journal was last written: what may be told while it has no room.
    told: Option<SandboxView>,
    pub(super) done: mpsc::UnboundedSender<Done>,
    /// Who sends model requests now; told before the harness it speaks of can send any.
    pub(super) sender: watch::Sender<gateway::Sender>,
    frames: Option<mpsc::Receiver<FromSupervisor>>,
    pub(super) notes: mpsc::Receiver<Note>,
    /// Told when every open operation has found its place after a daemon's restart.
    pub(super) recovered: Option<oneshot::Sender<()>>,
    pub(super) replica: Replica,
    /// Requests that are held open for a person's word.
    pub(super) parked: Parked,
    /// The way out, to which the doors of each boot are given.
    pub(super) way: Arc<Way>,
}

/// What is known of a sandbox's files besides its journal.
#[derive(Default)]
pub(crate) struct Files {
    /// They are being made.
    pub(crate) made: Option<Made>,
    /// Cuts that the pool lost.
    pub(crate) lost: HashSet<CutId>,
}

/// Starts the task of a sandbox whose journal was folded to `head` under `epoch`. It answers nobody before its files are made.
pub(crate) fn spawn(
    shared: Arc<Shared>,
    id: SandboxId,
    name: SandboxName,
    state: State,
    head: Head,
    epoch: Epoch,
    files: Files,
) -> (Handle, oneshot::Receiver<()>) {
    let Files { made, lost } = files;
    let (requests, incoming) = mpsc::channel(QUEUE);
    let (done, finished) = mpsc::unbounded_channel();
    let sender = watch::Sender::new(sender_of(&state));
    let (recovered, recovery) = oneshot::channel();
    let policy = state.spec.policy.as_deref();
    let (noting, notes) = notes();
    let way = Arc::new(Way::new(shared.state_dir(id), epoch, policy, noting));
    let handle = Handle {
        id,
        name: name.clone(),
        shared: shared.clone(),
        requests,
        sender: sender.clone(),
        gateway: Arc::default(),
        way: way.clone(),
        forking: Arc::default(),
    };
    let mut sandbox = Sandbox {
        id,
        name,
        dir: shared.state_dir(id),
        shared,
        state,
        head,
        writing: 0,
        epoch,
        phase: Phase::Down,
        problem: None,
        lost,
        live: HashMap::new(),
        waiting: Vec::new(),
        starters: Vec::new(),
        checking: HashMap::new(),
        next_token: 1,
        cancelled: HashSet::new(),
        settling: Vec::new(),
        cutting: false,
        asked: Vec::new(),
        held: Holds::new(),
        retained: 0,
        untold: None,
        after_crash: None,
        reruns: Vec::new(),
        removed: false,
        told: None,
        done,
        sender,
        frames: None,
        notes,
        recovered: Some(recovered),
        replica: Replica::new(&handle),
        parked: Parked::default(),
        way,
    };
    sandbox.told = Some(sandbox.view());
    for op in sandbox.state.open.clone() {
        sandbox.enliven(&op);
    }
    tokio::spawn(async move {
        let made = match made {
            Some(made) => forks::wait(made).await,
            None => Ok(()),
        };
        match made {
            Ok(()) => {
                sandbox.recover();
                sandbox.replicate_anew();
            }
            Err(problem) => sandbox.fail(problem),
        }
        sandbox.run(incoming, finished).await;
    });
    (handle, recovery)
}

impl Sandbox {
    async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        mut done: mpsc::UnboundedReceiver<Done>,
    ) {
        let mut turn = Turn::default();
        while !self.removed {
            let first = self.next(&mut requests, &mut done, turn.due()).await;
            // Nobody has the sandbox any more; what was noted is written all the same.
            let is_last = first.is_none();
            let mut message = first;
            let mut taken = 0;
            while let Some(current) = message {
                self.handle(current, &mut turn);
                taken += 1;
                message = if taken < BATCH {
                    self.ready(&mut requests, &mut done)
                } else {
                    None
                };
            }
            if self.problem.is_none() && !is_last && turn.may_wait() {
                continue;
            }
            let mut next = Turn::default();
            if self.commit(&mut turn, &mut requests, &mut next).await {
                for action in turn.after {
                    action(&mut self);
                }
                turn = next;
            } else {
                turn = Turn::default();
            }
            if is_last && turn.events.is_empty() {
                return;
            }
        }
    }

    async fn next(
        &mut self,
        requests: &mut mpsc::Receiver<Request>,
        done: &mut mpsc::UnboundedReceiver<Done>,
        notes_due: Option<Instant>,
    ) -> Option<Message> {
        let due = async {
            match notes_due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let frames = &mut self.frames;
        let frame = async {
            match frames {
                Some(frames) => frames.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = done.recv() => Some(Message::Done(done)),
            frame = frame => Some(frame.map_or_else(
                || { self.frames = None; Message::LinkEnded },
                Message::Frame,
            )),
            request = requests.recv() => request.map(Message::Request),
            Some(note) = self.notes.recv() => Some(Message::Note(note)),
            () = due => Some(Message::NotesDue),
        }
    }

    /// Takes what is there already, without waiting.
    fn ready(
        &mut self,
        requests: &mut mpsc::Receiver<Request>,
        done: &mut mpsc::UnboundedReceiver<Done>,
    ) -> Option<Message> {
        if let Ok(done) = done.try_recv() {
            return Some(Message::Done(done));
        }
        if let Some(frames) = &mut self.frames {
            match frames.try_recv() {
                Ok(frame) => return Some(Message::Frame(frame)),
                Err(mpsc::error::TryRecvError::Empty) => {}
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.frames = None;
                    return Some(Message::LinkEnded);
                }
            }
        }
        if let Ok(note) = self.notes.try_recv() {
            return Some(Message::Note(note));
        }
        requests.try_recv().ok().map(Message::Request)
    }

    fn handle(&mut self, message: Message, turn: &mut Turn) {
        match message {
            Message::Request(request) => self.request(request, turn),
            Message::Frame(frame) => self.frame(frame, turn),
            Message::LinkEnded => self.link_ended(turn),
            Message::Note(note) => self.note(note, turn),
            Message::NotesDue => {}
            Message::Done(Done::Up(up)) => self.up(up, turn),
            Message::Done(Done::Cut {
                ops,
                asked,
                cut,
                result,
            }) => self.cut_done(ops, asked, cut, result, turn),
            Message::Done(Done::Rewound {
                place,
                result,
                reply,
            }) => self.rewound(place, result, reply, turn),
            Message::Done(Done::Crashed(crashed)) => self.crashed(crashed, turn),
            Message::Done(Done::Restored(restored)) => self.restored(restored, turn),
            Message::Done(Done::Replicated(waiting, result)) => {
                turn.after
                    .push(Box::new(|sandbox| sandbox.replicated(waiting, result)));
            }
            Message::Done(Done::Unreplicated(problem)) => self.replica.trouble = Some(problem),
            Message::Done(Done::Removed(result, reply)) => {
                self.removed = true;
                answer(turn, reply, result);
            }
        }
    }

    fn request(&mut self, request: Request, turn: &mut Turn) {
        match request {
            Request::Exec {
                op,
                spec,
                origin,
                reply,
            } => self.exec(op, spec, origin, reply, turn),
            Request::Attach { op, reply } => {
                let known = self.state.ops.get(&op);
                let result = match &self.problem {
                    // Its end will not be seen here; what settled can still be read.
                    Some(problem) if known.is_some_and(|op| op.settlement().is_none()) => {
                        Err(problem.clone())
                    }
                    _ => self
                        .attached(&op)
                        .ok_or_else(|| error::no_op(&self.name, &op)),
                };
                answer(turn, reply, result);
            }
            Request::Ops { reply } => {
                let mut views: Vec<_> = self
                    .state
                    .ops
                    .iter()
                    .map(|(id, op)| self.op_view(id, op))
                    .collect();
                views.sort_by_key(|view| view.intent_seq);
                answer(turn, reply, Ok(views));
            }
            Request::View { reply } => {
                let view = (self.view(), self.state.workspace.clone());
                answer(turn, reply, Ok(view));
            }
            Request::Stdin {
                op,
                offset,
                data,
                eof,
                reply,
            } => {
                let result = self.input(
                    &op,
                    ToSupervisor::Stdin {
                        op: op.clone(),
                        offset,
                        data,
                        eof,
                    },
                );
                answer(turn, reply, result);
            }
            Request::Signal { op, signal, reply } => {
                let result = self.to_open(
                    &op,
                    ToSupervisor::Signal {
                        op: op.clone(),
                        signal,
                    },
                );
                answer(turn, reply, result);
            }
            Request::Cancel {
                op,
                grace_ms,
                reply,
            } => {
                let result = self.to_open(
                    &op,
                    ToSupervisor::Cancel {
                        op: op.clone(),
                        grace_ms,
                    },
                );
                if result.is_ok() {
                    self.cancelled.insert(op);
                }
                answer(turn, reply, result);
            }
            Request::Resize { op, size, reply } => {
                let result = self.to_open(
                    &op,
                    ToSupervisor::Resize {
                        op: op.clone(),
                        size,
                    },
                );
                answer(turn, reply, result);
            }
            Request::Start { reply } => self.start(reply, turn),
            Request::Stop { grace_ms, reply } => self.stop(grace_ms, reply, turn),
            Request::Remove { reply } => self.remove(reply, turn),
            Request::Record { events, reply } => {
                if let Some(problem) = &self.problem {
                    answer(turn, reply, Err(problem.clone()));
                    return;
                }
                for event in events {
                    self.push(turn, event);
                }
                let last = self.place_of_last(turn);
                answer(turn, reply, Ok(last));
            }
            Request::Models { reply } => {
                let models = self.state.models.clone();
                answer(turn, reply, Ok(models));
            }
            Request::Sessions { reply } => {
                let views = self
                    .state
                    .sessions
                    .iter()
                    .map(|(id, s)| session_view(id, s))
                    .collect();
                answer(turn, reply, Ok(views));
            }
            Request::Session { session, reply } => {
                let found = self.state.sessions.get(&session).cloned().ok_or_else(|| {
                    ApiError::new(
                        ErrorCode::NotFound,
                        format!("there is no session `{session}`"),
                    )
                });
                answer(turn, reply, found);
            }
            Request::Checkpoint { label, hold, reply } => {
                self.checkpoint(Asked { label, hold, reply }, turn);
            }
            Request::Checkpoints { reply } => {
                let views = self.checkpoint_views();
                answer(turn, reply, Ok(views));
            }
            Request::Label { at, label, reply } => {
                let result = self.set_label(&at, label, turn);
                answer(turn, reply, result);
            }
            Request::DropCheckpoint { at, force, reply } => {
                self.drop_checkpoint(&at, force, reply, turn);
            }
            Request::Locate { at, reply } => {
                let place = self.place(&at);
                if let Ok(place) = &place {
                    self.hold(place);
                }
                answer(turn, reply, place);
            }
            Request::Outgoing {
                after,
                which,
                reply,
            } => {
                // When the turn is durable, so that the head is where the fold is.
                turn.after.push(Box::new(move |sandbox| {
                    let outgoing = sandbox.outgoing(after, which);
                    let _gone = reply.send(outgoing);
                }));
            }
            Request::Release { cut } => release(&mut self.held, &cut),
            Request::Rewind { to, reply } => self.rewind(&to, reply, turn),
            Request::Spec { reply } => {
                let spec = self.state.spec.clone();
                answer(turn, reply, Ok(spec));
            }
            Request::LeadsTo { early, late, reply } => {
                let leads = self.state.leads_to(early, late);
                answer(turn, reply, Ok(leads));
            }
            Request::Parent { reply } => {
                let parent = self.state.parent.clone();
                answer(turn, reply, Ok(parent));
            }
            Request::Cuts { reply } => {
                let cuts = self.cuts_with_ops();
                answer(turn, reply, Ok(cuts));
            }
            Request::Write { write, reply } => self.decide_write(write, reply, turn),
            Request::Approval { ask, reply } => self.ask_approval(ask, reply, turn),
            Request::Approvals { reply } => {
                let views = self.approval_views();
                answer(turn, reply, Ok(views));
            }
            Request::Decide {
                approval,
                allow,
                remember,
                reply,
            } => self.decide_approval(approval, allow, remember, reply, turn),
            Request::OpenShimOps { reply } => {
                let open = self.state.open.iter().filter(|id| {
                    self.state
                        .ops
                        .get(*id)
                        .is_some_and(|op| op.origin == Origin::Shim)
                });
                let open = open.cloned().collect();
                answer(turn, reply, Ok(open));
            }
        }
    }

    /// Decides an event: it is folded in at once, and written before anything else happens.
    pub(super) fn push(&mut self, turn: &mut Turn, event: Event) {
        self.tell_started(turn);
        let new = New::from(event);
        let stored = Stored {
            seq: self.place_of_last(turn).next(),
            id: new.id,
            epoch: self.epoch,
            at: now(),
            event: new.event.clone(),
            // The fold does not look at it; the store computes the real one.
            hash: [0; 32],
        };
        self.state.apply(&stored);
        turn.events.push(new);
        if matches!(
            stored.event,
            Event::SessionStarted { .. }
                | Event::SessionResumed { .. }
                | Event::SessionEnded { .. }
        ) {
            turn.after.push(Box::new(|sandbox| {
                sandbox.sender.send_replace(sender_of(&sandbox.state));
            }));
        }
    }

    /// Returns where the last event of a turn will stand.
    pub(super) fn place_of_last(&self, turn: &Turn) -> Seq {
        Seq(self.head.seq.0 + self.writing + turn.events.len() as u64)
    }

    /// Makes the batch durable. `false`: it is not, and this task may write no more. What is noted meanwhile begins the `next` one.
    async fn commit(
        &mut self,
        turn: &mut Turn,
        requests: &mut mpsc::Receiver<Request>,
        next: &mut Turn,
    ) -> bool {
        if turn.events.is_empty() {
            return true;
        }
        let events = std::mem::take(&mut turn.events);
        let kinds: Vec<&'static str> = events.iter().map(|e| e.event.kind()).collect();
        if kinds.contains(&"op_intent") {
            failpoint::hit("before_intent");
        }
        if kinds.contains(&"op_settled") {
            failpoint::hit("before_settled");
        }
        if kinds.contains(&"effect_begun") {
            failpoint::hit("before_effect_begun");
        }
        if kinds.contains(&"effect_settled") {
            failpoint::hit("before_effect_settled");
        }
        let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
        let append = Append {
            sandbox: self.id,
            expected: self.head.seq,
            epoch: self.epoch,
            at: now(),
            events,
            durability: Durability::Now,
        };
        self.writing = append.events.len() as u64;
        let mut is_told = false;
        let mut writing = self.shared.store.append(append.clone());
        let result = loop {
            tokio::select! {
                biased;
                result = &mut writing => match result {
                    Err(journal::Error::NoSpace) => {
                        if !std::mem::replace(&mut is_told, true) {
                            tracing::error!(sandbox = %self.name, "the journal has no room; the sandbox waits for it");
                        }
                        self.without_room(requests).await;
                        writing = self.shared.store.append(append.clone());
                    }
                    result => break result,
                },
                Some(note) = self.notes.recv(), if !is_told && next.has_room() => self.note(note, next),
            }
        };
        self.writing = 0;
        match result {
            Ok(head) => {
                self.head = head;
                self.told = Some(self.view());
                if kinds.contains(&"op_intent") {
                    failpoint::hit("after_intent");
                }
                if kinds.contains(&"op_settled") {
                    failpoint::hit("before_announce");
                }
                if kinds.contains(&"effect_begun") {
                    failpoint::hit("after_effect_begun");
                }
                if kinds.contains(&"effect_settled") {
                    failpoint::hit("after_effect_settled");
                }
                if kinds.contains(&"effect_replayed") {
                    failpoint::hit("after_effect_replayed");
                }
                true
            }
            Err(failure) => {
                tracing::error!(
                    sandbox = %self.name, epoch = %self.epoch, error = %error::chain(&failure),
                    events = ids.len(), "the journal refused; this daemon writes no more for the sandbox"
                );
                let problem = error::of_journal(&failure);
                self.fail(problem);
                false
            }
        }
    }

    /// Waits a little for the journal's disk. What was decided stays so, and nobody hears of it, or of what may follow
    /// from it, before it is written: whoever asks meanwhile hears that.
    async fn without_room(&mut self, requests: &mut mpsc::Receiver<Request>) {
        let problem = error::of_journal(&journal::Error::NoSpace);
        self.refuse_notes(&problem);
        let again = Instant::now() + ROOM_AGAIN;
        while let Ok(request) = tokio::time::timeout_at(again, requests.recv()).await {
            match (request, &self.told) {
                (None, _) => return tokio::time::sleep_until(again).await,
                (Some(Request::View { reply }), Some(told)) => {
                    let view = SandboxView {
                        problem: Some(problem.message.clone()),
                        ..told.clone()
                    };
                    // A client that went away needs no answer.
                    let _gone = reply.send(Ok((view, self.state.workspace.clone())));
                }
                (Some(Request::Release { cut }), _) => release(&mut self.held, &cut),
                (Some(request), _) => request.refuse(&problem),
            }
        }
    }

    /// Gives the sandbox up: everything waiting is answered with the problem, and so is everything to come.
    pub(super) fn fail(&mut self, problem: ApiError) {
        for (_, _, _, reply) in self.waiting.drain(..) {
            let _gone = reply.send(Err(problem.clone()));
        }
        for (_, checking) in self.checking.drain() {
            for reply in checking.replies {
                let _gone = reply.send(Err(problem.clone()));
            }
        }
        for reply in self.starters.drain(..) {
            let _gone = reply.send(Err(problem.clone()));
        }
        for asked in self.asked.drain(..) {
            let _gone = asked.reply.send(Err(problem.clone()));
        }
        // What may leave, and with which secrets, is another's to say now.
        self.way.close();
        // Whoever follows an operation hears that nothing more comes from here.
        self.live.clear();
        self.frames = None;
        self.phase = Phase::Down;
        self.problem = Some(problem);
        if let Some(recovered) = self.recovered.take() {
            let _gone = recovered.send(());
        }
    }

    pub(super) fn listen(&mut self, frames: mpsc::Receiver<FromSupervisor>) {
        self.frames = Some(frames);
    }

    pub(super) fn enliven(&mut self, op: &OpId) {
        let attempt = self.state.ops.get(op).map_or(1, Op::attempt);
        let length =
            |stream| protocol::Offset(crate::spool::length(&self.dir, op, attempt, stream));
        let progress = Progress {
            attempt,
            stdout: length(protocol::Stream::Stdout),
            stderr: length(protocol::Stream::Stderr),
            settled: None,
        };
        self.live.entry(op.clone()).or_insert_with(|| Live {
            progress: watch::Sender::new(progress),
            stdin: watch::Sender::new(StdinState::default()),
        });
    }

    pub(super) fn attached(&mut self, id: &OpId) -> Option<Attached> {
        let op = self.state.any_op(id)?;
        let view = self.op_view(id, op);
        let state_dir = branch::dir(&self.dir, op.branch, self.state.branch);
        if let Some(live) = self.live.get(id) {
            let (progress, stdin) = (live.progress.subscribe(), live.stdin.subscribe());
            return Some(Attached {
                view,
                progress,
                stdin,
                state_dir,
            });
        }
        let settled = (view.state == OpPhase::Settled).then(|| Arc::new(view.clone()));
        let progress = Progress {
            attempt: view.attempt,
            stdout: view.stdout_bytes,
            stderr: view.stderr_bytes,
            settled,
        };
        let stdin = StdinState {
            offset: protocol::Offset(0),
            closed: true,
        };
        let (progress, stdin) = (watch::Sender::new(progress), watch::Sender::new(stdin));
        let (progress, stdin) = (progress.subscribe(), stdin.subscribe());
        Some(Attached {
            view,
            progress,
            stdin,
            state_dir,
        })
    }

    pub(super) fn op_view(&self, id: &OpId, op: &Op) -> OpView {
        let settlement = op.settlement();
        let outcome = settlement.map(|s| s.outcome);
        let live = self.live.get(id).map(|live| live.progress.borrow().clone());
        let so_far = |pick: fn(&Progress) -> protocol::Offset,
                      end: fn(&Settlement) -> protocol::Offset| {
            settlement
                .map(end)
                .or_else(|| live.as_ref().map(pick))
                .unwrap_or_default()
        };
        let spec = op.open_spec();
        let (cut, settled_seq) = match &op.state {
            OpState::Settled { cut, at, .. } => (cut.clone(), Some(*at)),
            OpState::Intended { .. } | OpState::Running { .. } => (None, None),
        };
        OpView {
            id: id.clone(),
            state: match op.state {
                OpState::Intended { .. } => OpPhase::Intended,
                OpState::Running { .. } => OpPhase::Running,
                OpState::Settled { .. } => OpPhase::Settled,
            },
            outcome: outcome.map(|o| o.name().to_owned()),
            exit_code: match outcome {
                Some(Outcome::Exited { exit_code }) => Some(exit_code),
                _ => None,
            },
            signal: match outcome {
                Some(Outcome::Signaled { signal }) => Some(signal),
                _ => None,
            },
            stdout_bytes: so_far(|p| p.stdout, |s| s.stdout_bytes),
            stderr_bytes: so_far(|p| p.stderr, |s| s.stderr_bytes),
            cut,
            error: settlement.and_then(|s| s.error.clone()),
            duration_ms: settlement.map(|s| s.duration_ms),
            attempt: op.attempt(),
            origin: op.origin,
            role: op.role,
            intent_seq: op.intent,
            settled_seq,
            created_at_ms: op.intent_at,
            argv: spec.map(|s| s.argv.clone()).unwrap_or_default(),
            cwd: spec.and_then(|s| s.cwd.clone()),
        }
    }

    /// Says what the pool lost of it, where it did.
    fn loss(&self) -> Option<String> {
        let lost = self
            .state
            .cuts
            .iter()
            .filter(|cut| self.lost.contains(&cut.id));
        let last = lost.clone().last()?;
        let told = format!(
            "the pool lost {} of its checkpoints, the last of them {}",
            lost.count(),
            last.id
        );
        // Where nobody went back since, the files go on from what the pool still had.
        let is_behind = self.state.last_rewind().is_none_or(|seq| seq < last.at);
        Some(if is_behind {
            format!(
                "{told}: its files may be older than its journal, or damaged; `durable rewind {} --to CHECKPOINT` goes back to one \
                 that is there",
                self.name
            )
        } else {
            told
        })
    }

    fn view(&self) -> SandboxView {
        let (state, boot) = match &self.phase {
            _ if self.problem.is_some() => (SandboxState::Damaged, None),
            Phase::Down | Phase::Crashing { .. } => (SandboxState::Stopped, None),
            Phase::Starting => (SandboxState::Starting, None),
            Phase::Up { boot, .. } => (SandboxState::Running, Some(*boot)),
            Phase::Stopping { boot, .. } => (SandboxState::Stopping, Some(*boot)),
        };
        let problem = self.problem.as_ref().or(self.replica.trouble.as_ref());
        SandboxView {
            state,
            boot,
            problem: problem.map(|p| p.message.clone()).or_else(|| self.loss()),
            ..view_of(&self.name, &self.state, self.head, self.epoch)
        }
    }
}

/// Describes a sandbox of which nothing runs.
pub(crate) fn view_of(name: &SandboxName, state: &State, head: Head, epoch: Epoch) -> SandboxView {
    SandboxView {
        name: name.clone(),
        state: SandboxState::Stopped,
        problem: None,
        image: state.spec.image.clone(),
        created_at_ms: state.created_at,
        boot: None,
        seq: head.seq,
        epoch,
        bound: state.bound,
        open_ops: state.open.clone(),
        ops: state.ops.len() as u64,
        last_cut: state.last_cut().cloned(),
        disk_used_bytes: None,
        disk_limit_bytes: state.spec.limits.disk_bytes,
        session: state.active_session().map(|(id, _)| id.clone()),
        forked_from: state.parent.as_ref().map(|parent| ForkedFrom {
            name: parent.name.clone(),
            at: parent.at,
            cut: parent.cut.clone(),
        }),
    }
}

fn sender_of(state: &State) -> gateway::Sender {
    state
        .active_session()
        .map_or_else(gateway::Sender::default, |(id, session)| gateway::Sender {
            session: Some(id.clone()),
            attempt: session.attempt,
        })
}

/// Answers once the batch is durable.
pub(super) fn answer<T: Send + 'static>(
    turn: &mut Turn,
    reply: Reply<T>,
    result: Result<T, ApiError>,
) {
    turn.after.push(Box::new(move |_| {
        // A client that went away needs no answer.
        let _gone = reply.send(result);
    }));
}

pub(super) fn session_view(id: &protocol::SessionId, s: &crate::state::Session) -> SessionView {
    SessionView {
        id: id.clone(),
        harness: s.harness.clone(),
        args: s.args.clone(),
        attempt: s.attempt,
        runs: s.runs.clone(),
        ended: s.ended.is_some(),
        error: s.ended.clone().flatten(),
    }
}
