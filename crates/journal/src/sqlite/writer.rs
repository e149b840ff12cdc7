//! The one thread that writes: it drains the queue, puts everything into one transaction, commits once, then answers.
//!
//! Nothing is answered, and nothing changes in the books, before the commit is on disk. A failed commit ends the store:
//! what is on disk then is unknown, and only a new start with recovery can tell. One for which the disk has no room is
//! none: it is taken back, its callers are told so, and the store goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};

use super::batch::Batch;
use super::books::Books;
use super::checkpoint::Checkpoints;
use super::chores::{Chores, Room};
use super::command::{Answer, Command};
use super::fault::{Fault, Trouble};
use crate::queue::{Gather, Queue, Taken};
use crate::{Error, Failure};

/// Calls in one transaction: bounds how long the first of them waits.
const BATCH_CALLS: usize = 1024;
/// Encoded bytes in one transaction: below the page cache, so that no page is written twice.
const BATCH_BYTES: usize = 4 << 20;
/// How long nobody must have called before chores are done.
const IDLE: Duration = Duration::from_millis(200);

/// The longest wait for company.
const PATIENCE: Duration = Duration::from_millis(2);

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) queue: Arc<Queue<Command>>,
    pub(super) books: Arc<Books>,
    pub(super) fault: Arc<Fault>,
    pub(super) checkpoints: Checkpoints,
    pub(super) chores: Chores,
    pub(super) next_row: i64,
    pub(super) gather: Gather,
}

impl Writer {
    /// Works until the queue is shut or the store fails.
    pub(super) fn run(mut self) {
        loop {
            let (batch, room) = match self.queue.take(BATCH_CALLS, BATCH_BYTES, IDLE, self.gather) {
                Taken::Batch(batch) => {
                    let events = batch.iter().map(Command::events).sum();
                    (batch, Room::Batch(events))
                }
                Taken::Idle if self.chores.are_due() => (Vec::new(), Room::Idle),
                Taken::Idle => continue,
                Taken::Shut => (Vec::new(), Room::Closing),
            };
            // The thread that moves pages may have met an error.
            if let Some(failure) = self.fault.get() {
                batch
                    .into_iter()
                    .for_each(|c| c.fail(Error::Failed(failure.clone())));
                break;
            }
            if let Err(failure) = self.transact(batch, room) {
                self.fault.set(failure);
                break;
            }
            if room == Room::Closing {
                break;
            }
        }
        while let Some(command) = self.queue.pop() {
            command.fail(self.fault.error());
        }
        // Whoever follows a journal learns that nothing more will come.
        self.books.lock().clear();
    }

    fn transact(&mut self, commands: Vec<Command>, room: Room) -> Result<(), Failure> {
        let mut answers = Vec::with_capacity(commands.len());
        let start = Instant::now();
        match self.commit(commands, &mut answers, room) {
            Ok(()) => {
                // Whoever is answered now and whoever waits already are those who may share the next commit. Waiting for
                // them costs less than committing for the first of them alone, as long as it is much shorter.
                let around = answers.len() + self.queue.len();
                self.gather = Gather {
                    calls: (around - around / 8).min(BATCH_CALLS),
                    patience: (start.elapsed() / 2).min(PATIENCE),
                };
                answers.into_iter().for_each(Answer::give);
            }
            Err(trouble) => {
                if let Trouble::Failed(failure) = &trouble {
                    // First nobody is let in any more, then those who wait are told.
                    self.fault.set(failure.clone());
                } else {
                    self.chores.begin_anew(&self.conn, &self.books)?;
                }
                answers.into_iter().for_each(|a| a.fail(trouble.error()));
                return match trouble {
                    Trouble::Failed(failure) => Err(failure),
                    Trouble::NoSpace => Ok(()),
                };
            }
        }
        failpoint::hit("journal.answered");
        match self
            .checkpoints
            .after_commit(&self.conn)
            .map_err(Trouble::from)
        {
            // What was not moved stays in the log.
            Ok(()) | Err(Trouble::NoSpace) => Ok(()),
            Err(Trouble::Failed(failure)) => Err(failure),
        }
    }

    fn commit(
        &mut self,
        commands: Vec<Command>,
        answers: &mut Vec<Answer>,
        room: Room,
    ) -> Result<(), Trouble> {
        let before = self.next_row;
        let done = self.commit_all(commands, answers, room);
        if done.is_err() {
            self.next_row = before;
        }
        done
    }

    fn commit_all(
        &mut self,
        commands: Vec<Command>,
        answers: &mut Vec<Answer>,
        room: Room,
    ) -> Result<(), Trouble> {
        let last_row = self.next_row - 1;
        let tx = self
            .conn
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let indexed = self.chores.index(&tx, &self.books, last_row, room)?;
        let mut batch = Batch::new(&tx, &self.books, &mut self.next_row)?;
        let mut failed = None;
        for command in commands {
            match &failed {
                None => match batch.apply(command) {
                    Ok(answer) => answers.push(answer),
                    Err(trouble) => failed = Some(trouble),
                },
                Some(trouble) => command.fail(trouble.error()),
            }
        }
        let drafts = batch.drafts();
        if let Some(trouble) = failed {
            return Err(trouble);
        }
        self.chores.sweep(&tx, room)?;
        failpoint::hit("journal.commit");
        tx.commit().map_err(|e| match Trouble::from(e) {
            Trouble::Failed(failure) => Trouble::Failed(Failure {
                what: "cannot commit to the journal",
                ..failure
            }),
            Trouble::NoSpace => Trouble::NoSpace,
        })?;
        failpoint::hit("journal.committed");
        self.books.note_indexed(&indexed);
        let (appended, removed) = drafts.enter(&self.books);
        self.chores.note(appended, removed);
        Ok(())
    }
}
