//! All sandboxes of one data directory: found by name, listed, removed; and their sessions.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use protocol::api::{SandboxView, SessionView, StartSession};
use protocol::{ApiError, Epoch, ErrorCode, SandboxId, SandboxName, Seq, SessionId};

use crate::error;
use crate::forks::Forks;
use crate::models;
use crate::sandbox::{self, Handle};
use crate::session;
use crate::shared::Shared;

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
    pub(crate) sandboxes: RwLock<HashMap<SandboxName, Handle>>,
    /// Those whose journal cannot be folded: they are shown, can be read as far as they go, and be removed.
    pub(crate) damaged: RwLock<HashMap<SandboxName, (SandboxId, ApiError)>>,
    pub(crate) forks: Forks,
}

impl Engine {
    /// What every sandbox shares.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
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
            bound: false,
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

    pub(crate) fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<SandboxName, Handle>> {
        self.sandboxes
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
