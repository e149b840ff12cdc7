//! Writers beside the daemon, on the same disk and in the same cut, whose fate is known: two that do not sync must lose what
//! they acknowledged, or this test could not fail; one that syncs must not.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::Failure;
use rusqlite::Connection;

use crate::load::{Power, When};

const RECORD: usize = 64;

/// How a control writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// `write`, then acknowledged.
    Plain,
    /// `write` and `fdatasync`, then acknowledged.
    Synced,
    /// A commit to SQLite with `synchronous=OFF`, then acknowledged.
    SqliteOff,
}

pub(crate) const CONTROLS: [Control; 3] = [Control::Plain, Control::Synced, Control::SqliteOff];

impl Control {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "write, not synced",
            Self::Synced => "write and fdatasync",
            Self::SqliteOff => "SQLite, synchronous=OFF",
        }
    }

    fn path(self, disk: &Path) -> PathBuf {
        disk.join(match self {
            Self::Plain => "control.plain",
            Self::Synced => "control.synced",
            Self::SqliteOff => "control.sqlite",
        })
    }

    /// Writes until told to stop or refused; returns how many records it acknowledged before the power went.
    pub(crate) fn write(
        self,
        disk: &Path,
        power: &Power,
        stop: &AtomicBool,
    ) -> Result<u64, Failure> {
        let path = self.path(disk);
        match self {
            Self::Plain | Self::Synced => {
                let what = format!("make {}", path.display());
                let mut file = File::create(&path).map_err(Failure::cannot(what.clone()))?;
                // The file itself is there: what is looked at is its content.
                file.sync_all().map_err(Failure::cannot(what))?;
                Ok(until(power, stop, |nth| {
                    let written = file.write_all(&record(nth));
                    if self == Self::Synced {
                        written.and_then(|()| file.sync_data()).is_ok()
                    } else {
                        written.is_ok()
                    }
                }))
            }
            Self::SqliteOff => {
                let open = || -> rusqlite::Result<Connection> {
                    let database = Connection::open(&path)?;
                    database.execute_batch(
                        "PRAGMA synchronous=FULL; PRAGMA journal_mode=WAL; CREATE TABLE t(n INTEGER PRIMARY KEY, d BLOB);
                         PRAGMA synchronous=OFF;",
                    )?;
                    Ok(database)
                };
                // The power may go before there is a database: then nothing was acknowledged. That it is there in most
                // cuts is seen in what the control loses.
                let Ok(database) = open() else {
                    return Ok(until(power, stop, |_| false));
                };
                Ok(until(power, stop, |nth| {
                    let row = (nth.cast_signed(), record(nth).to_vec());
                    database
                        .execute("INSERT INTO t VALUES(?1, ?2)", row)
                        .is_ok()
                }))
            }
        }
    }

    /// Returns how many records from the first on are there. A database that is no longer one holds none.
    pub(crate) fn found(self, disk: &Path) -> u64 {
        let path = self.path(disk);
        match self {
            Self::Plain | Self::Synced => {
                let Ok(file) = File::open(&path) else {
                    return 0;
                };
                let mut read = [0; RECORD];
                (0_u64..)
                    .take_while(|&nth| {
                        file.read_exact_at(&mut read, nth * RECORD as u64).is_ok()
                            && read == record(nth)
                    })
                    .count() as u64
            }
            Self::SqliteOff => {
                let count = || -> rusqlite::Result<i64> {
                    Connection::open(&path)?
                        .query_row("SELECT count(*) FROM t", [], |row| row.get(0))
                };
                count().map_or(0, i64::cast_unsigned)
            }
        }
    }
}

fn record(nth: u64) -> [u8; RECORD] {
    let mut record = [b'.'; RECORD];
    record[..8].copy_from_slice(&nth.to_le_bytes());
    record[RECORD - 1] = b'\n';
    record
}

/// Calls `write` with 0, 1, … until it fails or is told to stop. Slow enough to leave the disk to whom it is about.
fn until(power: &Power, stop: &AtomicBool, mut write: impl FnMut(u64) -> bool) -> u64 {
    let mut acknowledged = 0;
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) || !write(nth) {
            break;
        }
        if power.when() == When::Before {
            acknowledged = nth + 1;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    acknowledged
}
