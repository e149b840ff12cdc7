//! One sandbox: a task that owns its journal's head, its supervisor and its cuts, asked through a [`Handle`].
//!
//! The task takes what waits for it in one batch, decides, appends all events of the batch at once, and only then answers
//! and acts: nobody hears of an event that is not durable, but of one from which nothing follows (`notes`). A batch is one commit,
//! so 64 operations at once cost one.

mod actor;
pub(crate) mod approvals;
mod checkpoints;
mod cuts;
mod drops;
mod loss;
mod notes;
mod ops;
mod records;
mod removal;
mod replicate;
mod shim;
mod start;
mod stop;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use protocol::api::{OpView, SandboxView, SessionView};
use protocol::{
    ApiError, ErrorCode, Event, Offset, OpId, OpSpec, Origin, SandboxId, SandboxName, Seq,
    SessionId, TtySize,
};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use actor::{Files, spawn, view_of};
pub use checkpoints::{Held, Place};
pub use drops::Force;
pub(crate) use notes::Note;
pub(crate) use ops::PATH;
pub(crate) use records::Decided;
pub(crate) use removal::remove_state;

use crate::shared::Shared;

/// Requests that wait for one sandbox. More than that at once is a client that should slow down.
const QUEUE: usize = 1024;

/// How far an open operation is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Which run.
    pub attempt: u32,
    /// Its stdout reaches this far.
    pub stdout: Offset,
    /// Its stderr reaches this far.
    pub stderr: Offset,
    /// Its end, once durable.
    pub settled: Option<Arc<OpView>>,
}

/// How much input an open operation took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StdinState {
    /// The next byte wanted.
    pub offset: Offset,
    /// Whether it takes no more.
    pub closed: bool,
}

/// An operation that a client holds on to.
#[derive(Debug, Clone)]
pub struct Attached {
    /// As it was when the client attached.
    pub view: OpView,
    /// How it goes on.
    pub progress: watch::Receiver<Progress>,
    /// Its input.
    pub stdin: watch::Receiver<StdinState>,
    /// The sandbox's state directory, for reading the spool.
    pub state_dir: PathBuf,
}

impl Attached {
    /// Waits for the settlement.
    ///
    /// # Errors
    /// The sandbox's task ended first.
    pub async fn settled(&mut self) -> Result<Arc<OpView>, ApiError> {
        let lost = || ApiError::new(ErrorCode::Unavailable, "the daemon lets go of the sandbox");
        let progress = self
            .progress
            .wait_for(|p| p.settled.is_some())
            .await
            .map_err(|_| lost())?;
        progress.settled.clone().ok_or_else(lost)
    }
}

type Reply<T> = oneshot::Sender<Result<T, ApiError>>;

/// What the task is asked.
pub(crate) enum Request {
    Exec {
        op: OpId,
        spec: OpSpec,
        origin: Origin,
        reply: Reply<Attached>,
    },
    Attach {
        op: OpId,
        reply: Reply<Attached>,
    },
    Ops {
        reply: Reply<Vec<OpView>>,
    },
    View {
        /// With its head.
        reply: Reply<(SandboxView, protocol::WorkspaceId)>,
    },
    Stdin {
        op: OpId,
        offset: Offset,
        data: Bytes,
        eof: bool,
        reply: Reply<()>,
    },
    Signal {
        op: OpId,
        signal: u8,
        reply: Reply<()>,
    },
    Cancel {
        op: OpId,
        grace_ms: u64,
        reply: Reply<()>,
    },
    Resize {
        op: OpId,
        size: TtySize,
        reply: Reply<()>,
    },
    Start {
        reply: Reply<()>,
    },
    Stop {
        grace_ms: u64,
        reply: Reply<()>,
    },
    Remove {
        reply: Reply<()>,
    },
    Record {
        events: Vec<Event>,
        reply: Reply<Seq>,
    },
    Models {
        reply: Reply<gateway::Models>,
    },
    Sessions {
        reply: Reply<Vec<SessionView>>,
    },
    Session {
        session: SessionId,
        reply: Reply<crate::state::Session>,
    },
    OpenShimOps {
        reply: Reply<Vec<OpId>>,
    },
    Checkpoint {
        label: Option<String>,
        hold: checkpoints::Hold,
        reply: Reply<Place>,
    },
    Checkpoints {
        reply: Reply<Vec<(crate::state::Cut, protocol::api::CheckpointView)>>,
    },
    Label {
        at: String,
        label: Option<String>,
        reply: Reply<()>,
    },
    DropCheckpoint {
        at: String,
        force: Force,
        reply: Reply<()>,
    },
    Locate {
        at: String,
        reply: Reply<Place>,
    },
    Release {
        cut: protocol::CutId,
    },
    Rewind {
        to: String,
        reply: Reply<()>,
    },
    Spec {
        reply: Reply<protocol::SandboxSpec>,
    },
    Outgoing {
        after: Seq,
        which: crate::remote::push::Which,
        reply: Reply<crate::remote::push::Outgoing>,
    },
    LeadsTo {
        early: Seq,
        late: Seq,
        reply: Reply<bool>,
    },
    Parent {
        reply: Reply<Option<crate::state::Parent>>,
    },
    Cuts {
        reply: Reply<Vec<(crate::state::Cut, crate::trees::Ops)>>,
    },
    Write {
        write: egress::Write,
        reply: Reply<Decided>,
    },
    Approval {
        ask: egress::Ask,
        reply: Reply<oneshot::Receiver<approvals::Word>>,
    },
    Approvals {
        reply: Reply<Vec<protocol::egress::ApprovalView>>,
    },
    Decide {
        approval: protocol::ApprovalId,
        allow: bool,
        remember: Option<approvals::Remember>,
        reply: Reply<()>,
    },
}

