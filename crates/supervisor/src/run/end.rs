//! Ending an operation: SIGTERM, some grace, SIGKILL, to everything that belongs to it.

use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Running, at};
use crate::launch::op_entry;
use crate::spool;
use crate::tree::Tree;

/// What an operation gets between the two signals when its time is over.
pub(super) const TIMEOUT_GRACE: Duration = Duration::from_secs(1);
/// How often SIGKILL is repeated while something is left: it may fork faster than we look.
const KILL_AGAIN: Duration = Duration::from_millis(100);
/// After this much killing the operation settles even if something is left, which then hangs in the kernel.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Why we end it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// Its time is over.
    Time,
    /// Somebody wants it to end; in words.
    Order(String),
    /// Its output cannot be kept; in words.
    Output(String),
}

/// An end that has begun.
pub(super) struct Ending {
    pub(super) why: Why,
    tree: Tree,
    kill_at: Instant,
    /// When SIGKILL was sent first.
    killed: Option<Instant>,
}

impl Running<'_> {
    /// Begins to end it. Once begun, a later reason only makes it quicker.
    pub(super) fn end(&mut self, why: Why, grace: Duration) {
        let kill_at = Instant::now() + grace;
        if let Some(ending) = &mut self.ending {
            ending.kill_at = ending.kill_at.min(kill_at);
            return;
        }
        let mut tree = Tree::new(self.pid, op_entry(&self.op.id), &self.core.proc);
        if !grace.is_zero() {
            tree.signal(&self.core.proc, Signal::TERM);
            // A stopped process hears nothing else.
            tree.signal(&self.core.proc, Signal::CONT);
        }
        self.ending = Some(Ending {
            why,
            tree,
            kill_at,
            killed: None,
        });
    }

    /// Ends it at once, because its output cannot be kept.
    pub(super) fn cut_off(&mut self, error: &spool::Error) {
        self.stdout.stop();
        if let Some(stderr) = &self.stderr {
            stderr.stop();
        }
        self.end(Why::Output(error.to_string()), Duration::ZERO);
        self.kill();
    }

    pub(super) fn kill_at(&self) -> Option<Instant> {
        self.ending.as_ref().map(|ending| ending.kill_at)
    }

    pub(super) fn kill(&mut self) {
        if let Some(ending) = &mut self.ending {
            ending.tree.signal(&self.core.proc, Signal::KILL);
            let now = Instant::now();
            ending.killed.get_or_insert(now);
            ending.kill_at = now + KILL_AGAIN;
        }
    }

    /// Where we are ending it: waits until nothing of it is left, killing when the grace is over.
    pub(super) async fn finish_ending(
        &mut self,
        failures: &mut mpsc::UnboundedReceiver<spool::Error>,
    ) {
        loop {
            let core = self.core;
            let next = core.reaper.next();
            let Some(ending) = &mut self.ending else {
                return;
            };
            let is_hopeless = ending.killed.is_some_and(|at| at.elapsed() > GIVE_UP);
            if ending.tree.look(&core.proc).is_empty() || is_hopeless {
                return;
            }
            tokio::select! {
                () = next => {}
                Some(error) = failures.recv() => self.cut_off(&error),
                () = at(self.kill_at()) => self.kill(),
            }
        }
    }
}
