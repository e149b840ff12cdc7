//! Opening a data directory: the checks that come before the first statement, each with an error that names the remedy.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::checkpoint::{Checkpoints, Progress};
use super::fault::Fault;
use super::load::{Loaded, load};
use super::schema::{self, Found};
use super::wal::{self, WalDamage};
use super::writer::Writer;
use super::{DATABASE_FILE, LOCK_FILE, PAGE_BYTES, Sqlite, reader};
use crate::queue::{Gather, Queue};

/// Bytes of the write-ahead log that are on disk before they are needed: a sync that does not grow the file is cheaper.
/// A steady load makes it two or three times as long, once.
const WAL_BYTES: usize = 4 << 20;
/// Bytes that the log keeps when it starts again.
const WAL_KEPT_BYTES: i64 = 64 << 20;
/// The writer's page cache: two of the largest batches. SQLite walks all of it at some commits, so bigger is slower.
const CACHE_KIB: i64 = 8 << 10;
/// Threads that read.
const READERS: usize = 3;
/// How long a person's `sqlite3` shell may hold the database before the store gives up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to do where commits were lost from the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDamagedWal {
    /// Refuse to open, and change nothing.
    Refuse,
    /// Keep a copy of the log beside it, named `journal.db-wal.damaged-N`, and go on with what is before the damage.
    ///
    /// Journals then end earlier than they did. Only a witness can tell which: see [`Store::verify`](crate::Store::verify).
    KeepCopy,
}

/// Why a journal was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("the journal in {} is in use by another process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// A newer version of this program wrote it.
    #[error("{} was written by a newer version of this program (format {found}, this one knows {known})", path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its format version.
        found: i32,
        /// The newest one that this program knows.
        known: i32,
    },
    /// It is something else.
    #[error("{} is not a journal", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// No room is left.
    #[error("there is no room left for {}", path.display())]
    NoSpace {
        /// The file that was written to.
        path: PathBuf,
    },
    /// The file system is mounted read-only.
    #[error("{} is on a read-only file system", path.display())]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// The rights are missing.
    #[error("no rights to write {}", path.display())]
    NoRights {
        /// The path.
        path: PathBuf,
    },
    /// The file system cannot keep a journal.
    #[error("{} is on {what}, which cannot keep a journal: use a local disk", path.display())]
    Unsuitable {
        /// The path.
        path: PathBuf,
        /// What the file system is, or lacks.
        what: String,
    },
    /// Commits that were on disk are gone from the write-ahead log.
    #[error("the write-ahead log of {} is damaged: {damage}", path.display())]
    DamagedWal {
        /// The database.
        path: PathBuf,
        /// Where and how much.
        damage: WalDamage,
    },
    /// The database is damaged so that not even its heads can be read.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// Something else failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The database refused.
    #[error("cannot open {}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
}

impl OpenError {
    pub(super) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::PermissionDenied => Self::NoRights { path },
            _ => Self::Io { what, path, source },
        }
    }

    pub(super) fn database(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        let rusqlite::Error::SqliteFailure(error, why) = &source else {
            return Self::Database { path, source };
        };
        match error.code {
            ErrorCode::DiskFull => Self::NoSpace { path },
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied => Self::NoRights { path },
            ErrorCode::NotADatabase => Self::NotAJournal { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::InUse {
                dir: path.parent().unwrap_or(&path).to_owned(),
            },
            ErrorCode::DatabaseCorrupt => Self::Damaged {
                path,
                why: why.clone().unwrap_or_else(|| error.to_string()),
            },
            ErrorCode::SystemIoFailure if (18..=21).contains(&(error.extended_code >> 8)) => {
                Self::Unsuitable {
                    path,
                    what: format!("a file system without shared memory maps ({error})"),
                }
            }
            _ => Self::Database { path, source },
        }
    }
}

pub(super) fn open(dir: &Path, on_damage: OnDamagedWal) -> Result<Sqlite, OpenError> {
    let lock = hold(dir)?;
    let path = dir.join(DATABASE_FILE);
    let log = dir.join(format!("{DATABASE_FILE}-wal"));
    inspect_wal(&path, &log, on_damage)?;
    // What is in a journal is nobody else's business; SQLite gives its other files the rights of this one.
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| OpenError::io("open", &path, e))?;
    let sql = |e| OpenError::database(&path, e);
    let mut conn = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sql)?;
    let age = prepare(&path, &log, &mut conn)?;
    // The directory's entries are as durable as what is in the files from here on.
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| OpenError::io("sync", dir, e))?;
    let Loaded {
        books,
        chores,
        next_row,
    } = load(&conn).map_err(sql)?;
    fill_wal(&log, age)?;

    let queue = Arc::new(Queue::new());
    let fault = Arc::new(Fault::new(Arc::clone(&queue)));
    // From here on an error drops it, and that ends the threads.
    let mut store = Sqlite {
        queue,
        jobs: Arc::new(Queue::new()),
        books: Arc::new(books),
        fault,
        threads: Vec::new(),
        lock,
    };
    let spawn = |e| OpenError::io("start a thread for", &path, e);
    let progress = Arc::new(Progress::default());
    let pages = Arc::clone(&progress);
    conn.wal_hook(Some(move |_: &mut _, n: i32| {
        pages.committed(n.unsigned_abs());
        Ok(())
    }))
    .map_err(sql)?;
    let mover = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sql)?;
    mover
        .pragma_update(None, "synchronous", "FULL")
        .map_err(sql)?;
    let (checkpoints, thread) =
        Checkpoints::start(mover, progress, Arc::clone(&store.fault)).map_err(spawn)?;
    store.threads.push(thread);
    let writer = Writer {
        conn,
        queue: Arc::clone(&store.queue),
        books: Arc::clone(&store.books),
        fault: Arc::clone(&store.fault),
        checkpoints,
        chores,
        next_row,
        gather: Gather::default(),
    };
    let thread = std::thread::Builder::new()
        .name("journal-write".into())
        .spawn(move || writer.run())
        .map_err(spawn)?;
    store.threads.push(thread);
    for _ in 0..READERS {
        let conn = connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(sql)?;
        let thread = reader::start(conn, Arc::clone(&store.jobs)).map_err(spawn)?;
        store.threads.push(thread);
    }
    Ok(store)
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    conn.busy_timeout(PATIENCE)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    Ok(conn)
}

