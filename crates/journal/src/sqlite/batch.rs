//! One transaction: commands applied in their order, on drafts that become true when it is committed.

use std::collections::HashMap;
use std::collections::hash_map;

use protocol::{EVENT_VERSION, Epoch, Head, SandboxId, SandboxName, Seq};
use rusqlite::{CachedStatement, OptionalExtension, Transaction, params};

use super::books::{Book, Books};
use super::command::{Answer, Command, Entry, Reply};
use crate::{Damage, Error, Failure, Lease, Raw};

/// A journal as this transaction leaves it.
pub(super) struct Draft {
    head: Head,
    epoch: Epoch,
    rows: Vec<i64>,
    created: Option<SandboxName>,
    removed: bool,
}

pub(super) struct Batch<'t> {
    tx: &'t Transaction<'t>,
    books: &'t Books,
    drafts: HashMap<SandboxId, Draft>,
    next_row: &'t mut i64,
    fence: CachedStatement<'t>,
    insert: CachedStatement<'t>,
}

/// Moves a head where epoch and place are the expected ones. What this does not move is not appended.
const FENCE: &str =
    "UPDATE head SET seq = ?4, hash = ?5 WHERE sandbox = ?1 AND epoch = ?2 AND seq = ?3";
const INSERT: &str =
    "INSERT INTO event (id, sandbox, seq, epoch, at_ms, v, crc, event_id, hash, kind, payload)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";

/// What to enter into the books once the transaction is committed.
pub(super) struct Drafts(HashMap<SandboxId, Draft>);

impl<'t> Batch<'t> {
    pub(super) fn new(
        tx: &'t Transaction<'t>,
        books: &'t Books,
        next_row: &'t mut i64,
    ) -> rusqlite::Result<Self> {
        Ok(Self {
            tx,
            books,
            drafts: HashMap::new(),
            next_row,
            fence: tx.prepare_cached(FENCE)?,
            insert: tx.prepare_cached(INSERT)?,
        })
    }

    pub(super) fn drafts(self) -> Drafts {
        Drafts(self.drafts)
    }

    /// Applies one command. An error is not the caller's doing: it ends the store.
    pub(super) fn apply(&mut self, command: Command) -> Result<Answer, Failure> {
        match command {
            Command::Create { name, reply } => settle(reply, self.create(name), Answer::Create),
            Command::Found {
                name,
                node,
                first,
                reply,
            } => settle(reply, self.found(name, &node, first), Answer::Found),
            Command::Lease {
                sandboxes,
                node,
                reply,
            } => settle(reply, self.lease(&sandboxes, &node), Answer::Lease),
            Command::Append { entry, reply } => settle(reply, self.append(&entry), Answer::Append),
            Command::Import {
                sandbox,
                events,
                reply,
            } => settle(reply, self.import(sandbox, &events), Answer::Append),
            Command::Remove { sandbox, reply } => {
                settle(reply, self.remove(sandbox), Answer::Remove)
            }
        }
    }

    fn create(&mut self, name: SandboxName) -> Result<Result<SandboxId, Error>, Failure> {
        let taken: Option<i64> = self
            .tx
            .prepare_cached("SELECT sandbox FROM sandbox WHERE name = ?1")?
            .query_row([name.as_str()], |row| row.get(0))
            .optional()?;
        if let Some(by) = taken {
            let by = SandboxId(by.cast_unsigned());
            return Ok(Err(Error::NameTaken { name, by }));
        }
        self.tx
            .prepare_cached("INSERT INTO sandbox (name) VALUES (?1)")?
            .execute([name.as_str()])?;
        let id = self.tx.last_insert_rowid();
        self.tx
            .prepare_cached("INSERT INTO head VALUES (?1, 0, 0, ?2)")?
            .execute(params![id, Head::EMPTY.hash])?;
        let id = SandboxId(id.cast_unsigned());
        let draft = Draft {
            head: Head::EMPTY,
            epoch: Epoch(0),
            rows: Vec::new(),
            created: Some(name),
            removed: false,
        };
        self.drafts.insert(id, draft);
        Ok(Ok(id))
    }

