//! All sandboxes of one data directory: created, found by name, recovered at start.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, RwLock};

use journal::New;
use protocol::api::{CreateSandbox, SandboxView, SessionView, StartSession};
use protocol::egress::SecretView;
use protocol::{
    ApiError, CutId, Epoch, ErrorCode, Event, Head, SandboxId, SandboxName, SandboxSpec, Seq,
    SessionId, WorkspaceId,
};
use tokio::sync::watch;
use workspace::Keep;

use crate::error;
use crate::forks::{self, Forks, Made};
use crate::images;
use crate::machine;
use crate::models;
use crate::remote;
use crate::sandbox::{self, Files, Handle};
use crate::session;
use crate::shared::{Shared, now};
use crate::state::State;
use crate::way;

/// Events read from a journal at a time when it is folded.
const PAGE: usize = 4096;

/// The supervisor and one small process.
const MIN_MEMORY: u64 = 4 << 20;

/// The supervisor's threads and one small process; and what Linux can count.
const MIN_PIDS: u64 = 16;
const MAX_PIDS: u64 = 4 << 20;

/// What the file system sets aside for a few changes at once.
const MIN_DISK: u64 = 16 << 20;

/// What a daemon found when it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sandboxes in the data directory.
    pub sandboxes: usize,
    /// Those whose journal or supervisor does not let them go on.
    pub damaged: usize,
}

/// All sandboxes of one data directory.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    sandboxes: RwLock<HashMap<SandboxName, Handle>>,
    /// Those whose journal cannot be folded: they are shown, can be read as far as they go, and be removed.
    damaged: RwLock<HashMap<SandboxName, (SandboxId, ApiError)>>,
    pub(crate) forks: Forks,
}

