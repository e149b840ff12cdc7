//! Settlements: made durable after the output they speak of, and only then told.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use protocol::control::FromSupervisor;
use protocol::table::Record;
use protocol::{Offset, Outcome, Settlement, Stream};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::Running;
use super::end::Why;
use crate::core::Core;
use crate::ledger::{self, Output};
use crate::ops::{Op, State};
use crate::reaper::Exit;
use crate::{spool, threads};

/// Output beyond this is synced apart, so that it does not hold up the commits of others.
const MUCH: u64 = 1 << 20;

/// Settles what ended: with what its main process did, or with why we ended it.
pub(super) async fn ended(running: &Running<'_>, exit: Exit, error: Option<spool::Error>) {
    let why = running.ending.as_ref().map(|ending| ending.why.clone());
    let (outcome, words) = match (error, why) {
        (Some(error), _) => (Outcome::Cancelled, Some(error.to_string())),
        (None, Some(Why::Output(words) | Why::Order(words))) => (Outcome::Cancelled, Some(words)),
        (None, Some(Why::Time)) => (Outcome::TimedOut, None),
        (None, None) => match exit {
            Exit::Code(exit_code) => (Outcome::Exited { exit_code }, None),
            Exit::Signal(signal) => (Outcome::Signaled { signal }, None),
        },
    };
    let tails = [Some(&running.stdout), running.stderr.as_ref()];
    let tails = tails.map(|pump| pump.map(|pump| pump.tail()));
    let length = |at: usize| Offset(tails[at].map_or(0, |tail| tail.length()));
    let mut settlement = Settlement {
        outcome,
        stdout_bytes: length(0),
        stderr_bytes: length(1),
        duration_ms: u64::try_from(running.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        error: words,
    };
    let mut output = Vec::new();
    for tail in tails.into_iter().flatten() {
        let Some(file) = tail.file() else { continue };
        if tail.length() > MUCH
            && let Some(Err(errno)) = sync_apart(&file).await
        {
            // A sync error is told once for an open file; the ledger's own sync of it would find nothing.
            ledger::spoil(&mut settlement, &errno.into());
        }
        output.push(Output {
            file,
            created: true,
        });
    }
    settle(running.core, running.op, settlement, output).await;
}

type SyncWork = (Arc<OwnedFd>, oneshot::Sender<Result<(), Errno>>);

/// Syncs on a thread of its own; `None` if there is none to be had.
async fn sync_apart(file: &Arc<OwnedFd>) -> Option<Result<(), Errno>> {
    let sync = |(file, done): SyncWork| {
        // Whoever waits for it waits to the end.
        let _told: Result<(), _> = done.send(rustix::fs::fdatasync(&*file));
    };
    let thread = threads::start::<SyncWork>("sync", sync).ok()?;
    let (done, synced) = oneshot::channel();
    thread.give((Arc::clone(file), done));
    synced.await.ok()
}

/// Settles what was not executed.
pub(super) async fn never_ran(core: &Rc<Core>, op: &Rc<Op>, why: String) {
    let settlement = Settlement {
        outcome: Outcome::Cancelled,
        stdout_bytes: Offset(0),
        stderr_bytes: Offset(0),
        duration_ms: 0,
        error: Some(why),
    };
    settle(core, op, settlement, Vec::new()).await;
}

/// Settles what a former supervisor left running when it ended.
pub(super) async fn lost(core: &Rc<Core>, op: &Rc<Op>) {
    let length = |stream| Offset(core.spool.length(&op.id, op.attempt, stream));
    let settlement = Settlement {
        outcome: Outcome::Lost,
        stdout_bytes: length(Stream::Stdout),
        stderr_bytes: length(Stream::Stderr),
        duration_ms: 0,
        error: Some("the supervisor that ran it ended before it did".to_owned()),
    };
    settle(core, op, settlement, Vec::new()).await;
}

async fn settle(core: &Rc<Core>, op: &Rc<Op>, mut settlement: Settlement, output: Vec<Output>) {
    let record = Record::Settled {
        op: op.id.clone(),
        attempt: op.attempt,
        settlement: settlement.clone(),
    };
    if let Some(error) = core.ledger.commit(vec![record], output).await {
        ledger::spoil(&mut settlement, &error);
    }
    failpoint::hit("sup_settled");
    op.state.replace(State::Settled(settlement.clone()));
    if let Some(input) = &op.input {
        input.close();
        let (offset, closed) = input.accepted();
        core.link.say(FromSupervisor::StdinAccepted {
            op: op.id.clone(),
            offset,
            closed,
        });
    }
    core.link.last_output(&op.id, op.reach());
    core.link.say(FromSupervisor::Settled {
        op: op.id.clone(),
        attempt: op.attempt,
        settlement,
    });
    op.changed.notify_waiters();
}
