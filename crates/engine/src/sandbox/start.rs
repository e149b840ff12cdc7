//! Starting the supervisor, and finding it again.
//!
//! Order after a loss: the lease was taken when the daemon started; the supervisor is fenced; then it is asked; then
//! [`loss`](super::loss) gives each open operation its verdict.

use std::time::Duration;

use isolation::StartSpec;
use protocol::control::FromSupervisor;
use protocol::{ApiError, EndReason, ErrorCode, Event};
use tokio::sync::mpsc;

use super::Reply;
use super::actor::{Done, Phase, Sandbox, Turn, answer};
use super::loss::{agrees, hash_at, lost_tail};
use crate::link::{self, Link};
use crate::shared::Shared;
use crate::trees::blocking;
use crate::{branch, error, images};

/// How long a supervisor that can be found may refuse to be reached.
const REACH: Duration = Duration::from_secs(30);
const REACH_AGAIN: Duration = Duration::from_millis(5);

/// A supervisor that was reached and fenced.
pub(super) struct Up {
    link: Link,
    fenced: link::Fenced,
    frames: mpsc::Receiver<FromSupervisor>,
    /// What the journal holds at the witness's place; `None` where that is past its end.
    at_witness: Option<[u8; 32]>,
}

impl Sandbox {
    /// Finds out how the sandbox is when a daemon starts.
    pub(super) fn recover(&mut self) {
        // A daemon may have died between journaling a rewind and setting the old branch aside.
        if let Err(failure) = branch::settle(&self.dir, self.state.branch) {
            let what = "the output of a branch that was left cannot be set aside";
            self.fail(error::internal(what, &failure));
            return;
        }
        // Also where the journal knows of none: a daemon may have died between starting it and writing that down, and a
        // second one beside it would write to the same table.
        if let Some(running) = self.shared.level.find(&self.dir) {
            self.shared.level.thaw(&running);
            self.phase = Phase::Starting;
            self.spawn_connect(None);
        } else if self.state.running.is_none() && self.state.open.is_empty() {
            self.recovery_done();
        } else {
            self.phase = Phase::Crashing {
                stopped: Vec::new(),
            };
            self.spawn_autopsy(EndReason::Crashed);
        }
    }

    pub(super) fn recovery_done(&mut self) {
        if let Some(recovered) = self.recovered.take() {
            // Nobody waits for it after the start.
            let _gone = recovered.send(());
        }
    }

    pub(super) fn begin_start(&mut self) {
        self.phase = Phase::Starting;
        let layout = match self.shared.pool.layout(&self.state.workspace) {
            Ok(layout) => layout,
            Err(failure) => {
                let problem = error::of_pool(&failure);
                // Not a verdict on the sandbox: the pool may come back.
                let _ended = self.done.send(Done::Up(Err(problem)));
                return;
            }
        };
        let image = match images::root(&self.shared, &self.state.spec) {
            Ok(image) => image,
            Err(problem) => {
                let _ended = self.done.send(Done::Up(Err(problem)));
                return;
            }
        };
        let harness = self.shared.harness_dir();
        let spec = StartSpec {
            sandbox: self.id,
            hostname: self.name.as_str().to_owned(),
            image,
            binary: self.shared.config.binary.clone(),
            exe_args: vec!["__supervisor".to_owned()],
            harness_dir: harness.is_dir().then_some(harness),
            upper: layout.upper,
            work: layout.work,
            state: self.dir.clone(),
            limits: self.state.spec.limits.clone(),
            doors: Some(self.way.ports()),
            ca: Some(self.shared.authority.cert_pem().to_owned()),
        };
        self.spawn_connect(Some(spec));
    }

    /// Starts the supervisor where a spec is given, then connects and fences.
    pub(super) fn spawn_connect(&self, start: Option<StartSpec>) {
        let (shared, done) = (self.shared.clone(), self.done.clone());
        let workspace = self.state.workspace.clone();
        let limit = self.state.spec.limits.disk_bytes;
        let (id, dir, epoch) = (self.id, self.dir.clone(), self.epoch);
        tokio::spawn(async move {
            let up = async {
                if let Some(spec) = start {
                    let (level, pool) = (shared.level.clone(), shared.pool.clone());
                    let started = move || {
                        let Some(bytes) = limit else {
                            return level
                                .start(&spec)
                                .map(drop)
                                .map_err(|e| error::of_level(&e));
                        };
                        let limit = |bytes| {
                            let limited = pool.limit(&workspace, bytes);
                            limited.map_err(|e| error::of_pool(&e))
                        };
                        // One that cannot be had is told before anything runs. What is full could not be mounted.
                        limit(bytes)?;
                        limit(u64::MAX)?;
                        let running = level.start(&spec).map_err(|e| error::of_level(&e))?;
                        limit(bytes).inspect_err(|_| {
                            if let Err(failure) = level.kill(&running) {
                                tracing::error!(error = %error::chain(&failure), "a supervisor does not end");
                            }
                        })
                    };
                    tokio::task::spawn_blocking(started)
                        .await
                        .map_err(|e| error::internal("the start was abandoned", &e))??;
                } else if let Some(bytes) = limit {
                    // A daemon may have died between its start and its limit.
                    let pool = shared.pool.clone();
                    let limited = move || {
                        pool.limit(&workspace, bytes)
                            .map_err(|e| error::of_pool(&e))
                    };
                    if let Err(problem) = blocking(limited).await {
                        tracing::warn!(sandbox = %id, error = %problem.message, "it runs without its limit");
                    }
                }
                let opened = reach(&shared, &dir, epoch).await;
                let (link, fenced, frames) = opened.map_err(of_link)?;
                let at_witness = hash_at(&shared, id, fenced.witness).await?;
                Ok(Up {
                    link,
                    fenced,
                    frames,
                    at_witness,
                })
            };
            let up = up.await;
            let _ended = done.send(Done::Up(up));
        });
    }

