//! The tables, their version, and the way up from older ones (docs/journal-format.md).
//!
//! Events lie in the order of their arrival and carry no secondary index, so a commit of many sandboxes' events writes
//! full pages next to each other; `event_index` follows later, in bulk (see `index`). The head rows are small and together.

use rusqlite::{Connection, Transaction, TransactionBehavior};

/// Marks the file as ours: `DJNL`.
pub(super) const APPLICATION_ID: i32 = 0x444a_4e4c;
/// The version of the tables that this program writes.
pub(super) const VERSION: i32 = 1;

const TABLES: &str = "
    CREATE TABLE sandbox (
        sandbox INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        node TEXT NOT NULL DEFAULT ''
    ) STRICT;
    CREATE TABLE head (
        sandbox INTEGER PRIMARY KEY,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        hash BLOB NOT NULL
    ) STRICT;
    CREATE TABLE event (
        id INTEGER PRIMARY KEY,
        sandbox INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        at_ms INTEGER NOT NULL,
        v INTEGER NOT NULL,
        crc INTEGER NOT NULL,
        event_id BLOB NOT NULL,
        hash BLOB NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL
    ) STRICT;
";

const TABLES_SINCE_1: &str = "
    CREATE TABLE event_index (
        sandbox INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        id INTEGER NOT NULL,
        PRIMARY KEY (sandbox, seq)
    ) WITHOUT ROWID, STRICT;
    CREATE TABLE mark (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        indexed INTEGER NOT NULL
    ) STRICT;
    INSERT INTO mark VALUES (1, 0);
    CREATE TABLE garbage (sandbox INTEGER PRIMARY KEY) STRICT;
    CREATE VIEW log AS
        SELECT name, seq, epoch, datetime(at_ms / 1000, 'unixepoch') AS at, kind, payload
        FROM event JOIN sandbox USING (sandbox);
";

/// What a database file turned out to be.
pub(super) enum Found {
    Empty,
    Version(i32),
    Foreign,
}

pub(super) fn look(conn: &Connection) -> rusqlite::Result<Found> {
    let application: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application == APPLICATION_ID {
        let version = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
        return Ok(Found::Version(version));
    }
    let objects: i64 =
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(if objects == 0 && application == 0 {
        Found::Empty
    } else {
        Found::Foreign
    })
}

/// Makes the tables of this version from nothing or from an older version, all or nothing.
pub(super) fn migrate(conn: &mut Connection, found: &Found) -> rusqlite::Result<()> {
    let from = match found {
        Found::Empty => None,
        Found::Version(version) if *version < VERSION => Some(*version),
        Found::Version(_) | Found::Foreign => return Ok(()),
    };
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if from.is_none() {
        tx.execute_batch(TABLES)?;
    }
    up_from_0(&tx)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()
}

/// Version 0 found an event by a unique index over sandbox and place.
fn up_from_0(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.execute_batch("DROP INDEX IF EXISTS event_place;")?;
    tx.execute_batch(TABLES_SINCE_1)?;
    tx.execute_batch(
        "INSERT INTO event_index SELECT sandbox, seq, id FROM event ORDER BY sandbox, seq;
         UPDATE mark SET indexed = coalesce((SELECT max(id) FROM event), 0);",
    )
}
