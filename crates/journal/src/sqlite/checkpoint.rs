//! Moving committed pages from the write-ahead log into the database, outside the commit path.
//!
//! A thread of its own does the bulk while commits go on. It can never overtake a steady writer, and the log starts
//! again from its beginning only when everything in it was moved; so the writer moves the short rest itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::fault::{Fault, Trouble};
use crate::Failure;

/// Unmoved pages from which on the thread is woken.
const WORTH_MOVING: u64 = 512;
/// Pages in the log from which on the writer moves the rest, where it is short, so that the log starts again.
const WORTH_RESETTING: u64 = 1024;
/// The rest that is short: about a millisecond's work besides the sync.
const SHORT: u64 = 512;
/// Pages in the log from which on the writer moves whatever is there, because the thread does not keep up.
const TOO_LONG: u64 = 16 * 1024;
/// How long the log may lie unmoved when nothing is written.
const QUIET: Duration = Duration::from_secs(1);

/// What both sides know of the log.
#[derive(Default)]
pub(super) struct Progress {
    /// Pages in the log after the last commit.
    pages: AtomicU64,
    /// How many of them were moved.
    moved: AtomicU64,
}

impl Progress {
    /// Notes the length of the log after a commit.
    pub(super) fn committed(&self, pages: u32) {
        let pages = u64::from(pages);
        if pages < self.pages.swap(pages, Ordering::Relaxed) {
            // The log started again.
            self.moved.store(0, Ordering::Relaxed);
        }
    }

    fn rest(&self) -> u64 {
        self.pages
            .load(Ordering::Relaxed)
            .saturating_sub(self.moved.load(Ordering::Relaxed))
    }
}

/// Moves what can be moved without waiting for anybody.
pub(super) fn passive(conn: &Connection, progress: &Progress) -> rusqlite::Result<()> {
    let (log, moved) = conn
        .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
        .query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
    // Both are -1 when the other side is at it.
    if log >= 0 {
        progress
            .moved
            .store(moved.cast_unsigned(), Ordering::Relaxed);
    }
    Ok(())
}

/// The writer's side.
pub(super) struct Checkpoints {
    progress: Arc<Progress>,
    wake: SyncSender<()>,
}

impl Checkpoints {
    /// Starts the thread. It ends when this is dropped.
    pub(super) fn start(
        conn: Connection,
        progress: Arc<Progress>,
        fault: Arc<Fault>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (wake, woken) = sync_channel(1);
        let shared = Arc::clone(&progress);
        let thread = std::thread::Builder::new()
            .name("journal-move".into())
            .spawn(move || move_pages(&conn, &shared, &woken, &fault))?;
        Ok((Self { progress, wake }, thread))
    }

    /// Looks at the log after a commit.
    pub(super) fn after_commit(&self, conn: &Connection) -> rusqlite::Result<()> {
        let pages = self.progress.pages.load(Ordering::Relaxed);
        let rest = self.progress.rest();
        if pages >= TOO_LONG || (pages >= WORTH_RESETTING && rest <= SHORT) {
            return passive(conn, &self.progress);
        }
        if rest >= WORTH_MOVING {
            // Full means that it is awake already.
            let _sent = self.wake.try_send(());
        }
        Ok(())
    }
}

fn move_pages(conn: &Connection, progress: &Progress, woken: &Receiver<()>, fault: &Fault) {
    loop {
        match woken.recv_timeout(QUIET) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) if progress.rest() > 0 => {}
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        }
        match passive(conn, progress).map_err(Trouble::from) {
            // The disk is full: it stays in the log until there is room.
            Ok(()) | Err(Trouble::NoSpace) => {}
            Err(Trouble::Failed(failure)) => {
                fault.set(Failure {
                    what: "cannot move the write-ahead log into the database",
                    ..failure
                });
                return;
            }
        }
    }
}