impl Request {
    /// Answers it with a problem.
    fn refuse(self, problem: &ApiError) {
        fn no<T>(reply: Reply<T>, problem: &ApiError) {
            // A client that went away needs no answer.
            let _gone = reply.send(Err(problem.clone()));
        }
        match self {
            Self::Exec { reply, .. } => no(reply, problem),
            Self::Attach { reply, .. } => no(reply, problem),
            Self::Ops { reply, .. } => no(reply, problem),
            Self::View { reply, .. } => no(reply, problem),
            Self::Stdin { reply, .. } => no(reply, problem),
            Self::Signal { reply, .. } => no(reply, problem),
            Self::Cancel { reply, .. } => no(reply, problem),
            Self::Resize { reply, .. } => no(reply, problem),
            Self::Start { reply, .. } => no(reply, problem),
            Self::Stop { reply, .. } => no(reply, problem),
            Self::Remove { reply, .. } => no(reply, problem),
            Self::Record { reply, .. } => no(reply, problem),
            Self::Models { reply, .. } => no(reply, problem),
            Self::Sessions { reply, .. } => no(reply, problem),
            Self::Session { reply, .. } => no(reply, problem),
            Self::OpenShimOps { reply, .. } => no(reply, problem),
            Self::Checkpoint { reply, .. } => no(reply, problem),
            Self::Checkpoints { reply, .. } => no(reply, problem),
            Self::Label { reply, .. } => no(reply, problem),
            Self::DropCheckpoint { reply, .. } => no(reply, problem),
            Self::Locate { reply, .. } => no(reply, problem),
            Self::Rewind { reply, .. } => no(reply, problem),
            Self::Spec { reply, .. } => no(reply, problem),
            Self::Outgoing { reply, .. } => no(reply, problem),
            Self::LeadsTo { reply, .. } => no(reply, problem),
            Self::Parent { reply, .. } => no(reply, problem),
            Self::Cuts { reply, .. } => no(reply, problem),
            Self::Write { reply, .. } => no(reply, problem),
            Self::Approval { reply, .. } => no(reply, problem),
            Self::Approvals { reply, .. } => no(reply, problem),
            Self::Decide { reply, .. } => no(reply, problem),
            Self::Release { .. } => {}
        }
    }
}

/// Asks one sandbox's task. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    /// Its number.
    pub id: SandboxId,
    /// Its name.
    pub name: SandboxName,
    pub(crate) shared: Arc<Shared>,
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) sender: watch::Sender<gateway::Sender>,
    pub(crate) gateway: Arc<std::sync::OnceLock<Arc<gateway::Gateway>>>,
    /// The way out.
    pub(crate) way: Arc<crate::way::Way>,
    /// Held for reading while forks of it are made, for writing while it is removed.
    pub(crate) forking: Arc<tokio::sync::RwLock<()>>,
}

