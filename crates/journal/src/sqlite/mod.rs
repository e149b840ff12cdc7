//! The embedded engine: SQLite with a write-ahead log, one thread that writes and a few that read.
//!
//! Calls meet the writer in a queue; whatever waits there becomes one transaction and one sync of the disk, across all
//! sandboxes. The tables are described in docs/journal-format.md and open to the `sqlite3` shell.

mod batch;
mod books;
mod checkpoint;
mod chores;
mod command;
mod fault;
mod load;
mod open;
mod reader;
mod schema;
mod wal;
mod writer;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use protocol::{EventId, Head, SandboxId, SandboxName, Seq, Stored, UnixMillis};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use self::books::{Book, Books};
use self::command::{Command, Entry, Reply};
use self::fault::Fault;
use self::reader::Job;
use crate::encoded::decoded;
use crate::queue::Queue;
use crate::{
    Append, BoxFuture, Durability, Error, Failure, Lease, New, Raw, Report, Resolution, Store,
};

pub use self::open::{OnDamagedWal, OpenError};
pub use self::wal::WalDamage;

/// The database in its directory.
pub const DATABASE_FILE: &str = "journal.db";
const LOCK_FILE: &str = "journal.lock";
/// Seven events of 1 KiB fill a page; a lone one still writes no more than two pages.
const PAGE_BYTES: u32 = 8192;

/// Journals in a directory of this machine.
///
/// Dropping it writes what waits, then closes; that takes a few milliseconds of the calling thread.
pub struct Sqlite {
    queue: Arc<Queue<Command>>,
    jobs: Arc<Queue<Job>>,
    books: Arc<Books>,
    fault: Arc<Fault>,
    threads: Vec<JoinHandle<()>>,
    lock: File,
}

impl Sqlite {
    /// Opens the journals in a directory, makes it where it is missing, and holds it against other processes.
    ///
    /// Journals of an older version are brought up to this one; of a newer one they are refused, unchanged. A
    /// journal whose end is not what its head says opens, can be read and removed, and refuses to be written.
    ///
    /// # Errors
    /// See [`OpenError`]. A damaged write-ahead log is refused; [`open_with`](Self::open_with) goes on without it.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        Self::open_with(dir, OnDamagedWal::Refuse)
    }

    /// As [`open`](Self::open), with a say in what happens where commits were lost from the write-ahead log.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with(dir: &Path, on_damage: OnDamagedWal) -> Result<Self, OpenError> {
        open::open(dir, on_damage)
    }

    fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        durability: Durability,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> BoxFuture<Result<T, Error>> {
        let (reply, answer) = oneshot::channel();
        if let Err(refusal) = self.queue.push(command(reply), bytes, durability) {
            return ready(Err(refusal));
        }
        let fault = Arc::clone(&self.fault);
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(fault.error())) })
    }

    fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Connection, &Books) -> Result<T, Error> + Send + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        let (reply, answer) = oneshot::channel();
        let books = Arc::clone(&self.books);
        let fault = Arc::clone(&self.fault);
        let job: Job = Box::new(move |conn| {
            let result = look(conn, &books);
            // The books are emptied when the store fails, which must not read as "unknown".
            drop(reply.send(fault.check().and(result)));
        });
        if let Err(refusal) = self.jobs.push(job, 0, Durability::Now) {
            return ready(Err(refusal));
        }
        let fault = Arc::clone(&self.fault);
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(fault.error())) })
    }
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(value))
}

impl Store for Sqlite {
    fn create(&self, name: &SandboxName) -> BoxFuture<Result<SandboxId, Error>> {
        let name = name.clone();
        self.call(0, Durability::Now, |reply| Command::Create { name, reply })
    }

    fn lease(&self, sandbox: SandboxId, node: &str) -> BoxFuture<Result<Lease, Error>> {
        let leases = self.lease_many(&[sandbox], node);
        Box::pin(async move {
            match leases.await?.first() {
                Some(lease) => Ok(*lease),
                None => Err(Error::UnknownSandbox { sandbox }),
            }
        })
    }