    pub(super) fn up(&mut self, up: Result<Up, ApiError>, turn: &mut Turn) {
        let Up {
            link,
            fenced,
            frames,
            at_witness,
        } = match up {
            Ok(up) => up,
            Err(problem) if problem.code == ErrorCode::Fenced => return self.fail(problem),
            Err(problem) => return self.not_up(problem, turn),
        };
        if !agrees(self.head, fenced.witness, at_witness) {
            self.fail(lost_tail(&self.name, fenced.witness, self.head));
            return;
        }
        let boot = fenced.boot;
        self.phase = Phase::Up { link, boot };
        self.way.serve();
        self.listen(frames);
        if self.state.running != Some(boot) {
            self.untold = Some(boot);
        }
        if !self.reconcile(&fenced.ops, Some(boot), None, turn) {
            return;
        }
        for (op, attempt) in std::mem::take(&mut self.reruns) {
            let id = op.clone();
            turn.after
                .push(Box::new(move |sandbox| sandbox.dispatch(&op, attempt)));
            self.end_unfed(id, turn);
        }
        let starters = std::mem::take(&mut self.starters);
        let is_asked_for = !starters.is_empty();
        for reply in starters {
            answer(turn, reply, Ok(()));
        }
        for (op, spec, origin, reply) in std::mem::take(&mut self.waiting) {
            self.exec(op, spec, origin, reply, turn);
        }
        // An operation that waits is journaled in a moment, and the start with it, in one commit.
        if self.checking.is_empty() || is_asked_for {
            self.tell_started(turn);
        }
        turn.after.push(Box::new(Self::recovery_done));
        self.maybe_cut();
    }

    /// Journals the start of the supervisor, unless that was done.
    pub(super) fn tell_started(&mut self, turn: &mut Turn) {
        if let Some(boot) = self.untold.take() {
            self.push(turn, Event::Started { boot });
        }
    }

    fn not_up(&mut self, problem: ApiError, turn: &mut Turn) {
        if problem.code == ErrorCode::Unavailable && self.state.running.is_some() {
            // It went away between being found and being reached, or hangs: then it is ended.
            self.phase = Phase::Crashing {
                stopped: Vec::new(),
            };
            self.spawn_autopsy(EndReason::Crashed);
            return;
        }
        tracing::warn!(sandbox = %self.name, error = %problem.message, "the sandbox could not be started");
        self.phase = Phase::Down;
        for reply in std::mem::take(&mut self.starters) {
            answer(turn, reply, Err(problem.clone()));
        }
        for (_, _, _, reply) in std::mem::take(&mut self.waiting) {
            answer(turn, reply, Err(problem.clone()));
        }
        self.recovery_done();
    }

    pub(super) fn start(&mut self, reply: Reply<()>, turn: &mut Turn) {
        if let Some(problem) = &self.problem {
            answer(turn, reply, Err(problem.clone()));
            return;
        }
        match &self.phase {
            Phase::Up { .. } => answer(turn, reply, Ok(())),
            Phase::Starting | Phase::Crashing { .. } => self.starters.push(reply),
            Phase::Down => {
                self.starters.push(reply);
                self.begin_start();
            }
            Phase::Stopping { .. } => answer(turn, reply, Err(self.stopping())),
        }
    }
}

/// Connects to a supervisor. One that is dying closes its socket before its last process is gone, so as long as it can be
/// found, nobody knows yet whether it is lost.
async fn reach(
    shared: &Shared,
    dir: &std::path::Path,
    epoch: protocol::Epoch,
) -> Result<(Link, link::Fenced, mpsc::Receiver<FromSupervisor>), link::Error> {
    let deadline = tokio::time::Instant::now() + REACH;
    loop {
        match link::open(dir, epoch).await {
            Err(link::Error::Unreachable { .. })
                if tokio::time::Instant::now() < deadline && shared.level.find(dir).is_some() =>
            {
                tokio::time::sleep(REACH_AGAIN).await;
            }
            done => return done,
        }
    }
}

fn of_link(failure: link::Error) -> ApiError {
    let code = match failure {
        link::Error::Unreachable { .. } => ErrorCode::Unavailable,
        link::Error::Fenced { .. } => ErrorCode::Fenced,
        link::Error::Protocol(_) => ErrorCode::Internal,
    };
    ApiError::new(code, error::chain(&failure))
}
