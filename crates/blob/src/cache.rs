//! What a push remembers of the tree it read, on this machine: per directory the entries with inode number and ctime.
//!
//! A file whose inode, size, mtime and ctime are the remembered ones is not read again, and its attributes are not asked
//! for: each of them changes the ctime. A btrfs snapshot keeps all four. The cache belongs to one workspace and those
//! it was made from in a line: in two forks one inode number may be two files of the same ctime.
//!
//! A file may be written twice within one tick of the kernel's clock, with the cut between. So nothing is believed
//! that changed within [`TICK`] of the newest ctime of the tree: the cut cannot be older than that.

use std::path::Path;

use crate::entry::Entry;
use crate::id::{IdSet, PackId};
use crate::wire::{Malformed, Reader, put_len, put_num, put_signed};

const MAGIC: &[u8; 8] = b"DSBC0001";
/// The longest tick of a kernel's clock (HZ = 100).
const TICK: i128 = 10_000_000;

/// Seconds and nanoseconds.
pub(crate) type Time = (i64, u32);

/// An entry and how to tell that it is still the same.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) entry: Entry,
    pub(crate) ino: u64,
    pub(crate) ctime: Time,
    /// A directory's record.
    pub(crate) record: Option<u32>,
}

/// The cache of an earlier push.
pub(crate) struct Old {
    bytes: Vec<u8>,
    records: Vec<(usize, usize)>,
    packs: IdSet<PackId>,
    newest: Time,
    root: Row,
}

/// The cache of the push under way.
#[derive(Default)]
pub(crate) struct New {
    records: Vec<Vec<u8>>,
    newest: Time,
}

impl Old {
    /// Reads a cache; `None` if there is none, it is torn, or it is another store's.
    pub(crate) fn read(path: &Path, store: &str) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (text, told) = bytes.split_last_chunk::<32>()?;
        if blake3::hash(text) != *told {
            return None;
        }
        Self::parse(text, store)
            .ok()
            .flatten()
            .map(|(records, packs, newest, root)| Self {
                records,
                packs,
                newest,
                root,
                bytes,
            })
    }

    #[expect(clippy::type_complexity, reason = "the fields of the one caller")]
    fn parse(
        text: &[u8],
        store: &str,
    ) -> Result<Option<(Vec<(usize, usize)>, IdSet<PackId>, Time, Row)>, Malformed> {
        let mut from = Reader(text);
        if from.array()? != *MAGIC || from.bytes()? != store.as_bytes() {
            return Ok(None);
        }
        let newest = (from.signed()?, from.num32()?);
        let mut packs = IdSet::default();
        for _ in 0..from.count(32)? {
            packs.insert(PackId(from.array()?));
        }
        let root = row(&mut from)?;
        let mut records = Vec::new();
        for _ in 0..from.count(1)? {
            let record = from.bytes()?;
            let end = text.len() - from.0.len();
            records.push((end - record.len(), end));
        }
        Ok(Some((records, packs, newest, root)))
    }

    pub(crate) fn root(&self) -> &Row {
        &self.root
    }

    /// The rows of a directory.
    pub(crate) fn rows(&self, record: u32) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some((start, end)) = self.records.get(record as usize) {
            let mut from = Reader(&self.bytes[*start..*end]);
            while let Ok(row) = row(&mut from) {
                rows.push(row);
            }
        }
        rows
    }

    /// Says whether a row was settled when it was read.
    pub(crate) fn settled(&self, row: &Row) -> bool {
        nanos(row.ctime) + TICK < nanos(self.newest)
    }

    /// Says whether every pack that may hold a chunk of the tree is among those the store has.
    pub(crate) fn complete(&self, has: impl Fn(&PackId) -> bool) -> bool {
        self.packs.iter().all(has)
    }
}

fn nanos(time: Time) -> i128 {
    i128::from(time.0) * 1_000_000_000 + i128::from(time.1)
}

impl New {
    /// Takes a directory's rows and gives the number of its record.
    pub(crate) fn add(&mut self, rows: &[Row]) -> u32 {
        let mut record = Vec::with_capacity(rows.len() * 96);
        for row in rows {
            put_row(&mut record, row);
            self.newest = self.newest.max(row.ctime);
        }
        self.records.push(record);
        u32::try_from(self.records.len() - 1).expect("no tree has four billion directories")
    }

    /// Writes the cache.
    pub(crate) fn write(
        &self,
        path: &Path,
        store: &str,
        packs: impl ExactSizeIterator<Item = PackId>,
        root: &Row,
    ) -> std::io::Result<()> {
        let mut text =
            Vec::with_capacity(self.records.iter().map(|one| one.len() + 4).sum::<usize>() + 4096);
        text.extend_from_slice(MAGIC);
        crate::wire::put_bytes(&mut text, store.as_bytes());
        let newest = self.newest.max(root.ctime);
        put_signed(&mut text, newest.0);
        put_num(&mut text, newest.1.into());
        put_len(&mut text, packs.len());
        for pack in packs {
            text.extend_from_slice(&pack.0);
        }
        put_row(&mut text, root);
        put_len(&mut text, self.records.len());
        for record in &self.records {
            crate::wire::put_bytes(&mut text, record);
        }
        let hash = blake3::hash(&text);
        text.extend_from_slice(hash.as_bytes());
        crate::files::replace(path, &text)
    }
}

fn put_row(to: &mut Vec<u8>, row: &Row) {
    put_num(to, row.ino);
    put_signed(to, row.ctime.0);
    put_num(to, row.ctime.1.into());
    put_num(to, row.record.map_or(0, |record| u64::from(record) + 1));
    row.entry.encode(to);
}

fn row(from: &mut Reader<'_>) -> Result<Row, Malformed> {
    let ino = from.num()?;
    let ctime = (from.signed()?, from.num32()?);
    let record = from.num()?.checked_sub(1).map(u32::try_from);
    Ok(Row {
        ino,
        ctime,
        record: record
            .transpose()
            .map_err(|_| Malformed("a number too large"))?,
        entry: Entry::decode(from)?,
    })
}
