//! Reading: a few threads with read-only connections, and what they check on the way.
//!
//! A reader walks places, not rows: every place of the range asked for yields an event or says what is wrong there.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;

use protocol::{EventId, Head, SandboxId, Seq, Stored};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row};

use super::books::{Books, MISSING_ROW, Places};
use crate::encoded::Raw;
use crate::queue::Queue;
use crate::{Damage, Error, Failure, Flaw, Report, Resolution};

/// Bytes of payload after which a read ends early.
const READ_BYTES: usize = 4 << 20;
/// Places that are walked in one query.
const STRIDE: u64 = 512;

const COLUMNS: &str =
    "e.sandbox, e.seq, e.epoch, e.at_ms, e.v, e.crc, e.event_id, e.hash, e.payload";

pub(super) type Job = Box<dyn FnOnce(&Connection) + Send>;

/// Starts a thread that does jobs until the queue is shut.
pub(super) fn start(conn: Connection, jobs: Arc<Queue<Job>>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("journal-read".into())
        .spawn(move || {
            while let Some(job) = jobs.pop() {
                job(&conn);
            }
        })
}

pub(super) fn read(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    from: Seq,
    limit: usize,
) -> Result<Vec<Stored>, Error> {
    gather(conn, books, sandbox, from, limit, check)
}

pub(super) fn export(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    from: Seq,
    limit: usize,
) -> Result<Vec<Raw>, Error> {
    gather(conn, books, sandbox, from, limit, |raw, prev| {
        check(raw.clone(), prev).map(|_| raw)
    })
}

