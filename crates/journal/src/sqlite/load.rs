//! Filling the books from the tables at open.

use std::collections::{BTreeMap, VecDeque};

use protocol::{Epoch, Head, SandboxId, SandboxName, Seq};
use rusqlite::Connection;

use super::books::{Book, Books, MISSING_ROW};
use super::chores::Chores;
use super::reader;

/// What the writer starts from.
pub(super) struct Loaded {
    pub(super) books: Books,
    pub(super) chores: Chores,
    pub(super) next_row: i64,
}

/// Reads the heads, and the events that have no index row; what is wrong with a journal's end is noted in its book.
pub(super) fn load(conn: &Connection) -> rusqlite::Result<Loaded> {
    let mut books = heads(conn)?;
    let mark: i64 = conn.query_row("SELECT indexed FROM mark", [], |row| row.get(0))?;
    let unindexed = tails(conn, mark, &mut books)?;
    let last: Option<i64> = conn.query_row("SELECT max(id) FROM event", [], |row| row.get(0))?;
    let garbage: VecDeque<SandboxId> = conn
        .prepare("SELECT sandbox FROM garbage ORDER BY sandbox")?
        .query_map([], |row| {
            Ok(SandboxId(row.get::<_, i64>(0)?.cast_unsigned()))
        })?
        .collect::<rusqlite::Result<_>>()?;

    let books = Books::new(books);
    let sandboxes: Vec<SandboxId> = books.lock().keys().copied().collect();
    for sandbox in sandboxes {
        let damage = reader::look_at_end(conn, &books, sandbox);
        if let Some(damage) = damage
            && let Some(book) = books.lock().get_mut(&sandbox)
        {
            tracing::error!(%sandbox, %damage, "a journal is damaged");
            book.damage = Some(damage);
        }
    }
    Ok(Loaded {
        books,
        chores: Chores::new(unindexed, garbage),
        // Rows up to the mark count as indexed, so none of them is given again even where all of them were swept.
        next_row: last.unwrap_or(0).max(mark) + 1,
    })
}

fn heads(conn: &Connection) -> rusqlite::Result<BTreeMap<SandboxId, Book>> {
    let mut select = conn.prepare(
        "SELECT s.sandbox, s.name, h.seq, h.epoch, h.hash,
                (SELECT max(seq) FROM event_index i WHERE i.sandbox = s.sandbox)
         FROM sandbox s LEFT JOIN head h USING (sandbox)",
    )?;
    let mut rows = select.query([])?;
    let mut books = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        let name: String = row.get(1)?;
        let name: SandboxName = name.parse().map_err(|e| {
            rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(e))
        })?;
        let head = Head {
            seq: Seq(number(2)?),
            hash: row.get(4)?,
        };
        let indexed = Seq(row.get::<_, Option<i64>>(5)?.unwrap_or(0).cast_unsigned());
        let book = Book::new(name, head, Epoch(number(3)?), indexed);
        books.insert(SandboxId(number(0)?), book);
    }
    Ok(books)
}

/// Finds the events above the mark; returns how many of them have no index row.
fn tails(
    conn: &Connection,
    mark: i64,
    books: &mut BTreeMap<SandboxId, Book>,
) -> rusqlite::Result<usize> {
    let mut select =
        conn.prepare("SELECT id, sandbox, seq FROM event WHERE id > ?1 ORDER BY id")?;
    let mut rows = select.query([mark])?;
    let mut found = 0;
    while let Some(row) = rows.next()? {
        let sandbox = SandboxId(row.get::<_, i64>(1)?.cast_unsigned());
        let seq = Seq(row.get::<_, i64>(2)?.cast_unsigned());
        let Some(book) = books.get_mut(&sandbox) else {
            continue;
        };
        // A place far beyond the head is a damaged number; that event is then missing where it should be.
        let missing = seq.0.checked_sub(book.last().0 + 1);
        let Some(missing) = missing.filter(|_| seq <= book.head.seq.next()) else {
            continue;
        };
        for _ in 0..missing {
            book.tail.push_back(MISSING_ROW);
        }
        book.tail.push_back(row.get(0)?);
        found += 1;
    }
    Ok(found)
}
