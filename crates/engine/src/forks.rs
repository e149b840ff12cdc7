//! Forks whose files are being made.
//!
//! The journal says first that there is a fork, so whoever asked for it goes on while the pool works. Until the files are
//! there, the fork's task answers nobody, the source keeps the cut and stays, and a daemon that starts makes what the one
//! before it left out, before anything is swept.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::{ApiError, CutId, ErrorCode, SandboxId, SandboxName, WorkspaceId};
use tokio::sync::{OwnedRwLockReadGuard, watch};
use workspace::Pool;

use crate::error;
use crate::models;
use crate::sandbox::Held;
use crate::shared::Shared;
use crate::state::State;
use crate::trees::blocking;

/// Tells when a fork's files are there, or that they could not be made.
pub(crate) type Made = watch::Receiver<Option<Result<(), ApiError>>>;

/// Forks that could not be made. They are tried again when the next daemon starts.
#[derive(Clone, Default)]
pub(crate) struct Forks(Arc<Mutex<HashMap<SandboxId, Failed>>>);

struct Failed {
    fork: SandboxName,
    source: SandboxId,
    problem: ApiError,
    /// What they are to be made of.
    _held: Arc<Held>,
}

/// A source that stays, and the cut of it that stays.
#[derive(Clone)]
pub(crate) struct Claim {
    source: SandboxId,
    pub(crate) held: Arc<Held>,
    /// The source is removed by nobody.
    _stays: Arc<OwnedRwLockReadGuard<()>>,
}

impl Claim {
    /// Claims a place of a source that stays as long as the guard of its `forking` does.
    pub(crate) fn new(source: SandboxId, held: Held, stays: OwnedRwLockReadGuard<()>) -> Self {
        Self {
            source,
            held: Arc::new(held),
            _stays: Arc::new(stays),
        }
    }
}

impl Forks {
    /// Makes a fork's files.
    pub(crate) fn begin(
        &self,
        pool: Arc<dyn Pool>,
        (fork, name): (SandboxId, SandboxName),
        claim: Claim,
        workspace: WorkspaceId,
    ) -> Made {
        let (tell, made) = watch::channel(None);
        let forks = self.clone();
        let cut = claim.held.place.cut.clone();
        tokio::spawn(async move {
            let work = tokio::task::spawn_blocking(move || match &cut {
                Some((of, cut)) => pool.fork_as(of, cut, &workspace),
                None => pool.create_as(&workspace),
            });
            let result = match work.await {
                Ok(made) => made.map_err(|e| error::of_pool(&e)),
                Err(gone) => Err(error::internal("the making was abandoned", &gone)),
            };
            let result = result.map_err(|problem| of_fork(&name, &problem));
            if let Err(problem) = &result {
                let (source, held) = (claim.source, claim.held.clone());
                forks.failed((fork, name), source, held, problem.clone());
            }
            // Before anybody hears of it: then the source may be removed.
            drop(claim);
            tell.send_replace(Some(result));
        });
        made
    }

    /// Remembers a fork that could not be made, so that what it would be made of stays.
    pub(crate) fn failed(
        &self,
        (fork, name): (SandboxId, SandboxName),
        source: SandboxId,
        held: Arc<Held>,
        problem: ApiError,
    ) {
        tracing::error!(sandbox = %name, error = %problem.message, "a fork could not be made");
        let failed = Failed {
            fork: name,
            source,
            problem,
            _held: held,
        };
        self.all().insert(fork, failed);
    }

    /// Refuses to let go of a sandbox that a fork still has to be made of.
    ///
    /// # Errors
    /// `conflict`.
    pub(crate) fn let_go(&self, source: SandboxId) -> Result<(), ApiError> {
        let all = self.all();
        let Some(failed) = all.values().find(|failed| failed.source == source) else {
            return Ok(());
        };
        let (fork, problem) = (&failed.fork, &failed.problem.message);
        let hint = format!("`durable rm {fork}` first, or mend that and start the daemon again");
        Err(ApiError::new(ErrorCode::Conflict, problem.clone()).hint(hint))
    }

    /// Forgets a fork that was removed.
    pub(crate) fn forget(&self, fork: SandboxId) {
        self.all().remove(&fork);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, Failed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a fork's files.
pub(crate) async fn wait(mut made: Made) -> Result<(), ApiError> {
    match made.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or(Ok(())),
        Err(gone) => Err(error::internal("the making was abandoned", &gone)),
    }
}

fn of_fork(fork: &SandboxName, problem: &ApiError) -> ApiError {
    let message = format!(
        "the files of fork `{fork}` are not made yet: {}",
        problem.message
    );
    let hint = format!("`durable rm {fork}`, or mend that and start the daemon again");
    ApiError::new(problem.code, message).hint(hint)
}

/// A fork that never ran, when a daemon starts: its files may not be there.
pub(crate) struct Unmade {
    pub(crate) fork: SandboxId,
    pub(crate) source: SandboxId,
    pub(crate) cut: CutId,
    name: SandboxName,
    of: WorkspaceId,
    workspace: WorkspaceId,
}

/// Finds the forks that never ran and whose source still has the cut. Where it has not, they were made: it kept it for them.
pub(crate) fn never_ran<'a>(states: impl Iterator<Item = (SandboxId, &'a State)>) -> Vec<Unmade> {
    let states: BTreeMap<SandboxId, &State> = states.collect();
    let unmade = states.iter().filter_map(|(fork, state)| {
        let (source, cut) = state.as_forked()?;
        let of = states.get(&source)?.cut(cut)?.workspace.clone();
        Some(Unmade {
            fork: *fork,
            source,
            cut: cut.clone(),
            name: state.spec.name.clone(),
            of,
            workspace: state.workspace.clone(),
        })
    });
    unmade.collect()
}

/// Makes what is missing of them; returns those that could not be made.
pub(crate) async fn finish(
    shared: &Arc<Shared>,
    all: Vec<Unmade>,
) -> Result<Vec<(Unmade, ApiError)>, ApiError> {
    let shared = shared.clone();
    blocking(move || {
        let tried = all.into_iter().filter_map(|unmade| {
            let problem = unmade.finish(&shared).err()?;
            Some((unmade, problem))
        });
        Ok(tried.collect())
    })
    .await
}

impl Unmade {
    fn finish(&self, shared: &Shared) -> Result<(), ApiError> {
        let (theirs, own) = (
            shared.secret_file(self.source),
            shared.secret_file(self.fork),
        );
        if !own.exists() {
            models::copy_endpoint(&theirs, &own)?;
        }
        let made = shared.pool.fork_as(&self.of, &self.cut, &self.workspace);
        made.map_err(|e| of_fork(&self.name, &error::of_pool(&e)))
    }
}
