//! Stopping the supervisor.

use std::time::Duration;

use protocol::control::ToSupervisor;
use protocol::{ApiError, ErrorCode};

use super::Reply;
use super::actor::{Phase, Sandbox, Turn, answer};
use crate::error;

/// How long a supervisor that was told to end may take beyond the grace it gives to its processes.
pub(super) const STOP_SLACK: Duration = Duration::from_secs(10);

impl Sandbox {
    pub(super) fn stop(&mut self, grace_ms: u64, reply: Reply<()>, turn: &mut Turn) {
        match std::mem::replace(&mut self.phase, Phase::Down) {
            Phase::Down => answer(turn, reply, Ok(())),
            Phase::Up { link, boot } => {
                self.cancelled.extend(self.state.open.iter().cloned());
                link.send(ToSupervisor::Shutdown { grace_ms });
                self.spawn_deadline(Duration::from_millis(grace_ms) + STOP_SLACK);
                self.phase = Phase::Stopping {
                    link,
                    boot,
                    waiting: vec![reply],
                };
            }
            Phase::Stopping {
                link,
                boot,
                mut waiting,
            } => {
                waiting.push(reply);
                self.phase = Phase::Stopping {
                    link,
                    boot,
                    waiting,
                };
            }
            Phase::Starting => {
                self.phase = Phase::Starting;
                let starting = format!("sandbox `{}` is being started", self.name);
                answer(
                    turn,
                    reply,
                    Err(ApiError::new(ErrorCode::Unavailable, starting).hint("try again")),
                );
            }
            Phase::Crashing { mut stopped } => {
                match &mut self.after_crash {
                    Some(after) => after.replies.push(reply),
                    None => stopped.push(reply),
                }
                self.phase = Phase::Crashing { stopped };
            }
        }
    }

    /// What is answered to whoever wants it to run meanwhile.
    pub(super) fn stopping(&self) -> ApiError {
        let stopping = format!("sandbox `{}` is being stopped", self.name);
        ApiError::new(ErrorCode::Unavailable, stopping).hint("try again")
    }

    /// Kills a supervisor that was told to end and does not.
    fn spawn_deadline(&self, after: Duration) {
        let (level, dir) = (self.shared.level.clone(), self.dir.clone());
        let running = level.find(&dir);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let Some(running) = running else { return };
            tokio::task::spawn_blocking(move || {
                if level.alive(&running)
                    && let Err(failure) = level.kill(&running)
                {
                    tracing::error!(error = %error::chain(&failure), "a supervisor does not end");
                }
            });
        });
    }
}
