//! What is known of every journal in memory: its durable head, and where the events lie that have no index row yet.
//!
//! Only committed things stand here. The writer changes it after each commit; everybody else reads it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::{Epoch, Head, SandboxId, SandboxName, Seq};
use tokio::sync::watch;

use crate::{Damage, Error};

/// Stands in a tail for an event that has no row.
pub(super) const MISSING_ROW: i64 = 0;

/// One journal.
pub(super) struct Book {
    pub(super) name: SandboxName,
    pub(super) head: Head,
    pub(super) epoch: Epoch,
    /// Events up to here are found through `event_index`.
    pub(super) indexed: Seq,
    /// The rows of the events after `indexed`.
    pub(super) tail: VecDeque<i64>,
    watch: Option<watch::Sender<Seq>>,
    /// Found at open: the journal is not what its head says. It can be read and removed, not written.
    pub(super) damage: Option<Damage>,
}

impl Book {
    pub(super) fn new(name: SandboxName, head: Head, epoch: Epoch, indexed: Seq) -> Self {
        Self {
            name,
            head,
            epoch,
            indexed,
            tail: VecDeque::new(),
            watch: None,
            damage: None,
        }
    }

    /// Notes what a commit appended.
    pub(super) fn append(&mut self, head: Head, rows: Vec<i64>) {
        self.head = head;
        self.tail.extend(rows);
        // Most journals are followed by nobody most of the time.
        if let Some(watch) = &self.watch {
            if watch.is_closed() {
                self.watch = None;
            } else {
                watch.send_replace(head.seq);
            }
        }
    }

    /// Follows the head.
    pub(super) fn follow(&mut self) -> watch::Receiver<Seq> {
        self.watch
            .get_or_insert_with(|| watch::Sender::new(self.head.seq))
            .subscribe()
    }

    /// Returns the last place that there is a row for, by index or by tail.
    pub(super) fn last(&self) -> Seq {
        Seq(self.indexed.0 + self.tail.len() as u64)
    }

    /// Returns where the events of a range lie.
    pub(super) fn place(&self, from: Seq, to: Seq) -> Places {
        let tail_from = from.0.max(self.indexed.0 + 1);
        let skip = usize::try_from(tail_from - self.indexed.0 - 1).unwrap_or(usize::MAX);
        let take = usize::try_from((to.0 + 1).saturating_sub(tail_from)).unwrap_or(usize::MAX);
        Places {
            from,
            indexed_to: Seq(to.0.min(self.indexed.0)),
            rows: self.tail.iter().skip(skip).take(take).copied().collect(),
            rows_from: Seq(tail_from),
        }
    }
}

/// Where the events of a range lie: `from..=indexed_to` by the index, then the rows from `rows_from` on.
pub(super) struct Places {
    pub(super) from: Seq,
    pub(super) indexed_to: Seq,
    pub(super) rows: Vec<i64>,
    pub(super) rows_from: Seq,
}

/// All journals.
#[derive(Default)]
pub(super) struct Books(Mutex<BTreeMap<SandboxId, Book>>);

impl Books {
    pub(super) fn new(books: BTreeMap<SandboxId, Book>) -> Self {
        Self(Mutex::new(books))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Book>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that events up to these places are found through the index now.
    pub(super) fn note_indexed(&self, indexed: &[(SandboxId, Seq)]) {
        let mut books = self.lock();
        for (sandbox, to) in indexed {
            if let Some(book) = books.get_mut(sandbox) {
                while book.indexed < *to && book.tail.pop_front().is_some() {
                    book.indexed = book.indexed.next();
                }
            }
        }
    }

    /// Looks something up in one book.
    pub(super) fn with<T>(
        &self,
        sandbox: SandboxId,
        look: impl FnOnce(&Book) -> T,
    ) -> Result<T, Error> {
        let books = self.lock();
        books
            .get(&sandbox)
            .map(look)
            .ok_or(Error::UnknownSandbox { sandbox })
    }
}
