//! Forks that go with the client that asked for them: nobody else knows of them, so nobody else would remove them.
//!
//! That they are bound stands in the first event of their journal, and that one is kept in a later one. So a daemon that starts
//! finds those that the one before it did not come to remove: its clients have lost their connections.

use std::sync::Arc;

use protocol::api::{ForkSandbox, SandboxView};
use protocol::{ApiError, ErrorCode, Event, SandboxName};

use crate::engine::Engine;
use crate::forks::Binding;
use crate::sandbox::Handle;

/// How often a removal is tried that somebody keeps coming before.
const TRIES: u32 = 5;

/// Forks of a client that is there. Dropped, those that were not kept are removed.
pub struct Bound {
    engine: Arc<Engine>,
    forks: Vec<(Handle, SandboxView)>,
}

impl Bound {
    /// Makes forks of a sandbox at one place: all of them, or none. They are removed when this is dropped, but for those that
    /// are [kept](Engine::keep) until then.
    ///
    /// # Errors
    /// As [`Engine::fork`].
    pub async fn fork(
        engine: Arc<Engine>,
        name: &SandboxName,
        ask: ForkSandbox,
    ) -> Result<Self, ApiError> {
        let forks = engine.forked(name, ask, Binding::Client).await?;
        Ok(Self { engine, forks })
    }

    /// Describes them as they were made.
    pub fn views(&self) -> impl Iterator<Item = &SandboxView> {
        self.forks.iter().map(|(_, view)| view)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for (fork, _) in self.forks.drain(..) {
            let engine = self.engine.clone();
            // Where the daemon ends meanwhile, the next one does it.
            tokio::spawn(async move { engine.let_go(&fork).await });
        }
    }
}

impl Engine {
    /// Lets a bound fork stay, whatever becomes of its client. Any other sandbox stays anyway.
    ///
    /// # Errors
    /// `not_found`, or its journal cannot be written.
    pub async fn keep(&self, name: &SandboxName) -> Result<(), ApiError> {
        let fork = self.get(name)?;
        if fork.view().await?.bound {
            fork.record(vec![Event::Kept]).await?;
        }
        Ok(())
    }

    /// Removes a fork whose client is gone, unless it was kept.
    pub(crate) async fn let_go(&self, fork: &Handle) {
        for _ in 0..TRIES {
            // One that is removed already has no view any more.
            if !fork.view().await.is_ok_and(|view| view.bound) {
                return;
            }
            match self.remove(&fork.name).await {
                Ok(()) => return,
                // It is being started or stopped: that comes to an end.
                Err(busy) if busy.code == ErrorCode::Unavailable => {
                    if fork.start().await.is_err() {
                        // Whatever it says, it stands still then.
                        let _stopped = fork.stop(0).await;
                    }
                }
                Err(problem) => {
                    tracing::warn!(sandbox = %fork.name, error = %problem.message, "a fork of a client that is gone is left");
                    return;
                }
            }
        }
        tracing::warn!(sandbox = %fork.name, "a fork of a client that is gone is left until the next start");
    }
}
