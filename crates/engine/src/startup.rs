//! What a daemon finds when it starts: journals, supervisors, forks that are not made, and litter.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock};

use protocol::{ApiError, CutId, ErrorCode, Head, SandboxId, SandboxName, Seq, WorkspaceId};
use tokio::sync::watch;
use workspace::Keep;

use crate::create::state_dir;
use crate::engine::{Engine, Recovery};
use crate::error;
use crate::forks::{self, Forks};
use crate::machine;
use crate::models;
use crate::sandbox::{self, Files, Handle};
use crate::session;
use crate::shared::Shared;
use crate::state::State;

/// Events read from a journal at a time when it is folded.
const PAGE: usize = 4096;

impl Engine {
    /// Takes every lease, folds every journal and finds every supervisor again. Returns when each open operation was
    /// adopted, settled or given its verdict.
    ///
    /// # Errors
    /// The journal cannot be read or leased at all; a single damaged journal is no error here.
    pub async fn open(shared: Shared) -> Result<(Self, Recovery), ApiError> {
        let shared = Arc::new(shared);
        let list = shared
            .store
            .list()
            .await
            .map_err(|e| error::of_journal(&e))?;
        let list = without_unleased(&shared, list).await?;
        let ids: Vec<SandboxId> = list.iter().map(|(id, _)| *id).collect();
        let leases = shared
            .store
            .lease_many(&ids, &shared.config.node)
            .await
            .map_err(|e| error::of_journal(&e))?;
        let folds = list.into_iter().zip(leases).map(|((id, name), lease)| {
            let shared = shared.clone();
            tokio::spawn(async move {
                let folded = fold(&shared, id, lease.head).await;
                (id, name, lease, folded)
            })
        });
        let mut recovery = Recovery::default();
        let mut keeps = Vec::new();
        let mut folded = Vec::new();
        let mut damaged = HashMap::new();
        for task in folds.collect::<Vec<_>>() {
            let (id, name, lease, state) = task
                .await
                .map_err(|e| error::internal("a journal could not be folded", &e))?;
            recovery.sandboxes += 1;
            match state {
                Ok(Some(state)) => {
                    state_dir(&shared, id)?;
                    keeps.extend(keep(&state));
                    folded.push((id, name, lease, state));
                }
                Ok(None) => {
                    // A crash between making the journal and its first event: nobody was told of it.
                    recovery.sandboxes -= 1;
                    shared
                        .store
                        .remove(id)
                        .await
                        .map_err(|e| error::of_journal(&e))?;
                }
                Err(problem) => {
                    recovery.damaged += 1;
                    tracing::error!(sandbox = %name, error = %problem.message, "this journal cannot be used");
                    damaged.insert(name, (id, problem));
                }
            }
        }
        let states = folded.iter().map(|(id, _, _, state)| (*id, state));
        let unmade = forks::finish(&shared, forks::never_ran(states)).await?;
        let strangers = strangers(&shared, &ids);
        let mut lost = HashSet::new();
        // With a damaged journal, or one that lost whole sandboxes, nobody knows what the pool must keep.
        if recovery.damaged == 0 && strangers == 0 {
            let work = shared.clone();
            let swept = tokio::task::spawn_blocking(move || sweep(&work, &keeps)).await;
            lost = swept.map_err(|e| error::internal("the sweep was abandoned", &e))?;
            forget_answers(&shared, folded.iter().map(|(_, _, _, state)| state)).await;
            let going_on = folded.iter().filter_map(|(_, _, _, s)| s.active_session());
            models::sweep_kept(&shared, &going_on.map(|(id, _)| id.clone()).collect());
        }
        let mut sandboxes = HashMap::new();
        let mut recovering = Vec::new();
        let mut bound = Vec::new();
        for (id, name, lease, state) in folded {
            let going_on = state.active_session().map(|(session, _)| session.clone());
            let is_bound = state.bound;
            let broken = state.effects.keys().cloned().collect();
            let failed = unmade.iter().find(|(unmade, _)| unmade.fork == id);
            let made = failed.map(|(_, problem)| watch::channel(Some(Err(problem.clone()))).1);
            let cuts = state.cuts.iter();
            let cuts = cuts.filter(|cut| lost.contains(&(cut.workspace.clone(), cut.id.clone())));
            let lost = cuts.map(|cut| cut.id.clone()).collect();
            let files = Files { made, lost };
            let (handle, recovered) = sandbox::spawn(
                shared.clone(),
                id,
                name.clone(),
                state,
                lease.head,
                lease.epoch,
                files,
            );
            if is_bound {
                bound.push(handle.clone());
            }
            recovering.push((handle.clone(), recovered, going_on, broken));
            sandboxes.insert(name, handle);
        }
        for (handle, recovered, going_on, broken) in recovering {
            // A task that ended has told why in the log.
            let _ended = recovered.await;
            handle.serve_models().await;
            let egress = handle.open_way();
            handle.settle_effects(&egress, broken).await;
            if let Some(session) = going_on {
                session::spawn(handle, session);
            }
        }
        let forks = Forks::default();
        for (unmade, problem) in unmade {
            let by_id = |id| sandboxes.values().find(|handle: &&Handle| handle.id == id);
            if let (Some(fork), Some(source)) = (by_id(unmade.fork), by_id(unmade.source)) {
                // What it is still to be made of stays.
                let held = source.hold(Some(unmade.cut.to_string())).await?;
                let fork = (fork.id, fork.name.clone());
                forks.failed(fork, unmade.source, Arc::new(held), problem);
            }
        }
        if let Err(failure) = machine::remember(&shared.config.data) {
            tracing::warn!(%failure, "the next start will take the machine for one that went down");
        }
        let (sandboxes, damaged) = (RwLock::new(sandboxes), RwLock::new(damaged));
        let engine = Self {
            shared,
            sandboxes,
            damaged,
            forks,
        };
        // Their clients had their connections with the daemon before this one.
        futures_util::future::join_all(bound.iter().map(|fork| engine.let_go(fork))).await;
        Ok((engine, recovery))
    }
}