    fn found(
        &mut self,
        name: SandboxName,
        node: &str,
        first: Entry,
    ) -> Result<Result<Lease, Error>, Failure> {
        let sandbox = match self.create(name)? {
            Ok(sandbox) => sandbox,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let entry = Entry { sandbox, ..first };
        let leased = self.lease(&[sandbox], node)?.and(self.append(&entry)?);
        Ok(leased.map(|head| Lease {
            sandbox,
            epoch: entry.epoch,
            head,
        }))
    }

    fn lease(
        &mut self,
        sandboxes: &[SandboxId],
        node: &str,
    ) -> Result<Result<Vec<Lease>, Error>, Failure> {
        for &sandbox in sandboxes {
            if let Err(refusal) = draft(&mut self.drafts, self.books, sandbox) {
                return Ok(Err(refusal));
            }
        }
        let mut leases = Vec::with_capacity(sandboxes.len());
        let tx = self.tx;
        let mut take =
            tx.prepare_cached("UPDATE head SET epoch = ?3 WHERE sandbox = ?1 AND epoch = ?2")?;
        let mut name = tx.prepare_cached("UPDATE sandbox SET node = ?2 WHERE sandbox = ?1")?;
        for &sandbox in sandboxes {
            let Ok(draft) = draft(&mut self.drafts, self.books, sandbox) else {
                continue;
            };
            let next = draft.epoch.next();
            let id = sandbox.0.cast_signed();
            let changed = take.execute([id, draft.epoch.0.cast_signed(), next.0.cast_signed()])?;
            if changed != 1 {
                return Err(foreign_writer());
            }
            name.execute(params![id, node])?;
            draft.epoch = next;
            leases.push(Lease {
                sandbox,
                epoch: next,
                head: draft.head,
            });
        }
        Ok(Ok(leases))
    }

    fn append(&mut self, entry: &Entry) -> Result<Result<Head, Error>, Failure> {
        let sandbox = entry.sandbox;
        let draft = match draft(&mut self.drafts, self.books, sandbox) {
            Ok(draft) => draft,
            Err(refusal) => return Ok(Err(refusal)),
        };
        // These two only spare the work; the fence decides.
        if draft.epoch != entry.epoch {
            return Ok(Err(Error::Fenced {
                sandbox,
                given: entry.epoch,
                current: draft.epoch,
            }));
        }
        if draft.head.seq != entry.expected {
            return Ok(Err(Error::WrongSequence {
                sandbox,
                head: draft.head,
            }));
        }
        let id = sandbox.0.cast_signed();
        let epoch = entry.epoch.0.cast_signed();
        let mut head = draft.head;
        for event in &entry.events {
            head = head.advance(event.id, entry.epoch, entry.at, &event.digest);
            self.insert.execute(params![
                *self.next_row,
                id,
                head.seq.0.cast_signed(),
                epoch,
                entry.at.0.cast_signed(),
                EVENT_VERSION,
                event.crc,
                event.id.0,
                head.hash,
                event.kind,
                event.payload,
            ])?;
            draft.rows.push(*self.next_row);
            *self.next_row += 1;
        }
        let moved = self.fence.execute(params![
            id,
            epoch,
            entry.expected.0.cast_signed(),
            head.seq.0.cast_signed(),
            head.hash,
        ])?;
        if moved != 1 {
            // The transaction goes back, and the inserted events with it.
            return Err(foreign_writer());
        }
        draft.head = head;
        Ok(Ok(head))
    }

    fn import(
        &mut self,
        sandbox: SandboxId,
        events: &[(Raw, &'static str)],
    ) -> Result<Result<Head, Error>, Failure> {
        let draft = match draft(&mut self.drafts, self.books, sandbox) {
            Ok(draft) => draft,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let id = sandbox.0.cast_signed();
        let node: String = self
            .tx
            .prepare_cached("SELECT node FROM sandbox WHERE sandbox = ?1")?
            .query_row([id], |row| row.get(0))?;
        if !node.is_empty() {
            return Ok(Err(Error::Leased {
                sandbox,
                current: draft.epoch,
            }));
        }
        let (mut head, mut epoch) = (draft.head, draft.epoch);
        for (raw, _) in events {
            if let Some(flaw) = raw.flaw_after(head, epoch) {
                let damage = Damage { seq: raw.seq, flaw };
                return Ok(Err(Error::Damaged { sandbox, damage }));
            }
            (head, epoch) = (raw.head(), raw.epoch);
        }
        for (raw, kind) in events {
            self.insert.execute(params![
                *self.next_row,
                id,
                raw.seq.0.cast_signed(),
                raw.epoch.0.cast_signed(),
                raw.at.0.cast_signed(),
                raw.version,
                raw.crc,
                raw.id.0,
                raw.hash,
                kind,
                text(raw)?,
            ])?;
            draft.rows.push(*self.next_row);
            *self.next_row += 1;
        }
        let moved = self.tx.execute(
            "UPDATE head SET seq = ?3, hash = ?4, epoch = ?5 WHERE sandbox = ?1 AND seq = ?2",
            params![
                id,
                draft.head.seq.0.cast_signed(),
                head.seq.0.cast_signed(),
                head.hash,
                epoch.0.cast_signed(),
            ],
        )?;
        if moved != 1 {
            return Err(foreign_writer());
        }
        (draft.head, draft.epoch) = (head, epoch);
        Ok(Ok(head))
    }

    fn remove(&mut self, sandbox: SandboxId) -> Result<Result<(), Error>, Failure> {
        if !self.drafts.contains_key(&sandbox)
            && let Err(refusal) = self.books.with(sandbox, |_| ())
        {
            return Ok(Err(refusal));
        }
        if let Some(draft) = self.drafts.get(&sandbox)
            && draft.removed
        {
            return Ok(Err(Error::UnknownSandbox { sandbox }));
        }
        let id = sandbox.0.cast_signed();
        let tx = self.tx;
        tx.execute("DELETE FROM head WHERE sandbox = ?1", [id])?;
        tx.execute("DELETE FROM sandbox WHERE sandbox = ?1", [id])?;
        tx.execute("INSERT OR IGNORE INTO garbage VALUES (?1)", [id])?;
        // The sweeper finds events by their index rows, so all of them get one.
        let (mut seq, mut rows) = self
            .books
            .with(sandbox, |book| (book.indexed, book.tail.clone()))
            .unwrap_or_default();
        if let Some(draft) = self.drafts.get(&sandbox) {
            rows.extend(&draft.rows);
        }
        let mut insert =
            tx.prepare_cached("INSERT OR REPLACE INTO event_index VALUES (?1, ?2, ?3)")?;
        for row in rows {
            seq = seq.next();
            insert.execute([id, seq.0.cast_signed(), row])?;
        }
        self.drafts.insert(
            sandbox,
            Draft {
                head: Head::EMPTY,
                epoch: Epoch(0),
                rows: Vec::new(),
                created: None,
                removed: true,
            },
        );
        Ok(Ok(()))
    }
}

fn draft<'d>(
    drafts: &'d mut HashMap<SandboxId, Draft>,
    books: &Books,
    sandbox: SandboxId,
) -> Result<&'d mut Draft, Error> {
    let draft = match drafts.entry(sandbox) {
        hash_map::Entry::Occupied(entry) => entry.into_mut(),
        hash_map::Entry::Vacant(entry) => {
            let draft = books.with(sandbox, |book| match &book.damage {
                Some(damage) => Err(Error::Damaged {
                    sandbox,
                    damage: damage.clone(),
                }),
                None => Ok(Draft {
                    head: book.head,
                    epoch: book.epoch,
                    rows: Vec::new(),
                    created: None,
                    removed: false,
                }),
            })??;
            entry.insert(draft)
        }
    };
    if draft.removed {
        return Err(Error::UnknownSandbox { sandbox });
    }
    Ok(draft)
}

impl Drafts {
    /// Enters them into the books; returns how many events have no index row yet and which journals are gone.
    pub(super) fn enter(self, books: &Books) -> (usize, Vec<SandboxId>) {
        let mut books = books.lock();
        let mut appended = 0;
        let mut removed = Vec::new();
        for (sandbox, draft) in self.0 {
            if draft.removed {
                books.remove(&sandbox);
                removed.push(sandbox);
                continue;
            }
            if let Some(name) = draft.created {
                books.insert(sandbox, Book::new(name, Head::EMPTY, Epoch(0), Seq(0)));
            }
            let Some(book) = books.get_mut(&sandbox) else {
                continue;
            };
            book.epoch = draft.epoch;
            if !draft.rows.is_empty() {
                appended += draft.rows.len();
                book.append(draft.head, draft.rows);
            }
        }
        (appended, removed)
    }
}

/// The payload as the text that it is: it was decoded before it came here.
fn text(raw: &Raw) -> Result<&str, Failure> {
    std::str::from_utf8(&raw.payload).map_err(|bad| Failure {
        what: "an event that was to be copied is no text",
        why: bad.to_string().into(),
    })
}

fn settle<T>(
    reply: Reply<T>,
    result: Result<Result<T, Error>, Failure>,
    answer: fn(Reply<T>, Result<T, Error>) -> Answer,
) -> Result<Answer, Failure> {
    match result {
        Ok(result) => Ok(answer(reply, result)),
        Err(failure) => {
            drop(reply.send(Err(Error::Failed(failure.clone()))));
            Err(failure)
        }
    }
}

/// The books and the table disagree: another program changed the table under us. Nothing that we know holds any more.
fn foreign_writer() -> Failure {
    Failure {
        what: "another program wrote to the journal's database",
        why: "its head is not what this process left there".into(),
    }
}
