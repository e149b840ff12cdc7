//! Forks: announced by their first event, their files made behind.
//!
//! Whoever asked for one goes on while the pool works. Until the files are there, the fork's task answers nobody, the source
//! keeps the cut and stays, and a daemon that starts makes what the one before it left out, before anything is swept.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::api::{ForkSandbox, MAX_FORKS, SandboxView};
use protocol::{
    ApiError, CutId, ErrorCode, Event, SandboxId, SandboxName, SandboxSpec, WorkspaceId,
};
use tokio::sync::{OwnedRwLockReadGuard, watch};
use workspace::Pool;

use crate::create::{Founded, new_workspace};
use crate::engine::Engine;
use crate::error;
use crate::flush::{Flush, Fresh};
use crate::models;
use crate::remote;
use crate::sandbox::{self, Handle, Held};
use crate::session;
use crate::shared::Shared;
use crate::state::State;
use crate::trees::blocking;
use crate::way;

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

/// What a fork goes with, unless it is removed before or kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    /// Nothing: it stays.
    None,
    /// The client that asked for it, and the daemon.
    Client,
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

impl Engine {
    /// Makes forks of a sandbox at one place: all of them, or none.
    ///
    /// The source goes on; where no place is given, a cut of it is taken as it is now. A fork is durable on return, though its
    /// files may still be being made: whoever asks for it waits for them.
    ///
    /// # Errors
    /// `not_found` for the source or the place, `conflict` for a name that is taken.
    pub async fn fork(
        &self,
        name: &SandboxName,
        ask: ForkSandbox,
    ) -> Result<Vec<SandboxView>, ApiError> {
        let made = self.forked(name, ask, Binding::None).await?;
        Ok(made.into_iter().map(|(_, view)| view).collect())
    }

    /// Makes forks as the request says.
    pub(crate) async fn forked(
        &self,
        name: &SandboxName,
        ask: ForkSandbox,
        binding: Binding,
    ) -> Result<Vec<(Handle, SandboxView)>, ApiError> {
        let distinct: HashSet<&SandboxName> = ask.names.iter().collect();
        let count = ask.names.len();
        if count == 0 || count > MAX_FORKS || distinct.len() < count {
            let message =
                format!("a request for forks takes 1 to {MAX_FORKS} names, each once, not {count}");
            return Err(
                ApiError::new(ErrorCode::Invalid, message).hint("ask several times for more")
            );
        }
        let source = self.get(name)?;
        self.shared.room_to_begin()?;
        let _kept = self.shared.unpacking.read().await;
        let stays = source.forking.clone().read_owned().await;
        // A place that is given is found first: what is to be started there must be known before a cut is taken.
        let found = match ask.at {
            Some(at) => Some(source.hold(Some(at)).await?),
            None => None,
        };
        let at = found.as_ref().map(|held| held.place.at);
        let mut flush = match ask.flush {
            Some(ask) => Some(Flush::prepare(&source, ask, at).await?),
            None => None,
        };
        let held = match found {
            Some(held) => held,
            None => source.hold(None).await?,
        };
        let claim = Claim::new(source.id, held, stays);
        let spec = source.ask(|reply| sandbox::Request::Spec { reply }).await?;
        if let Some(store) = &spec.replicate {
            remote::check_free(&self.shared, store, ask.names.clone()).await?;
        }
        let mut fresh: Vec<Fresh> = Vec::new();
        if let Some(flush) = &mut flush {
            let note = flush.note(self, &source, &claim.held.place).await?;
            for _ in &ask.names {
                fresh.push(flush.fresh(&note)?);
            }
            if let Err(problem) = fresh.iter().try_for_each(|f| flush.keep(&self.shared, f)) {
                Flush::take_back(&self.shared, &fresh);
                return Err(problem);
            }
        }
        let forks = ask.names.iter().enumerate().map(|(at, name)| {
            let spec = SandboxSpec {
                name: name.clone(),
                ..spec.clone()
            };
            let then = fresh.get(at).map(|fresh| fresh.event.clone());
            self.fork_one(&source, &claim, spec, binding, then)
        });
        let results = futures_util::future::join_all(forks).await;
        let (mut made, mut problem) = (Vec::new(), None);
        for result in results {
            match result {
                Ok(fork) => made.push(fork),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        let Some(problem) = problem else {
            if !fresh.is_empty() {
                failpoint::hit("before_flushed_start");
            }
            for ((handle, _), fresh) in made.iter().zip(fresh) {
                session::spawn(handle.clone(), fresh.session);
            }
            return Ok(made);
        };
        Flush::take_back(&self.shared, &fresh);
        for (handle, _) in made {
            if let Err(left) = self.remove(&handle.name).await {
                tracing::warn!(sandbox = %handle.name, error = %left.message, "a fork that was not wanted is left");
            }
        }
        Err(problem)
    }

    async fn fork_one(
        &self,
        source: &Handle,
        claim: &Claim,
        spec: SandboxSpec,
        binding: Binding,
        then: Option<Event>,
    ) -> Result<(Handle, SandboxView), ApiError> {
        let name = spec.name.clone();
        let place = &claim.held.place;
        let workspace = new_workspace()?;
        let first = Event::Forked {
            spec,
            workspace: workspace.clone(),
            from: source.name.clone(),
            from_id: source.id,
            at: place.at,
            cut: place.cut.as_ref().map(|(_, cut)| cut.clone()),
            bound: binding == Binding::Client,
        };
        let founded = self.found(&name, first, then).await?;
        failpoint::hit("after_forked");
        let (theirs, own) = (
            self.shared.secret_file(source.id),
            self.shared.secret_file(founded.id),
        );
        let copied = models::copy_endpoint(&theirs, &own)
            .and_then(|()| way::copy_placeholders(&self.shared, source.id, founded.id));
        if let Err(problem) = copied {
            self.unnumber(founded.id).await;
            return Err(problem);
        }
        let pool = self.shared.pool.clone();
        let at_once = pool.forks_at_once();
        let fork = (founded.id, name.clone());
        let made = self.forks.begin(pool, fork, claim.clone(), workspace);
        let Founded {
            state, head, epoch, ..
        } = &founded;
        let view = sandbox::view_of(&name, state, *head, *epoch);
        let handle = self.begin(founded, Some(made.clone()));
        if at_once {
            return Ok((handle, view));
        }
        match wait(made).await {
            Ok(()) => Ok((handle, view)),
            Err(problem) => {
                if let Err(left) = self.remove(&name).await {
                    tracing::warn!(sandbox = %name, error = %left.message, "a fork without files is left");
                }
                Err(problem)
            }
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
        way::copy_placeholders(shared, self.source, self.fork)?;
        let made = shared.pool.fork_as(&self.of, &self.cut, &self.workspace);
        made.map_err(|e| of_fork(&self.name, &error::of_pool(&e)))
    }
}