/// Whether somebody may have something in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Old,
}

/// Looks what the database is, sets it up for durable writing and brings it to this version.
fn prepare(path: &Path, log: &Path, conn: &mut Connection) -> Result<Age, OpenError> {
    let sql = |e| OpenError::database(path, e);
    let found = schema::look(conn).map_err(sql)?;
    match found {
        Found::Foreign => {
            return Err(OpenError::NotAJournal {
                path: path.to_owned(),
            });
        }
        Found::Version(found) if found > schema::VERSION => {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                found,
                known: schema::VERSION,
            });
        }
        Found::Empty => conn
            .pragma_update(None, "page_size", PAGE_BYTES)
            .map_err(sql)?,
        Found::Version(_) => {}
    }
    let mode: String = conn
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .map_err(sql)?;
    if mode != "wal" {
        return Err(OpenError::Unsuitable {
            path: path.to_owned(),
            what: "a file system without shared memory maps".to_owned(),
        });
    }
    conn.pragma_update(None, "synchronous", "FULL")
        .map_err(sql)?;
    conn.pragma_update(None, "cache_size", -CACHE_KIB)
        .map_err(sql)?;
    conn.pragma_update(None, "temp_store", "MEMORY")
        .map_err(sql)?;
    conn.pragma_update(None, "journal_size_limit", WAL_KEPT_BYTES)
        .map_err(sql)?;
    schema::migrate(conn, &found).map_err(sql)?;
    let age = match found {
        Found::Empty => Age::New,
        Found::Foreign | Found::Version(_) => Age::Old,
    };
    // A process killed between writing and syncing a commit leaves frames that read as committed and are not on disk.
    // Moving them syncs them, before anybody is told of them.
    match conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
        // They stay in the log until there is room.
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::DiskFull) => File::open(log)
            .and_then(|log| log.sync_all())
            .map_err(|e| OpenError::io("sync", log, e)),
        moved => moved.map_err(sql),
    }
    .map(|()| age)
}

fn inspect_wal(path: &Path, log: &Path, on_damage: OnDamagedWal) -> Result<(), OpenError> {
    let Some(damage) = wal::inspect(path, log).map_err(|e| OpenError::io("read", log, e))? else {
        return Ok(());
    };
    match on_damage {
        OnDamagedWal::Refuse => Err(OpenError::DamagedWal {
            path: path.to_owned(),
            damage,
        }),
        OnDamagedWal::KeepCopy => {
            let copy = (1..)
                .map(|n| log.with_extension(format!("db-wal.damaged-{n}")))
                .find(|copy| !copy.exists())
                .unwrap_or_else(|| log.with_extension("db-wal.damaged"));
            tracing::warn!(%damage, copy = %copy.display(), "going on without the end of the write-ahead log");
            fs::copy(log, &copy)
                .and_then(|_| File::open(&copy)?.sync_all())
                .map_err(|e| OpenError::io("copy the log to", &copy, e))
        }
    }
}

/// Fills the empty log with zeros, which SQLite takes for an empty log.
fn fill_wal(log: &Path, age: Age) -> Result<(), OpenError> {
    let failed = |e| OpenError::io("make room in", log, e);
    let mut file = OpenOptions::new().write(true).open(log).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > 0 {
        // Somebody else is reading the database, so the log was not emptied.
        return Ok(());
    }
    let zeros = vec![0; 1 << 20];
    for _ in 0..WAL_BYTES / zeros.len() {
        match file.write_all(&zeros) {
            // What is read can be read all the same.
            Err(e) if e.kind() == io::ErrorKind::StorageFull && age == Age::Old => break,
            written => written.map_err(failed)?,
        }
    }
    file.sync_all().map_err(failed)
}

/// Makes the directory where it is missing, and holds it for this process as long as the file lives.
pub(super) fn hold(dir: &Path) -> Result<File, OpenError> {
    fs::create_dir_all(dir).map_err(|e| OpenError::io("make the directory", dir, e))?;
    refuse_network(dir)?;
    let path = dir.join(LOCK_FILE);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(|e| OpenError::io("open", &path, e))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            dir: dir.to_owned(),
        }),
        Err(TryLockError::Error(e)) => Err(OpenError::io("lock", &path, e)),
    }
}

/// SQLite's log needs memory shared between processes of one kernel; over a network it corrupts silently.
fn refuse_network(dir: &Path) -> Result<(), OpenError> {
    let stat = rustix::fs::statfs(dir).map_err(|e| OpenError::io("look at", dir, e.into()))?;
    let what = match stat.f_type & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9P",
        0x5346_414f => "AFS",
        0x00c3_6400 => "Ceph",
        0x0bd0_0bd0 => "Lustre",
        _ => return Ok(()),
    };
    Err(OpenError::Unsuitable {
        path: dir.to_owned(),
        what: what.to_owned(),
    })
}