impl Handle {
    pub(crate) async fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let gone = |_| crate::error::gone(&self.name);
        self.requests.send(request(reply)).await.map_err(gone)?;
        answer.await.unwrap_or_else(|_| {
            Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("sandbox `{}` could not journal the request", self.name),
            )
            .hint("the daemon's log says why; the same request may be sent again"))
        })
    }

    /// Starts an operation, or attaches to the one that has the id.
    ///
    /// Returns when the intent is durable.
    ///
    /// # Errors
    /// `conflict` for a used id with another command; `invalid` for a command that cannot be started, with nothing
    /// journaled; `unavailable` where the sandbox cannot be started.
    pub async fn exec(&self, op: OpId, spec: OpSpec, origin: Origin) -> Result<Attached, ApiError> {
        let mut spec = spec;
        if spec.argv.is_empty() && spec.role == protocol::Role::Command {
            // The image's own program, where it has one.
            spec.argv = self.ask(|reply| Request::Spec { reply }).await?.command;
        }
        if spec.argv.is_empty() || spec.argv[0].is_empty() {
            return Err(ApiError::new(ErrorCode::Invalid, "the command is empty")
                .hint("give a program after `--`"));
        }
        if let Some(bad) = spec.argv.iter().find(|a| a.contains('\0')) {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("argument {bad:?} holds a NUL byte"),
            ));
        }
        self.show_placeholders().await;
        if spec.role != protocol::Role::Internal {
            self.place_files().await;
        }
        self.ask(|reply| Request::Exec {
            op,
            spec,
            origin,
            reply,
        })
        .await
    }

    /// Attaches to an operation.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn attach(&self, op: OpId) -> Result<Attached, ApiError> {
        let mut attached = self.ask(|reply| Request::Attach { op, reply }).await?;
        if attached.view.argv.is_empty() {
            self.fill(&mut attached.view).await;
        }
        Ok(attached)
    }

    /// Adds what only the journal holds: the command of a settled operation.
    async fn fill(&self, view: &mut OpView) {
        let read = self.shared.store.read(self.id, view.intent_seq, 1).await;
        if let Ok(events) = read
            && let Some(Event::OpIntent { spec, .. }) = events.into_iter().next().map(|e| e.event)
        {
            view.argv = spec.argv;
            view.cwd = spec.cwd;
        }
    }

    /// Lists every operation, oldest first, without commands of settled ones.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn ops(&self) -> Result<Vec<OpView>, ApiError> {
        self.ask(|reply| Request::Ops { reply }).await
    }

    /// Describes the sandbox.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn view(&self) -> Result<SandboxView, ApiError> {
        let (mut view, head) = self.ask(|reply| Request::View { reply }).await?;
        if view.disk_limit_bytes.is_some() {
            let shared = self.shared.clone();
            let used = tokio::task::spawn_blocking(move || shared.pool.used(&head)).await;
            // A head that was put back meanwhile is not there any more.
            view.disk_used_bytes = used.ok().and_then(Result::ok).flatten();
        }
        Ok(view)
    }

    /// Passes input on; returns when the frame is on its way, not when it was taken (see [`Attached::stdin`]).
    ///
    /// # Errors
    /// `not_found`, or `invalid` for an operation that takes no input.
    pub async fn stdin(
        &self,
        op: OpId,
        offset: Offset,
        data: Bytes,
        eof: bool,
    ) -> Result<(), ApiError> {
        self.ask(|reply| Request::Stdin {
            op,
            offset,
            data,
            eof,
            reply,
        })
        .await
    }

    /// Sends input as [`stdin`](Self::stdin) does, and says whether the operation was there to take it: it may have settled
    /// just before, and its settlement tells why.
    pub(crate) async fn offer(
        &self,
        op: &OpId,
        offset: Offset,
        data: Bytes,
        eof: bool,
    ) -> Result<bool, ApiError> {
        match self.stdin(op.clone(), offset, data, eof).await {
            Err(problem) if problem.code == ErrorCode::Conflict => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// Sends a signal to the operation's process group.
    ///
    /// # Errors
    /// `not_found`, or `conflict` for one that is settled.
    pub async fn signal(&self, op: OpId, signal: u8) -> Result<(), ApiError> {
        self.ask(|reply| Request::Signal { op, signal, reply })
            .await
    }

    /// Cancels an operation; returns when that is under way.
    ///
    /// # Errors
    /// `not_found`, or `conflict` for one that is settled.
    pub async fn cancel(&self, op: OpId, grace_ms: u64) -> Result<(), ApiError> {
        self.ask(|reply| Request::Cancel {
            op,
            grace_ms,
            reply,
        })
        .await
    }

    /// Tells a terminal its new size.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn resize(&self, op: OpId, size: TtySize) -> Result<(), ApiError> {
        self.ask(|reply| Request::Resize { op, size, reply }).await
    }

    /// Starts the sandbox's supervisor, where none runs.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub async fn start(&self) -> Result<(), ApiError> {
        self.ask(|reply| Request::Start { reply }).await
    }

    /// Ends every process; open operations settle as cancelled. The workspace stays.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn stop(&self, grace_ms: u64) -> Result<(), ApiError> {
        self.ask(|reply| Request::Stop { grace_ms, reply }).await
    }

    /// Ends every process and removes workspace, spool and journal.
    ///
    /// # Errors
    /// What could not be removed.
    pub async fn remove(&self) -> Result<(), ApiError> {
        self.ask(|reply| Request::Remove { reply }).await?;
        if let Some(gateway) = self.gateway.get() {
            gateway.close().await;
        }
        Ok(())
    }

    /// Journals events; returns the place of the last one.
    pub(crate) async fn record(&self, events: Vec<Event>) -> Result<Seq, ApiError> {
        self.ask(|reply| Request::Record { events, reply }).await
    }

    /// Journals events that may become durable a little later; returns the place of the last one as soon as that is certain.
    pub(crate) async fn note(&self, events: Vec<Event>) -> Result<Seq, ApiError> {
        let (reply, answer) = oneshot::channel();
        let gone = || crate::error::gone(&self.name);
        let note = Note { events, reply };
        self.way.notes.send(note).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Lists the sandbox's harness sessions.
    ///
    /// # Errors
    /// The sandbox is gone.
    pub async fn sessions(&self) -> Result<Vec<SessionView>, ApiError> {
        self.ask(|reply| Request::Sessions { reply }).await
    }

    /// The state directory on the host.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.shared.state_dir(self.id)
    }
}