/// Removes journals that nobody ever leased: a crash came in the middle of a pull, or before a creation's first event.
async fn without_unleased(
    shared: &Shared,
    mut list: Vec<(SandboxId, SandboxName)>,
) -> Result<Vec<(SandboxId, SandboxName)>, ApiError> {
    let store = &shared.store;
    let unleased = store.unleased().await.map_err(|e| error::of_journal(&e))?;
    for id in unleased {
        store.remove(id).await.map_err(|e| error::of_journal(&e))?;
        list.retain(|(known, _)| *known != id);
    }
    Ok(list)
}

/// Folds a journal up to `head`; `None` where it holds nothing.
pub(crate) async fn fold(
    shared: &Shared,
    id: SandboxId,
    head: Head,
) -> Result<Option<State>, ApiError> {
    let mut state: Option<State> = None;
    let mut next = Seq(1);
    while next <= head.seq {
        let events = shared
            .store
            .read(id, next, PAGE)
            .await
            .map_err(|e| error::of_journal(&e))?;
        let Some(last) = events.last() else { break };
        next = last.seq.next();
        for stored in &events {
            match &mut state {
                Some(state) => state.apply(stored),
                None => {
                    state = Some(State::begin(stored).ok_or_else(|| {
                        ApiError::new(ErrorCode::Corrupt, "its first event is not `created`")
                    })?);
                }
            }
        }
    }
    Ok(state)
}

/// What the pool must keep of a sandbox.
fn keep(state: &State) -> Vec<Keep> {
    let mut heads = state.retired.clone();
    heads.push(state.workspace.clone());
    heads
        .into_iter()
        .map(|workspace| Keep {
            head: workspace == state.workspace,
            cuts: state
                .cuts
                .iter()
                .filter(|cut| cut.workspace == workspace)
                .map(|cut| cut.id.clone())
                .collect(),
            workspace,
        })
        .collect()
}

/// Looks for state directories that no journal knows: removes what a crash in `create` left, and returns how many
/// belong to a sandbox that once ran. Those are kept: the journal was lost, not they.
fn strangers(shared: &Shared, known: &[SandboxId]) -> usize {
    let dirs = std::fs::read_dir(shared.config.data.join("sandboxes"));
    let mut strangers = 0;
    for dir in dirs.into_iter().flatten().filter_map(Result::ok) {
        let id = dir.file_name().to_str().and_then(|name| name.parse().ok());
        if id.is_some_and(|id| known.contains(&id)) {
            continue;
        }
        if dir.path().join(protocol::paths::state::TABLE).exists() {
            tracing::error!(dir = %dir.path().display(), "a sandbox's state has no journal; nothing is swept");
            strangers += 1;
        } else if let Err(left) = std::fs::remove_dir_all(dir.path()) {
            tracing::warn!(dir = %dir.path().display(), %left, "litter stays");
        }
    }
    strangers
}

/// Removes the relay's copies of answers that the journals hold whole, and those of removed sandboxes.
///
/// Before anything is served: a request that begins beside it would be forgotten too.
async fn forget_answers(shared: &Shared, states: impl Iterator<Item = &State>) {
    let open: HashSet<protocol::ModelRequestId> = states
        .flat_map(|state| state.models.iter())
        .filter(|(_, request)| request.outcome.is_none())
        .map(|(id, _)| id.clone())
        .collect();
    if let Err(failure) = shared.relay.sweep(|id| open.contains(id)).await {
        tracing::warn!(error = %error::chain(&failure), "old model answers stay");
    }
}

/// Removes what crashes left in the pool and on the machine; returns the cuts that the pool lost.
fn sweep(shared: &Shared, keeps: &[Keep]) -> HashSet<(WorkspaceId, CutId)> {
    let mut lost = HashSet::new();
    match shared.pool.gc(keeps) {
        Ok(swept) => {
            for missing in swept.missing_heads {
                tracing::error!(workspace = %missing, "the pool lost a workspace");
            }
            for (workspace, cut) in swept.missing_cuts {
                tracing::error!(%workspace, %cut, "the pool lost a cut");
                lost.insert((workspace, cut));
            }
        }
        Err(failure) => tracing::warn!(error = %error::chain(&failure), "the pool was not swept"),
    }
    let live: Vec<isolation::Running> = std::fs::read_dir(shared.config.data.join("sandboxes"))
        .map(|dirs| {
            dirs.filter_map(Result::ok)
                .filter_map(|d| shared.level.find(&d.path()))
                .collect()
        })
        .unwrap_or_default();
    if let Err(failure) = shared.level.sweep(&live) {
        tracing::warn!(error = %error::chain(&failure), "the machine was not swept");
    }
    lost
}
