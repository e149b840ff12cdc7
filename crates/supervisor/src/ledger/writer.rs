//! The table's file: frames written in place into zeros that are there already, so that a sync is one write to the disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::BytesMut;
use protocol::CodecError;
use protocol::paths::state::TABLE;
use protocol::table::{Record, Table, encode_frame, read_records};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::fold::Fold;
use super::{Error, read_file};

/// A table that grew beyond this, and to twice of what had to be kept the last time, is rewritten while it is in use.
const COMPACT_AT: u64 = 8 << 20;
/// A table beyond this is rewritten when it is opened.
const COMPACT_ON_OPEN: u64 = 256 << 10;
/// The first and the largest piece of zeros added at one time.
const GROW: (usize, usize) = (64 << 10, 1 << 20);
/// How often a full disk is asked again; there is no event for it.
const FULL_DISK: Duration = Duration::from_millis(100);
/// The name of a table that is being written anew.
const NEW: &str = "ops.table.new";

pub(super) struct Writer {
    state: OwnedFd,
    spool: OwnedFd,
    file: OwnedFd,
    /// Where the next frame goes.
    end: u64,
    /// How far the file has been filled with zeros.
    size: u64,
    /// The length after the last rewriting.
    kept: u64,
    /// Whether the file's name may not be durable yet.
    new_name: bool,
    fold: Fold,
    held: Vec<Record>,
}

fn failed(verb: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Io {
        verb,
        source: errno.into(),
    }
}

impl Writer {
    /// Opens or creates the table; cuts what was torn, and rewrites it where it has become long.
    pub(super) fn open(state: BorrowedFd<'_>, spool: OwnedFd) -> Result<(Self, Table), Error> {
        let state = state.try_clone_to_owned().map_err(|source| Error::Io {
            verb: "reach",
            source,
        })?;
        let old = read_file(&state, TABLE).map_err(|source| Error::Io {
            verb: "read",
            source,
        })?;
        let mut fold = Fold::default();
        let mut table = Table::default();
        let bytes = old.as_deref().unwrap_or_default();
        let whole = read_records(bytes, |record| {
            table.apply(&record);
            fold.apply(record);
        })
        .map_err(Error::Damaged)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&state, TABLE, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("open"))?;
        let mut size = bytes.len() as u64;
        if bytes[whole..].iter().any(|b| *b != 0) {
            rustix::fs::ftruncate(&file, whole as u64).map_err(failed("cut"))?;
            size = whole as u64;
        }
        let mut writer = Self {
            state,
            spool,
            file,
            end: whole as u64,
            size,
            kept: 0,
            new_name: old.is_none(),
            fold,
            held: Vec::new(),
        };
        if writer.end > COMPACT_ON_OPEN {
            writer.compact().map_err(|source| Error::Io {
                verb: "rewrite",
                source,
            })?;
        }
        Ok((writer, table))
    }

    /// Adds a record to the next commit.
    pub(super) fn hold(&mut self, record: Record) {
        self.held.push(record);
    }

    /// Whether a commit would write something.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Makes the names of new spool files durable, of all at once.
    pub(super) fn sync_names(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.spool)?)
    }

    /// Makes everything held durable.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.write(&held)?;
        held.into_iter().for_each(|record| self.fold.apply(record));
        if self.end > COMPACT_AT.max(2 * self.kept) {
            self.compact()?;
        }
        Ok(())
    }

    fn write(&mut self, records: &[Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut frame = BytesMut::new();
        match encode_frame(records, &mut frame) {
            Ok(()) => {}
            // Each half is synced before the next: a frame behind another says that the other is durable.
            Err(CodecError::TooLong(_)) if records.len() > 1 => {
                let (first, second) = records.split_at(records.len() / 2);
                self.write(first)?;
                return self.write(second);
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        let end = self.end + frame.len() as u64;
        while self.size < end {
            let zeros = vec![
                0;
                usize::try_from(self.size)
                    .unwrap_or(GROW.1)
                    .clamp(GROW.0, GROW.1)
            ];
            write_at(&self.file, &zeros, self.size)?;
            self.size += zeros.len() as u64;
        }
        write_at(&self.file, &frame, self.end)?;
        rustix::fs::fdatasync(&self.file)?;
        if self.new_name {
            rustix::fs::fsync(&self.state)?;
            self.new_name = false;
        }
        self.end = end;
        Ok(())
    }

    /// Writes the table anew without what the journal remembers, and puts it in the place of the old in one step.
    fn compact(&mut self) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.state, NEW, flags, Mode::RUSR | Mode::WUSR)?;
        let mut content = BytesMut::new();
        for records in self.fold.records().chunks(super::MAX_BATCH) {
            encode_all(records, &mut content)?;
        }
        let end = content.len() as u64;
        content.resize((content.len() + GROW.0).next_multiple_of(GROW.0), 0);
        let size = content.len() as u64;
        write_at(&file, &content, 0)?;
        rustix::fs::fsync(&file)?;
        rustix::fs::renameat(&self.state, NEW, &self.state, TABLE)?;
        rustix::fs::fsync(&self.state)?;
        self.file = file;
        self.end = end;
        self.kept = end;
        self.size = size;
        self.new_name = false;
        Ok(())
    }
}

fn encode_all(records: &[Record], out: &mut BytesMut) -> io::Result<()> {
    match encode_frame(records, out) {
        Err(CodecError::TooLong(_)) if records.len() > 1 => {
            let (first, second) = records.split_at(records.len() / 2);
            encode_all(first, out)?;
            encode_all(second, out)
        }
        other => other.map_err(io::Error::other),
    }
}

/// Writes all of `bytes` at `at`; a full disk is waited for, since what runs already must still be able to settle.
fn write_at(file: impl AsFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, at) {
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => std::thread::sleep(FULL_DISK),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