/// A sandbox whose journal was just made, or copied.
pub(crate) struct Founded {
    pub(crate) id: SandboxId,
    pub(crate) name: SandboxName,
    pub(crate) state: State,
    pub(crate) head: Head,
    pub(crate) epoch: Epoch,
}

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
        for (id, name, lease, state) in folded {
            let going_on = state.active_session().map(|(session, _)| session.clone());
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
            recovering.push((handle.clone(), recovered, going_on));
            sandboxes.insert(name, handle);
        }
        for (handle, recovered, going_on) in recovering {
            // A task that ended has told why in the log.
            let _ended = recovered.await;
            handle.serve_models().await;
            handle.open_way_again().await;
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
        Ok((
            Self {
                shared,
                sandboxes,
                damaged,
                forks,
            },
            recovery,
        ))
    }

    /// What every sandbox shares.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Creates a sandbox. Its supervisor is started by its first operation.
    ///
    /// # Errors
    /// `conflict` for a name that is taken, `invalid` for an image that is not there; nothing is left then.
    pub async fn create(&self, ask: CreateSandbox) -> Result<Handle, ApiError> {
        self.shared.room_to_begin()?;
        if let protocol::Image::Dir(path) = &ask.image
            && !path.is_dir()
        {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("image `{}` is no directory on this host", ask.image),
            )
            .hint("give the absolute path of an unpacked root file system after `dir:`"));
        }
        let mut replicate = ask.replicate;
        if let Some(store) = &mut replicate {
            remote::check_free(&self.shared, store, vec![ask.name.clone()]).await?;
            // It may be another one when the machine was started anew.
            store.device = None;
        }
        let asked_cwd = ask.cwd.is_some();
        let cwd = ask.cwd.unwrap_or_else(|| "/workspace".to_owned());
        if !cwd.starts_with('/') {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("working directory `{cwd}` is not absolute"),
            ));
        }
        self.check_limits(&ask.limits)?;
        if let Some(policy) = &ask.policy {
            way::parse(policy)?;
        }
        let mut spec = SandboxSpec {
            name: ask.name.clone(),
            image: ask.image,
            image_digest: None,
            user: None,
            command: Vec::new(),
            limits: ask.limits,
            on_crash: ask.on_crash,
            policy: ask.policy.filter(|text| !text.trim().is_empty()),
            replicate,
            env: ask.env,
            cwd,
        };
        let _kept = self.shared.unpacking.read().await;
        images::unpack(&self.shared, &mut spec, asked_cwd).await?;
        let workspace = new_workspace()?;
        let (pool, of) = (self.shared.pool.clone(), workspace.clone());
        let made = tokio::task::spawn_blocking(move || pool.create_as(&of));
        let first = Event::Created {
            spec,
            workspace: workspace.clone(),
        };
        let founded = self.found(&ask.name, first, None).await;
        let made = match made.await {
            Ok(made) => made.map_err(|e| error::of_pool(&e)),
            Err(gone) => Err(error::internal("the creation was abandoned", &gone)),
        };
        match (founded, made) {
            (Ok(founded), Ok(())) => Ok(self.begin(founded, None)),
            (Ok(founded), Err(problem)) => {
                self.unnumber(founded.id).await;
                Err(problem)
            }
            (Err(problem), made) => {
                if made.is_ok() {
                    self.discard(workspace).await;
                }
                Err(problem)
            }
        }
    }

    /// Keeps a secret in the daemon's own store, or gives it another value: the next request uses that.
    ///
    /// # Errors
    /// `invalid` for a name or value that cannot be one.
    pub async fn set_secret(
        &self,
        name: String,
        value: secret::Value,
    ) -> Result<SecretView, ApiError> {
        way::set_secret(&self.shared, name, value).await
    }

    /// Lists the secrets in the daemon's own store: their names, never their values.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn secrets(&self) -> Result<Vec<SecretView>, ApiError> {
        way::secrets(&self.shared).await
    }

    /// Takes a secret out of the daemon's own store: no request gets it from now on.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn remove_secret(&self, name: String) -> Result<(), ApiError> {
        way::remove_secret(&self.shared, name).await
    }

    /// Refuses limits that no sandbox can be held to, or can start with.
    fn check_limits(&self, limits: &protocol::Limits) -> Result<(), ApiError> {
        if let Some(memory) = limits.memory_bytes.filter(|memory| *memory < MIN_MEMORY) {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("a memory limit of {memory} bytes leaves no room for the sandbox itself"),
            )
            .hint("give at least 4M"));
        }
        if let Some(pids) = limits
            .pids
            .filter(|pids| !(MIN_PIDS..=MAX_PIDS).contains(pids))
        {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!("a limit of {pids} processes and threads cannot be held"),
            )
            .hint(format!("give {MIN_PIDS} to {MAX_PIDS}")));
        }
        if let Some(disk) = limits.disk_bytes {
            if disk < MIN_DISK {
                return Err(ApiError::new(
                    ErrorCode::Invalid,
                    format!("a disk limit of {disk} bytes leaves no room for files"),
                )
                .hint("give at least 16M"));
            }
            // Found out before anything is made.
            let can = self.shared.pool.can_limit();
            can.map_err(|e| error::of_pool(&e))?;
        }
        Ok(())
    }

    /// Gives a new sandbox its number and takes its name.
    pub(crate) async fn number(&self, name: &SandboxName) -> Result<SandboxId, ApiError> {
        let made = self.shared.store.create(name).await;
        made.map_err(|e| name_taken(name, e))
    }

    /// Starts the task of a sandbox that was just made.
    pub(crate) fn begin(&self, founded: Founded, made: Option<Made>) -> Handle {
        let Founded {
            id,
            name,
            state,
            head,
            epoch,
        } = founded;
        let (shared, models) = (self.shared.clone(), state.models.clone());
        let policy = state.spec.policy.clone();
        let files = Files {
            made,
            ..Files::default()
        };
        let (handle, _) = sandbox::spawn(shared, id, name.clone(), state, head, epoch, files);
        handle.serve_these_models(models);
        handle.open_way(policy.as_deref());
        self.write().insert(name, handle.clone());
        handle
    }

    /// Takes back what [`number`](Self::number) gave; the next start removes what this cannot.
    pub(crate) async fn unnumber(&self, id: SandboxId) {
        if let Err(left) = self.shared.store.remove(id).await {
            tracing::warn!(sandbox = %id, error = %error::chain(&left), "an empty journal is left");
        }
    }

    /// Removes a head that no journal names; the next start sweeps what this cannot remove.
    async fn discard(&self, workspace: WorkspaceId) {
        let pool = self.shared.pool.clone();
        let removed = tokio::task::spawn_blocking(move || pool.remove(&workspace)).await;
        if let Ok(Err(left)) = removed {
            tracing::warn!(error = %error::chain(&left), "an unused head is left");
        }
    }

    /// Writes the first event of a new sandbox with its journal, and what stands or falls with it; makes its state directory.
    pub(crate) async fn found(
        &self,
        name: &SandboxName,
        first: Event,
        then: Option<Event>,
    ) -> Result<Founded, ApiError> {
        let events: Vec<New> = std::iter::once(first).chain(then).map(New::from).collect();
        let (epoch, at) = (Epoch(0).next(), now());
        // As the fold sees them; it does not look at hashes.
        let stored = events.iter().zip(1..).map(|(new, seq)| protocol::Stored {
            seq: Seq(seq),
            id: new.id,
            epoch,
            at,
            event: new.event.clone(),
            hash: protocol::GENESIS_HASH,
        });
        let stored: Vec<_> = stored.collect();
        let node = &self.shared.config.node;
        let founded = self.shared.store.found(name, node, at, events);
        let lease = founded.await.map_err(|e| name_taken(name, e))?;
        let mut stored = stored.iter();
        let state = stored.next().and_then(State::begin).ok_or_else(not_first);
        let state = state.and_then(|mut state| {
            stored.for_each(|stored| state.apply(stored));
            state_dir(&self.shared, lease.sandbox).map(|()| state)
        });
        match state {
            Ok(state) => Ok(Founded {
                id: lease.sandbox,
                name: name.clone(),
                state,
                head: lease.head,
                epoch: lease.epoch,
            }),
            Err(problem) => {
                self.unnumber(lease.sandbox).await;
                Err(problem)
            }
        }
    }

    /// Finds a sandbox.
    ///
    /// # Errors
    /// `not_found`.
    pub fn get(&self, name: &SandboxName) -> Result<Handle, ApiError> {
        if let Some(handle) = self.read().get(name) {
            return Ok(handle.clone());
        }
        Err(self
            .damage(name)
            .map_or_else(|| error::gone(name), |(_, problem)| problem))
    }

    /// Lists the sandboxes by name.
    pub async fn list(&self) -> Vec<SandboxView> {
        let mut handles: Vec<Handle> = self.read().values().cloned().collect();
        handles.sort_by(|a, b| a.name.cmp(&b.name));
        let mut views = Vec::with_capacity(handles.len());
        for handle in handles {
            // One that is being removed is not there any more.
            if let Ok(view) = handle.view().await {
                views.push(view);
            }
        }
        let damaged = self
            .damaged
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        views.extend(damaged.iter().map(|(name, (_, problem))| SandboxView {
            name: name.clone(),
            state: protocol::api::SandboxState::Damaged,
            problem: Some(problem.message.clone()),
            image: protocol::Image::Host,
            created_at_ms: protocol::UnixMillis(0),
            boot: None,
            seq: Seq(0),
            epoch: Epoch(0),
            open_ops: Vec::new(),
            ops: 0,
            last_cut: None,
            disk_used_bytes: None,
            disk_limit_bytes: None,
            session: None,
            forked_from: None,
        }));
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    /// Whether any sandbox is too damaged to say what it stands on.
    pub(crate) fn has_damaged(&self) -> bool {
        let damaged = self.damaged.read();
        !damaged
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .is_empty()
    }

    /// Lists which sandbox stands on which image, by digest.
    pub(crate) async fn image_users(&self) -> Vec<(String, String)> {
        let mut handles: Vec<Handle> = self.read().values().cloned().collect();
        handles.sort_by(|a, b| a.name.cmp(&b.name));
        let mut users = Vec::new();
        for handle in handles {
            // One that is being removed stands on none.
            if let Ok(spec) = handle.ask(|reply| sandbox::Request::Spec { reply }).await
                && let Some(digest) = spec.image_digest
            {
                users.push((digest, handle.name.to_string()));
            }
        }
        users
    }

    /// Returns how many sandboxes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.read().len()
    }

    /// Returns whose journal a name means; also of a sandbox whose journal is too damaged to go on.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn journal_of(&self, name: &SandboxName) -> Result<SandboxId, ApiError> {
        if let Ok(handle) = self.get(name) {
            return Ok(handle.id);
        }
        let list = self
            .shared
            .store
            .list()
            .await
            .map_err(|e| error::of_journal(&e))?;
        let found = list.into_iter().find(|(_, known)| known == name);
        found.map(|(id, _)| id).ok_or_else(|| error::gone(name))
    }

    /// Removes a sandbox with everything of it.
    ///
    /// # Errors
    /// `not_found`, or what could not be removed.
    pub async fn remove(&self, name: &SandboxName) -> Result<(), ApiError> {
        if let Some((id, _)) = self.damage(name) {
            return self.remove_damaged(name, id).await;
        }
        let handle = self.get(name)?;
        let _alone = handle.forking.write().await;
        self.forks.let_go(handle.id)?;
        let session = handle.view().await.ok().and_then(|view| view.session);
        handle.remove().await?;
        self.forks.forget(handle.id);
        self.write().remove(name);
        // One that has not begun yet has its endpoint still kept for it.
        if let Some(session) = session {
            models::drop_kept(&self.shared, &session);
        }
        Ok(())
    }

    fn damage(&self, name: &SandboxName) -> Option<(SandboxId, ApiError)> {
        let damaged = self
            .damaged
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        damaged.get(name).cloned()
    }

    /// Removes what can be found without a journal; the next start's sweep finds the workspace.
    async fn remove_damaged(&self, name: &SandboxName, id: SandboxId) -> Result<(), ApiError> {
        let work = self.shared.clone();
        tokio::task::spawn_blocking(move || sandbox::remove_state(&work, id))
            .await
            .map_err(|e| error::internal("the removal was abandoned", &e))??;
        self.shared
            .store
            .remove(id)
            .await
            .map_err(|e| error::of_journal(&e))?;
        let mut damaged = self
            .damaged
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        damaged.remove(name);
        Ok(())
    }

    /// Starts a harness session in a sandbox.
    ///
    /// # Errors
    /// `invalid` for what the driver refuses, `conflict` while another session goes on.
    pub async fn start_session(
        &self,
        name: &SandboxName,
        ask: StartSession,
    ) -> Result<SessionView, ApiError> {
        let handle = self.get(name)?;
        self.shared.room_to_begin()?;
        handle.configure_models(&ask).await?;
        let id = session::begin(&handle, ask).await?;
        self.session(name, &id, None).await
    }

    /// Describes a session; with `after`, waits a while for it to have a later attempt or to end.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn session(
        &self,
        name: &SandboxName,
        id: &SessionId,
        after: Option<u32>,
    ) -> Result<SessionView, ApiError> {
        let handle = self.get(name)?;
        let mut tail = self
            .shared
            .store
            .tail(handle.id)
            .map_err(|e| error::of_journal(&e))?;
        let deadline = tokio::time::Instant::now() + session::LONG_POLL;
        loop {
            tail.borrow_and_update();
            let view = handle
                .sessions()
                .await?
                .into_iter()
                .find(|view| view.id == *id)
                .ok_or_else(|| {
                    ApiError::new(
                        ErrorCode::NotFound,
                        format!("sandbox `{name}` has no session `{id}`"),
                    )
                })?;
            let news = view.ended || after.is_none_or(|after| view.attempt > after);
            let waited = tokio::time::timeout_at(deadline, async {
                if news {
                    Err(())
                } else {
                    tail.changed().await.map_err(|_| ())
                }
            });
            if !matches!(waited.await, Ok(Ok(()))) {
                return Ok(view);
            }
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<SandboxName, Handle>> {
        self.sandboxes
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<SandboxName, Handle>> {
        self.sandboxes
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Makes a sandbox's state directory, where there is none. Its name is not synced when a sandbox is created: a power cut may
/// take it away from one that never ran, whose journal is there, and then nothing was in it.
fn state_dir(shared: &Shared, id: SandboxId) -> Result<(), ApiError> {
    let dir = shared.state_dir(id).join(protocol::paths::state::SPOOL);
    std::fs::create_dir_all(&dir)
        .map_err(|e| error::internal(&format!("cannot make {}", dir.display()), &e))
}

pub(crate) fn new_workspace() -> Result<WorkspaceId, ApiError> {
    workspace::new_workspace().map_err(|e| error::of_pool(&e))
}

fn name_taken(name: &SandboxName, refused: journal::Error) -> ApiError {
    match refused {
        journal::Error::NameTaken { .. } => ApiError::new(
            ErrorCode::Conflict,
            format!("sandbox `{name}` exists already"),
        )
        .hint(format!(
            "use it, pick another name, or `durable rm {name}` first"
        )),
        other => error::of_journal(&other),
    }
}

fn not_first() -> ApiError {
    ApiError::new(
        ErrorCode::Internal,
        "the first event is not what it was made as",
    )
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
