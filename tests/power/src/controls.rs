//! Writers beside the daemon, on the same disk and in the same cut, whose fate is known: two that do not sync must lose what
//! they acknowledged, or this test could not fail; one that syncs must not. One goes past the kernel's cache and trusts the
//! device: it must lose something where devices lose theirs.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rustix::fs::OFlags;

use crate::load::Power;
use crate::tape::{BLOCK, Mark};

const RECORD: usize = 64;
/// As many as there is room for without making the file longer, which would be synced with it.
const DIRECT_RECORDS: usize = 1000;

/// How a control writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// `write`, then acknowledged.
    Plain,
    /// `write` and `fdatasync`, then acknowledged.
    Synced,
    /// A commit to SQLite with `synchronous=OFF`, then acknowledged.
    SqliteOff,
    /// `write` with `O_DIRECT` over what is there, then acknowledged: the device has it, and was not told to flush.
    Direct,
}

pub(crate) const CONTROLS: [Control; 4] = [
    Control::Plain,
    Control::Synced,
    Control::SqliteOff,
    Control::Direct,
];

impl Control {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "write, not synced",
            Self::Synced => "write and fdatasync",
            Self::SqliteOff => "SQLite, synchronous=OFF",
            Self::Direct => "O_DIRECT, not flushed",
        }
    }

    fn path(self, disk: &Path) -> PathBuf {
        disk.join(match self {
            Self::Plain => "control.plain",
            Self::Synced => "control.synced",
            Self::SqliteOff => "control.sqlite",
            Self::Direct => "control.direct",
        })
    }

    /// How far records are apart.
    fn stride(self) -> u64 {
        match self {
            Self::Direct => BLOCK as u64,
            Self::Plain | Self::Synced | Self::SqliteOff => RECORD as u64,
        }
    }

    /// Writes until told to stop or refused; returns when it acknowledged each of its records.
    pub(crate) fn write(self, disk: &Path, power: &Power, stop: &AtomicBool) -> Vec<Mark> {
        let path = self.path(disk);
        // The power may go before there is a file: then nothing was acknowledged. That it is there in most cuts is seen in what
        // the controls lose.
        let nothing = || until(power, stop, |_| false);
        match self {
            Self::Plain | Self::Synced => {
                // The file itself is there: what is looked at is its content.
                let made = File::create(&path).and_then(|file| file.sync_all().map(|()| file));
                let Ok(mut file) = made else {
                    return nothing();
                };
                until(power, stop, |nth| {
                    let written = file.write_all(&record(nth));
                    if self == Self::Synced {
                        written.and_then(|()| file.sync_data()).is_ok()
                    } else {
                        written.is_ok()
                    }
                })
            }
            Self::Direct => {
                let make = || -> std::io::Result<File> {
                    std::fs::write(&path, vec![0; BLOCK * DIRECT_RECORDS])?;
                    let file = File::options()
                        .write(true)
                        .custom_flags(OFlags::DIRECT.bits().cast_signed())
                        .open(&path)?;
                    file.sync_all()?;
                    Ok(file)
                };
                let Ok(file) = make() else {
                    return nothing();
                };
                let mut memory = vec![0; 2 * BLOCK];
                let begin = memory.as_ptr().align_offset(BLOCK);
                let aligned = &mut memory[begin..begin + BLOCK];
                until(power, stop, |nth| {
                    aligned[..RECORD].copy_from_slice(&record(nth));
                    nth < DIRECT_RECORDS as u64
                        && file.write_all_at(aligned, nth * self.stride()).is_ok()
                })
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
                let Ok(database) = open() else {
                    return nothing();
                };
                until(power, stop, |nth| {
                    let row = (nth.cast_signed(), record(nth).to_vec());
                    database
                        .execute("INSERT INTO t VALUES(?1, ?2)", row)
                        .is_ok()
                })
            }
        }
    }

    /// Returns how many records from the first on are there. A database that is no longer one holds none.
    pub(crate) fn found(self, disk: &Path) -> u64 {
        let path = self.path(disk);
        match self {
            Self::Plain | Self::Synced | Self::Direct => {
                let Ok(file) = File::open(&path) else {
                    return 0;
                };
                let mut read = [0; RECORD];
                (0_u64..)
                    .take_while(|&nth| {
                        file.read_exact_at(&mut read, nth * self.stride()).is_ok()
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
fn until(power: &Power, stop: &AtomicBool, mut write: impl FnMut(u64) -> bool) -> Vec<Mark> {
    let mut acknowledged = Vec::new();
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) || !write(nth) {
            break;
        }
        acknowledged.push(power.mark());
        std::thread::sleep(Duration::from_millis(2));
    }
    acknowledged
}
