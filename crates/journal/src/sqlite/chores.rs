//! What the writer does besides appending: index rows for events that have none, and the removal of what was removed.
//!
//! Both are done in slices, along with a batch when there is much to do and by themselves when nobody waits. An index
//! row for each append at once would touch a random page for each journal in each commit, which halves the throughput.

use std::collections::VecDeque;

use protocol::{SandboxId, Seq};
use rusqlite::{Connection, Transaction};

use super::books::{Books, MISSING_ROW};

/// Events that may lie without an index row before rows are written along with each batch. They are the ones that an
/// open has to look through, and 16 MiB of 1 KiB events are looked through in a few milliseconds.
const UNINDEXED: usize = 8192;
/// Rows in one slice with nobody waiting: a call that arrives meanwhile is held up for a few milliseconds.
const IDLE_ROWS: usize = 1024;
/// Rows of removed journals that go along with a batch.
const SWEPT_ROWS: usize = 64;

/// A round of indexing: everything that lay without index rows when it began.
struct Round {
    left: VecDeque<SandboxId>,
    mark: i64,
}

#[derive(Default)]
pub(super) struct Chores {
    unindexed: usize,
    round: Option<Round>,
    garbage: VecDeque<SandboxId>,
}

/// How much may be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// A batch of so many events is being written; keep pace with it.
    Batch(usize),
    /// Nobody waits.
    Idle,
    /// The store is being closed: do all of the indexing.
    Closing,
}

impl Chores {
    pub(super) fn new(unindexed: usize, garbage: VecDeque<SandboxId>) -> Self {
        Self {
            unindexed,
            round: None,
            garbage,
        }
    }

    /// Begins anew after a transaction that was taken back, with what is to be done as the table and the books say it.
    pub(super) fn begin_anew(&mut self, conn: &Connection, books: &Books) -> rusqlite::Result<()> {
        let mut garbage = conn.prepare_cached("SELECT sandbox FROM garbage")?;
        let garbage = garbage.query_map([], |row| row.get::<_, i64>(0))?;
        let garbage = garbage.map(|id| id.map(|id| SandboxId(id.cast_unsigned())));
        let unindexed = books.lock().values().map(|book| book.tail.len()).sum();
        *self = Self::new(unindexed, garbage.collect::<rusqlite::Result<_>>()?);
        Ok(())
    }

    /// Notes what a committed batch left to do.
    pub(super) fn note(&mut self, appended: usize, removed: Vec<SandboxId>) {
        self.unindexed += appended;
        self.garbage.extend(removed);
    }

    /// Returns whether an idle writer should do something.
    pub(super) fn are_due(&self) -> bool {
        self.unindexed >= IDLE_ROWS || !self.garbage.is_empty()
    }

    /// Writes index rows; returns up to where, for the books, once it is committed.
    pub(super) fn index(
        &mut self,
        tx: &Transaction<'_>,
        books: &Books,
        last_row: i64,
        room: Room,
    ) -> rusqlite::Result<Vec<(SandboxId, Seq)>> {
        let mut budget = match room {
            Room::Batch(_) if self.round.is_none() && self.unindexed < UNINDEXED => 0,
            // Twice the pace of the appends, so a round ends.
            Room::Batch(events) => (2 * events).max(16),
            Room::Idle if self.unindexed < IDLE_ROWS => 0,
            Room::Idle => IDLE_ROWS,
            Room::Closing => usize::MAX,
        };
        let mut done = Vec::new();
        if budget == 0 {
            return Ok(done);
        }
        if room == Room::Closing {
            self.round = None;
        }
        let round = self.round.get_or_insert_with(|| Round {
            left: books
                .lock()
                .iter()
                .filter(|(_, book)| !book.tail.is_empty())
                .map(|(sandbox, _)| *sandbox)
                .collect(),
            mark: last_row,
        });
        let mut insert =
            tx.prepare_cached("INSERT OR REPLACE INTO event_index VALUES (?1, ?2, ?3)")?;
        while budget > 0
            && let Some(sandbox) = round.left.pop_front()
        {
            // A journal that was removed meanwhile has its rows already.
            let Ok((mut seq, rows, more)) = books.with(sandbox, |book| {
                let rows: Vec<i64> = book.tail.iter().take(budget).copied().collect();
                let more = rows.len() < book.tail.len();
                (book.indexed, rows, more)
            }) else {
                continue;
            };
            for row in &rows {
                seq = seq.next();
                if *row != MISSING_ROW {
                    insert.execute([sandbox.0.cast_signed(), seq.0.cast_signed(), *row])?;
                }
            }
            budget -= rows.len();
            self.unindexed = self.unindexed.saturating_sub(rows.len());
            done.push((sandbox, seq));
            if more {
                round.left.push_front(sandbox);
                break;
            }
        }
        if round.left.is_empty() {
            tx.prepare_cached("UPDATE mark SET indexed = ?1")?
                .execute([round.mark])?;
            self.round = None;
        }
        Ok(done)
    }

    /// Deletes events of removed journals.
    pub(super) fn sweep(&mut self, tx: &Transaction<'_>, room: Room) -> rusqlite::Result<()> {
        let budget = match room {
            Room::Batch(_) => SWEPT_ROWS,
            Room::Idle => IDLE_ROWS,
            Room::Closing => 0,
        };
        let Some(&sandbox) = self.garbage.front().filter(|_| budget > 0) else {
            return Ok(());
        };
        let id = sandbox.0.cast_signed();
        let rows: Vec<(i64, i64)> = tx
            .prepare_cached(
                "SELECT seq, id FROM event_index WHERE sandbox = ?1 ORDER BY seq LIMIT ?2",
            )?
            .query_map([id, budget as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut event = tx.prepare_cached("DELETE FROM event WHERE id = ?1 AND sandbox = ?2")?;
        let mut index =
            tx.prepare_cached("DELETE FROM event_index WHERE sandbox = ?1 AND seq = ?2")?;
        for (seq, row) in &rows {
            event.execute([*row, id])?;
            index.execute([id, *seq])?;
        }
        if rows.len() < budget {
            tx.prepare_cached("DELETE FROM garbage WHERE sandbox = ?1")?
                .execute([id])?;
            self.garbage.pop_front();
        }
        Ok(())
    }
}
