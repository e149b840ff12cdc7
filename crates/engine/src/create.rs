//! Making a sandbox: its limits and image are looked at, its journal is founded with its first event, its task begins.

use journal::New;
use protocol::api::CreateSandbox;
use protocol::{
    ApiError, EffectId, Epoch, ErrorCode, Event, Head, SandboxId, SandboxName, SandboxSpec, Seq,
    WorkspaceId,
};

use crate::engine::Engine;
use crate::error;
use crate::forks::Made;
use crate::images;
use crate::remote;
use crate::sandbox::{self, Files, Handle};
use crate::shared::{Shared, now};
use crate::state::State;
use crate::way;

/// The supervisor and one small process.
const MIN_MEMORY: u64 = 4 << 20;

/// The supervisor's threads and one small process; and what Linux can count.
const MIN_PIDS: u64 = 16;
const MAX_PIDS: u64 = 4 << 20;

/// What the file system sets aside for a few changes at once.
const MIN_DISK: u64 = 16 << 20;

/// A sandbox whose journal was just made, or copied.
pub(crate) struct Founded {
    pub(crate) id: SandboxId,
    pub(crate) name: SandboxName,
    pub(crate) state: State,
    pub(crate) head: Head,
    pub(crate) epoch: Epoch,
}

impl Engine {
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
        let broken: Vec<EffectId> = state.effects.keys().cloned().collect();
        let files = Files {
            made,
            ..Files::default()
        };
        let (handle, _) = sandbox::spawn(shared, id, name.clone(), state, head, epoch, files);
        handle.serve_these_models(models);
        let egress = handle.open_way();
        if !broken.is_empty() {
            // Of one that was pulled: what it had under way was so elsewhere.
            let handle = handle.clone();
            tokio::spawn(async move { handle.settle_effects(&egress, broken).await });
        }
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
}

/// Makes a sandbox's state directory, where there is none. Its name is not synced when a sandbox is created: a power cut may
/// take it away from one that never ran, whose journal is there, and then nothing was in it.
pub(crate) fn state_dir(shared: &Shared, id: SandboxId) -> Result<(), ApiError> {
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
