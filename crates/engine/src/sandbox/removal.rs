//! Removing a sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::{ApiError, ErrorCode, WorkspaceId};

use super::Reply;
use super::actor::{Done, Phase, ROOM_AGAIN, Sandbox, Turn, answer};
use super::stop::STOP_SLACK;
use crate::error;
use crate::shared::Shared;
use crate::trees::blocking;

impl Sandbox {
    pub(super) fn remove(&mut self, reply: Reply<()>, turn: &mut Turn) {
        if let Phase::Starting | Phase::Stopping { .. } = self.phase {
            let busy = format!("sandbox `{}` is being started or stopped", self.name);
            answer(
                turn,
                reply,
                Err(ApiError::new(ErrorCode::Unavailable, busy).hint("try again")),
            );
            return;
        }
        self.fail(error::gone(&self.name));
        let (shared, done) = (self.shared.clone(), self.done.clone());
        let (id, dir) = (self.id, self.dir.clone());
        let mut heads = self.state.retired.clone();
        heads.push(self.state.workspace.clone());
        tokio::spawn(async move {
            let removed = remove_all(shared, id, dir, heads).await;
            let _ended = done.send(Done::Removed(removed, reply));
        });
    }
}

/// Removes everything of a sandbox. The journal goes before its files: what a crash leaves of those is swept, but a journal
/// without files would be a sandbox that is there and cannot be used.
async fn remove_all(
    shared: Arc<Shared>,
    id: protocol::SandboxId,
    dir: PathBuf,
    heads: Vec<WorkspaceId>,
) -> Result<(), ApiError> {
    let work = shared.clone();
    let ended = blocking(move || {
        end(&work, &dir)?;
        // A state directory that has one and no journal is taken for one whose journal was lost.
        remove_file(&dir.join(protocol::paths::state::TABLE))
    });
    ended.await?;
    failpoint::hit("before_removed");
    let forgotten = match shared.store.remove(id).await {
        Err(journal::Error::NoSpace) => false,
        done => done.map(|()| true).map_err(|e| error::of_journal(&e))?,
    };
    failpoint::hit("after_removed");
    let work = shared.clone();
    let files = blocking(move || {
        for head in heads {
            work.pool.remove(&head).map_err(|e| error::of_pool(&e))?;
        }
        remove_state(&work, id)
    });
    let files = files.await;
    if !forgotten {
        files?;
        return forget(&shared, id).await;
    }
    if let Err(left) = files {
        tracing::warn!(sandbox = %id, error = %left.message, "files stay until the next start");
    }
    Ok(())
}

/// Removes a journal whose sandbox is gone. What was removed makes room for that on a full disk, a little later.
async fn forget(shared: &Shared, id: protocol::SandboxId) -> Result<(), ApiError> {
    let deadline = tokio::time::Instant::now() + STOP_SLACK;
    loop {
        match shared.store.remove(id).await {
            Err(journal::Error::NoSpace) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(ROOM_AGAIN).await;
            }
            done => return done.map_err(|e| error::of_journal(&e)),
        }
    }
}

/// Ends a sandbox's processes and removes its state directory and its secrets.
pub(crate) fn remove_state(shared: &Shared, id: protocol::SandboxId) -> Result<(), ApiError> {
    let dir = shared.state_dir(id);
    end(shared, &dir)?;
    gone(&dir, std::fs::remove_dir_all(&dir))?;
    remove_file(&shared.secret_file(id))
}

fn end(shared: &Shared, dir: &Path) -> Result<(), ApiError> {
    if let Some(running) = shared.level.find(dir) {
        shared
            .level
            .kill(&running)
            .map_err(|e| error::of_level(&e))?;
    }
    shared.level.clear(dir).map_err(|e| error::of_level(&e))
}

fn remove_file(path: &Path) -> Result<(), ApiError> {
    gone(path, std::fs::remove_file(path))
}

/// What is not there is as good as removed.
fn gone(path: &Path, removed: std::io::Result<()>) -> Result<(), ApiError> {
    match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(error::internal(
            &format!("cannot remove {}", path.display()),
            &e,
        )),
        _ => Ok(()),
    }
}