    fn lease_many(
        &self,
        sandboxes: &[SandboxId],
        node: &str,
    ) -> BoxFuture<Result<Vec<Lease>, Error>> {
        let sandboxes = sandboxes.to_vec();
        let node = node.to_owned();
        self.call(0, Durability::Now, |reply| Command::Lease {
            sandboxes,
            node,
            reply,
        })
    }

    fn found(
        &self,
        name: &SandboxName,
        node: &str,
        at: UnixMillis,
        events: Vec<New>,
    ) -> BoxFuture<Result<Lease, Error>> {
        let (name, node) = (name.clone(), node.to_owned());
        let first = match Entry::new(&Append::first(at, events)) {
            Ok(entry) => entry,
            Err(refusal) => return ready(Err(refusal)),
        };
        self.call(first.bytes(), Durability::Now, |reply| Command::Found {
            name,
            node,
            first,
            reply,
        })
    }

    fn append(&self, append: Append) -> BoxFuture<Result<Head, Error>> {
        let entry = match Entry::new(&append) {
            Ok(entry) => entry,
            Err(refusal) => return ready(Err(refusal)),
        };
        self.call(entry.bytes(), append.durability, |reply| Command::Append {
            entry,
            reply,
        })
    }

    fn resolve(
        &self,
        sandbox: SandboxId,
        seq: Seq,
        id: EventId,
    ) -> BoxFuture<Result<Resolution, Error>> {
        self.look(move |conn, books| reader::resolve(conn, books, sandbox, seq, id))
    }

    fn head(&self, sandbox: SandboxId) -> BoxFuture<Result<Head, Error>> {
        let head = self.books.with(sandbox, |book| book.head);
        ready(self.fault.check().and(head))
    }

    fn read(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Stored>, Error>> {
        self.look(move |conn, books| reader::read(conn, books, sandbox, from, limit))
    }

    fn export(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Raw>, Error>> {
        self.look(move |conn, books| reader::export(conn, books, sandbox, from, limit))
    }

    fn import(&self, sandbox: SandboxId, events: Vec<Raw>) -> BoxFuture<Result<Head, Error>> {
        let bytes = events.iter().map(|raw| raw.payload.len()).sum();
        let events = match decoded(sandbox, events) {
            Ok(events) => events.into_iter().map(|(raw, event)| (raw, event.kind())),
            Err(refusal) => return ready(Err(refusal)),
        };
        let events = events.collect();
        self.call(bytes, Durability::Now, |reply| Command::Import {
            sandbox,
            events,
            reply,
        })
    }

    fn unleased(&self) -> BoxFuture<Result<Vec<SandboxId>, Error>> {
        self.look(|conn, _| reader::unleased(conn))
    }

    fn tail(&self, sandbox: SandboxId) -> Result<watch::Receiver<Seq>, Error> {
        self.fault.check()?;
        self.books
            .lock()
            .get_mut(&sandbox)
            .map(Book::follow)
            .ok_or(Error::UnknownSandbox { sandbox })
    }

    fn list(&self) -> BoxFuture<Result<Vec<(SandboxId, SandboxName)>, Error>> {
        let list = self
            .books
            .lock()
            .iter()
            .map(|(sandbox, book)| (*sandbox, book.name.clone()))
            .collect();
        ready(self.fault.check().and(Ok(list)))
    }

    fn remove(&self, sandbox: SandboxId) -> BoxFuture<Result<(), Error>> {
        self.call(0, Durability::Now, |reply| Command::Remove {
            sandbox,
            reply,
        })
    }

    fn verify(
        &self,
        sandbox: SandboxId,
        witness: Option<Head>,
    ) -> BoxFuture<Result<Report, Error>> {
        self.look(move |conn, books| reader::verify(conn, books, sandbox, witness))
    }

    fn failed(&self) -> watch::Receiver<Option<Failure>> {
        self.fault.watch()
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.queue.shut(Error::Closed);
        self.jobs.shut(Error::Closed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            drop(thread.join());
        }
        // Closing is not enough: a child that was forked and has not reached its exec yet holds the lock too.
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "cannot unlock the journal");
        }
    }
}