/// Makes something of each event of a range.
fn gather<T>(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    from: Seq,
    limit: usize,
    make: impl Fn(Raw, Option<&[u8; 32]>) -> Result<T, Flaw>,
) -> Result<Vec<T>, Error> {
    let from = from.max(Seq(1));
    let head = books.with(sandbox, |book| book.head)?;
    if from > head.seq || limit == 0 {
        return Ok(Vec::new());
    }
    let before = Seq(from.0 - 1);
    let to = Seq(from.0.saturating_add(limit as u64 - 1).min(head.seq.0));
    let mut prev = (before.0 == 0).then_some(Head::EMPTY.hash);
    let mut events = Vec::new();
    let mut bytes = 0;
    let mut flaw = None;
    walk(conn, books, sandbox, before.max(Seq(1)), to, |seq, raw| {
        let raw = match raw {
            Ok(raw) => raw,
            // The predecessor is only looked at for its hash; who asks for it hears of its damage.
            Err(_) if seq < from => return ControlFlow::Continue(()),
            Err(what) => {
                flaw = Some(Damage { seq, flaw: what });
                return ControlFlow::Break(());
            }
        };
        let hash = raw.hash;
        if seq >= from {
            bytes += raw.payload.len();
            match make(raw, prev.as_ref()) {
                Ok(made) => events.push(made),
                Err(what) => {
                    flaw = Some(Damage { seq, flaw: what });
                    return ControlFlow::Break(());
                }
            }
        }
        prev = Some(hash);
        if bytes >= READ_BYTES {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    match flaw {
        Some(damage) if events.is_empty() => {
            // Rows also go missing when the journal is removed meanwhile.
            books.with(sandbox, |_| ())?;
            Err(Error::Damaged { sandbox, damage })
        }
        _ => Ok(events),
    }
}

pub(super) fn resolve(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    seq: Seq,
    id: EventId,
) -> Result<Resolution, Error> {
    let head = books.with(sandbox, |book| book.head)?;
    if seq > head.seq || seq == Seq(0) {
        return Ok(Resolution::None);
    }
    let mut found = Err(Flaw::Gap);
    walk(conn, books, sandbox, seq, seq, |_, raw| {
        found = raw;
        ControlFlow::Break(())
    });
    match found {
        Ok(raw) if raw.id == id => Ok(Resolution::Mine(Head {
            seq,
            hash: raw.hash,
        })),
        Ok(raw) => Ok(Resolution::Other(raw.id)),
        Err(flaw) => {
            books.with(sandbox, |_| ())?;
            let damage = Damage { seq, flaw };
            Err(Error::Damaged { sandbox, damage })
        }
    }
}

pub(super) fn verify(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    witness: Option<Head>,
) -> Result<Report, Error> {
    let (head, epoch, last) = books.with(sandbox, |book| (book.head, book.epoch, book.last()))?;
    let mut damage = Vec::new();
    let mut readable = Seq(0);
    let mut prev = Some(Head::EMPTY.hash);
    let mut remembered = None;
    walk(
        conn,
        books,
        sandbox,
        Seq(1),
        head.seq.max(last),
        |seq, raw| {
            let mut note = |flaw| damage.push(Damage { seq, flaw });
            let raw = match raw {
                // Of a row of missing events the first is enough to know.
                Err(_) if prev.is_none() => return ControlFlow::Continue(()),
                Err(flaw) => {
                    prev = None;
                    note(flaw);
                    return ControlFlow::Continue(());
                }
                Ok(raw) => raw,
            };
            if witness.is_some_and(|w| w.seq == seq) {
                remembered = Some(raw.hash);
            }
            if seq > head.seq {
                note(Flaw::BeyondHead { head: head.seq });
                return ControlFlow::Break(());
            }
            if seq == head.seq && raw.hash != head.hash {
                note(Flaw::HeadDisagrees);
            }
            if raw.epoch > epoch {
                note(Flaw::EpochAhead {
                    event: raw.epoch,
                    head: epoch,
                });
            }
            let hash = raw.hash;
            if let Err(flaw) = check(raw, prev.as_ref()) {
                note(flaw);
            }
            prev = Some(hash);
            if damage.is_empty() {
                readable = seq;
            }
            ControlFlow::Continue(())
        },
    );
    if prev.is_none()
        && let Some(gap) = damage.last_mut()
        && gap.flaw == Flaw::Gap
    {
        gap.flaw = Flaw::MissingTail { head: head.seq };
    }
    if let Some(witness) = witness.filter(|w| w.seq > Seq(0)) {
        let flaw = if witness.seq > head.seq {
            Some(Flaw::WitnessAhead { head: head.seq })
        } else {
            (remembered != Some(witness.hash)).then_some(Flaw::WitnessDisagrees)
        };
        damage.extend(flaw.map(|flaw| Damage {
            seq: witness.seq,
            flaw,
        }));
    }
    books.with(sandbox, |_| ())?;
    Ok(Report {
        head,
        readable,
        damage,
    })
}

/// Says what is wrong at the end of a journal: the cheap look at every open, where `verify` would read everything.
pub(super) fn look_at_end(conn: &Connection, books: &Books, sandbox: SandboxId) -> Option<Damage> {
    let (head, epoch, last) = books
        .with(sandbox, |book| (book.head, book.epoch, book.last()))
        .ok()?;
    let found = |seq, flaw| Some(Damage { seq, flaw });
    if last < head.seq {
        return found(last.next(), Flaw::MissingTail { head: head.seq });
    }
    if last > head.seq {
        return found(head.seq.next(), Flaw::BeyondHead { head: head.seq });
    }
    if head.seq == Seq(0) {
        return None;
    }
    let mut end = Err(Flaw::Gap);
    walk(conn, books, sandbox, head.seq, head.seq, |_, raw| {
        end = raw;
        ControlFlow::Break(())
    });
    match end {
        Err(flaw) => found(head.seq, flaw),
        Ok(raw) if raw.hash != head.hash => found(head.seq, Flaw::HeadDisagrees),
        Ok(raw) if raw.epoch > epoch => found(
            head.seq,
            Flaw::EpochAhead {
                event: raw.epoch,
                head: epoch,
            },
        ),
        Ok(raw) => check(raw, None)
            .err()
            .and_then(|flaw| found(head.seq, flaw)),
    }
}

/// Checks an event's bytes, and that it follows from its predecessor where that is known.
fn check(raw: Raw, prev: Option<&[u8; 32]>) -> Result<Stored, Flaw> {
    let follows = prev.is_none_or(|prev| raw.follows(prev));
    let stored = raw.decode()?;
    if follows {
        Ok(stored)
    } else {
        Err(Flaw::ChainBreak)
    }
}

/// Visits every place of a range in order.
fn walk(
    conn: &Connection,
    books: &Books,
    sandbox: SandboxId,
    from: Seq,
    to: Seq,
    mut visit: impl FnMut(Seq, Result<Raw, Flaw>) -> ControlFlow<()>,
) {
    let mut from = from;
    while from <= to {
        let end = Seq(to.0.min(from.0 + STRIDE - 1));
        // Rows leave the tail when their index rows are committed, so the tail is looked at before the index.
        let Ok(places) = books.with(sandbox, |book| book.place(from, end)) else {
            return;
        };
        let mut next = from;
        let result = stride(conn, sandbox, &places, |seq, raw| {
            while next < seq {
                visit(next, Err(Flaw::Gap))?;
                next = next.next();
            }
            next = seq.next();
            visit(seq, raw)
        });
        match result {
            Ok(ControlFlow::Break(())) => return,
            Ok(ControlFlow::Continue(())) => {
                while next <= end {
                    if visit(next, Err(Flaw::Gap)).is_break() {
                        return;
                    }
                    next = next.next();
                }
            }
            Err(e) => {
                let why = e.to_string();
                if visit(next, Err(Flaw::Storage { why })).is_break() {
                    return;
                }
                next = next.next();
            }
        }
        from = next;
    }
}

fn stride(
    conn: &Connection,
    sandbox: SandboxId,
    places: &Places,
    mut visit: impl FnMut(Seq, Result<Raw, Flaw>) -> ControlFlow<()>,
) -> rusqlite::Result<ControlFlow<()>> {
    if places.from <= places.indexed_to {
        let mut select = indexed(conn)?;
        let mut rows = select.query([
            sandbox.0.cast_signed(),
            places.from.0.cast_signed(),
            places.indexed_to.0.cast_signed(),
        ])?;
        while let Some(row) = rows.next()? {
            let seq = Seq(row.get::<_, i64>(9)?.cast_unsigned());
            if visit(seq, raw(row, sandbox, seq)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
    let mut select = by_row(conn)?;
    let mut seq = places.rows_from;
    for &row in &places.rows {
        let found = match row {
            MISSING_ROW => None,
            row => select
                .query_row([row], |row| Ok(raw(row, sandbox, seq)))
                .optional()?,
        };
        if visit(seq, found.unwrap_or(Err(Flaw::Gap))).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        seq = seq.next();
    }
    Ok(ControlFlow::Continue(()))
}

fn indexed(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
    conn.prepare_cached(&format!(
        "SELECT {COLUMNS}, i.seq FROM event_index i LEFT JOIN event e ON e.id = i.id
         WHERE i.sandbox = ?1 AND i.seq BETWEEN ?2 AND ?3 ORDER BY i.seq"
    ))
}

fn by_row(conn: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
    conn.prepare_cached(&format!("SELECT {COLUMNS} FROM event e WHERE e.id = ?1"))
}

/// Takes a row for the event of a place. Columns of a damaged row may hold anything.
fn raw(row: &Row<'_>, sandbox: SandboxId, seq: Seq) -> Result<Raw, Flaw> {
    let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let fields = || -> rusqlite::Result<Option<Raw>> {
        if row.get::<_, Option<i64>>(0)?.is_none() || number(0)? != sandbox.0 || number(1)? != seq.0
        {
            return Ok(None);
        }
        let payload = row.get_ref(8)?.as_bytes().map_err(|e| {
            rusqlite::Error::FromSqlConversionFailure(8, rusqlite::types::Type::Text, e.into())
        })?;
        Ok(Some(Raw {
            seq,
            id: EventId(row.get(6)?),
            epoch: protocol::Epoch(number(2)?),
            at: protocol::UnixMillis(number(3)?),
            version: row.get(4)?,
            crc: row.get(5)?,
            hash: row.get(7)?,
            payload: payload.to_vec(),
        }))
    };
    match fields() {
        Ok(Some(raw)) => Ok(raw),
        Ok(None) => Err(Flaw::Gap),
        Err(e) => Err(Flaw::Unreadable { why: e.to_string() }),
    }
}

pub(super) fn unleased(conn: &Connection) -> Result<Vec<SandboxId>, Error> {
    let failed = |e: rusqlite::Error| {
        Error::Failed(Failure {
            what: "the journals could not be listed",
            why: e.to_string().into(),
        })
    };
    let mut list = conn
        .prepare("SELECT sandbox FROM sandbox WHERE node = '' ORDER BY sandbox")
        .map_err(failed)?;
    let rows = list.query_map([], |row| row.get::<_, i64>(0));
    let ids = rows.and_then(|rows| rows.collect::<rusqlite::Result<Vec<_>>>());
    let ids = ids.map_err(failed)?;
    Ok(ids
        .into_iter()
        .map(|id| SandboxId(id.cast_unsigned()))
        .collect())
}
