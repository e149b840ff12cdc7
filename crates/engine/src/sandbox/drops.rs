//! Cuts that are given back: by the retention rule, or because somebody says so.

use std::collections::HashSet;

use protocol::{ApiError, CutId, ErrorCode, Event, OpId, Replay};

use super::actor::{Sandbox, Turn, answer};
use super::checkpoints::unknown;
use super::{Handle, Reply, Request};
use crate::shared::now;
use crate::state::Cut;
use crate::{error, retention};

/// Whether a checkpoint goes that somebody named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Whatever it is called.
    Yes,
    /// Only if it has no label.
    No,
}

impl Handle {
    /// Removes a checkpoint, by its id or label; returns when the pool has its room back.
    ///
    /// # Errors
    /// `not_found`; `conflict` for one that the files go on from, or that has a label and was not forced; `unavailable` for
    /// one that is needed right now.
    pub async fn drop_checkpoint(&self, at: String, force: Force) -> Result<(), ApiError> {
        self.ask(|reply| Request::DropCheckpoint { at, force, reply })
            .await
    }
}

impl Sandbox {
    pub(super) fn drop_checkpoint(
        &mut self,
        at: &str,
        force: Force,
        reply: Reply<()>,
        turn: &mut Turn,
    ) {
        match self.droppable(at, force) {
            Ok(cut) => self.give_back(vec![cut], Some(reply), turn),
            Err(needed) => answer(turn, reply, Err(needed)),
        }
    }

    fn droppable(&self, at: &str, force: Force) -> Result<Cut, ApiError> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        let mut cuts = self.state.cuts.iter();
        let named = |cut: &&Cut| cut.id.as_str() == at || cut.label.as_deref() == Some(at);
        let cut = cuts.find(named).ok_or_else(|| unknown(&self.name, at))?;
        let name = &self.name;
        let is = |what: &str| format!("checkpoint {} of sandbox `{name}` {what}", cut.id);
        if self.state.last_cut() == Some(&cut.id) {
            let tip = is("is the one that its files go on from");
            return Err(ApiError::new(ErrorCode::Conflict, tip)
                .hint("it can go when there is a later one, or after a rewind to another"));
        }
        if self.held.contains_key(&cut.id) {
            let held = is("is in use: a fork, a push, a rewind or a look at it is under way");
            return Err(ApiError::new(ErrorCode::Unavailable, held).hint("try again"));
        }
        if let Some((op, _)) = self.rolled_back_to().find(|(_, to)| **to == cut.id) {
            let needed = is(&format!("is what operation `{op}` would be rolled back to"));
            return Err(
                ApiError::new(ErrorCode::Unavailable, needed).hint("try again when it has ended")
            );
        }
        if let (Some(label), Force::No) = (&cut.label, force) {
            let labeled = is(&format!("is labeled `{label}`, so it is kept"));
            return Err(ApiError::new(ErrorCode::Conflict, labeled)
                .hint(format!("`durable checkpoint rm {name} {label} --force`")));
        }
        Ok(cut.clone())
    }

    /// The open operations that may be run again from the cut before them, and that cut.
    fn rolled_back_to(&self) -> impl Iterator<Item = (&OpId, &CutId)> {
        let open = self.state.open.iter();
        open.filter_map(|id| {
            let op = self.state.ops.get(id)?;
            let rolls = op.open_spec()?.replay == Replay::Rollback;
            op.cut_before
                .as_ref()
                .filter(|_| rolls)
                .map(|cut| (id, cut))
        })
    }

    /// Gives cuts back by the retention rule, but none that an open operation may be rolled back to, that a fork is being
    /// made of, or that the files go on from.
    pub(super) fn retain(&mut self, turn: &mut Turn) {
        let latest = self.shared.config.keep_cuts;
        // A few at once: each drop is an event and work for the pool.
        if self.state.cuts.len() < self.retained.max(latest) + latest / 8 + 1 {
            return;
        }
        let mut needed: HashSet<&CutId> = self.rolled_back_to().map(|(_, cut)| cut).collect();
        needed.extend(self.state.last_cut());
        needed.extend(self.held.keys());
        let dropped = retention::surplus(self.state.cuts.iter(), latest, now(), |cut| {
            needed.contains(cut)
        });
        self.retained = self.state.cuts.len() - dropped.len();
        if !dropped.is_empty() {
            self.give_back(dropped, None, turn);
        }
    }

    /// Gives cuts back to the pool once that is journaled, and tells who asked for it.
    fn give_back(&mut self, dropped: Vec<Cut>, reply: Option<Reply<()>>, turn: &mut Turn) {
        let cuts = dropped.iter().map(|cut| cut.id.clone()).collect();
        self.push(turn, Event::CutsDropped { cuts });
        turn.after.push(Box::new(move |sandbox| {
            failpoint::hit("after_cuts_dropped");
            let shared = sandbox.shared.clone();
            tokio::task::spawn_blocking(move || {
                for cut in dropped {
                    if let Err(failure) = shared.pool.drop_cut(&cut.workspace, &cut.id) {
                        // It stays as litter until the next start of a daemon sweeps the pool.
                        tracing::warn!(cut = %cut.id, error = %error::chain(&failure), "a cut stays");
                    }
                }
                if let Some(reply) = reply {
                    // A client that went away needs no answer.
                    let _gone = reply.send(Ok(()));
                }
            });
        }));
    }
}
