//! The journal, read by SQLite itself and checked by our own reckoning (docs/journal-format.md), not by the system's code.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use serde_json::Value;

use crate::{Res, trouble};

/// One event as stored.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its place.
    pub seq: u64,
    /// The epoch it was written under.
    pub epoch: u64,
    /// When it was written.
    pub at: u64,
    /// Its random id.
    pub id: Vec<u8>,
    /// The chain hash as stored.
    pub hash: Vec<u8>,
    /// The payload's text.
    pub payload: String,
}

impl Row {
    /// The payload.
    #[must_use]
    pub fn event(&self) -> Value {
        serde_json::from_str(&self.payload).unwrap_or_default()
    }
}

fn open(data: &Path) -> Res<Connection> {
    let path = data.join("journal").join("journal.db");
    let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(|e| trouble(format!("{}: {e}", path.display())))?;
    conn.busy_timeout(std::time::Duration::from_secs(10))?;
    Ok(conn)
}

/// Returns the number of a sandbox.
///
/// # Errors
/// The journal cannot be read.
pub fn id_of(data: &Path, name: &str) -> Res<Option<u64>> {
    let conn = open(data)?;
    let id: Option<i64> = conn
        .query_row("SELECT sandbox FROM sandbox WHERE name = ?1", [name], |r| {
            r.get(0)
        })
        .optional()?;
    Ok(id.map(i64::cast_unsigned))
}

/// Returns every event of a sandbox.
///
/// # Errors
/// The journal cannot be read.
pub fn read(data: &Path, name: &str) -> Res<Vec<Row>> {
    let id = id_of(data, name)?.ok_or_else(|| trouble(format!("no journal of {name}")))?;
    let conn = open(data)?;
    let mut query = conn.prepare(
        "SELECT seq, epoch, at_ms, event_id, hash, payload FROM event WHERE sandbox = ?1 ORDER BY seq",
    )?;
    let number = |r: &rusqlite::Row<'_>, at| r.get::<_, i64>(at).map(i64::cast_unsigned);
    let rows = query.query_map([id.cast_signed()], |r| {
        Ok(Row {
            seq: number(r, 0)?,
            epoch: number(r, 1)?,
            at: number(r, 2)?,
            id: r.get(3)?,
            hash: r.get(4)?,
            payload: r.get(5)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Checks that places are dense from 1, epochs never go back, and every hash is what the rest says.
///
/// # Errors
/// The first event that does not fit.
pub fn verify(rows: &[Row]) -> Res<()> {
    let mut before = [0_u8; 32];
    let mut epoch = 0;
    for (at, row) in rows.iter().enumerate() {
        let seq = at as u64 + 1;
        if row.seq != seq {
            return Err(trouble(format!("event {seq} has place {}", row.seq)));
        }
        if row.epoch < epoch {
            return Err(trouble(format!(
                "event {seq} goes back to epoch {}",
                row.epoch
            )));
        }
        epoch = row.epoch;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&before);
        hasher.update(&row.seq.to_le_bytes());
        hasher.update(&row.id);
        hasher.update(&row.epoch.to_le_bytes());
        hasher.update(&row.at.to_le_bytes());
        hasher.update(blake3::hash(row.payload.as_bytes()).as_bytes());
        let hash = *hasher.finalize().as_bytes();
        if row.hash != hash {
            return Err(trouble(format!("event {seq} breaks the chain")));
        }
        before = hash;
    }
    Ok(())
}
