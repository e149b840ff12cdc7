//! What a push remembers of the tree it read, on this machine: per directory the entries with inode number and ctime.
//!
//! A file whose inode, size, mtime and ctime are the remembered ones is not read again, and its attributes are not asked
//! for: each of them changes the ctime. A btrfs snapshot keeps all four. The cache belongs to one workspace and those
//! it was made from in a line: in two forks one inode number may be two files of the same ctime.
//!
//! A file may be written twice within one tick of the kernel's clock, with the cut between. So nothing is believed
//! that changed within [`TICK`] of the newest ctime of the tree: the cut cannot be older than that.
//!
//! A directory is a record, and has the same number as long as it stays where it is. Where the caller knows which inodes
//! changed since the tree of this cache, only the records of directories that have to do with them are made anew, and the
//! rest is carried over as bytes. A record begins with what finds them: inode numbers and records of its entries.

use std::ops::Range;
use std::path::Path;

use crate::entry::Entry;
use crate::id::{IdSet, PackId};
use crate::wire::{Malformed, Reader, put_bytes, put_len, put_num, put_signed};

const MAGIC: &[u8; 8] = b"DSBC0002";
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
    /// Where the records are; an empty one is of no directory.
    records: Vec<Range<usize>>,
    packs: IdSet<PackId>,
    newest: Time,
    token: String,
    root: Row,
}

/// The cache of the push under way.
#[derive(Default)]
pub(crate) struct New {
    records: Vec<Record>,
    free: Vec<u32>,
}

enum Record {
    /// Of no directory.
    Free,
    /// As it is in the old cache.
    Kept,
    Fresh(Vec<u8>),
}

impl Old {
    /// Reads a cache; `None` if there is none, it is torn, of another version, or another store's.
    pub(crate) fn read(path: &Path, store: &str) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (text, told) = bytes.split_last_chunk::<32>()?;
        if blake3::hash(text) != *told {
            return None;
        }
        let old = Self::parse(text, store).ok().flatten()?;
        Some(Self { bytes, ..old })
    }

    /// All but the bytes.
    fn parse(text: &[u8], store: &str) -> Result<Option<Self>, Malformed> {
        let mut from = Reader(text);
        if from.array()? != *MAGIC || from.bytes()? != store.as_bytes() {
            return Ok(None);
        }
        let token = String::from_utf8_lossy(from.bytes()?).into_owned();
        let newest = time(&mut from)?;
        let mut packs = IdSet::default();
        for _ in 0..from.count(32)? {
            packs.insert(PackId(from.array()?));
        }
        let (ino, record) = key(&mut from)?;
        let root = row(&mut from, ino, record)?;
        let mut records = Vec::new();
        for _ in 0..from.count(1)? {
            let record = from.bytes()?;
            let end = text.len() - from.0.len();
            records.push(end - record.len()..end);
        }
        Ok(Some(Self {
            bytes: Vec::new(),
            records,
            packs,
            newest,
            token,
            root,
        }))
    }

    pub(crate) fn root(&self) -> &Row {
        &self.root
    }

    /// What the caller called the tree; empty where it did not.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// How many records there are, those of no directory among them.
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    fn record(&self, record: u32) -> &[u8] {
        let range = self.records.get(record as usize).cloned();
        range.map_or(&[], |range| &self.bytes[range])
    }

    /// Says whether a record is a directory's.
    pub(crate) fn is_used(&self, record: u32) -> bool {
        !self.record(record).is_empty()
    }

    /// The rows of a directory; none where there is no such record.
    pub(crate) fn rows(&self, record: u32) -> Result<Vec<Row>, Malformed> {
        let mut from = Reader(self.record(record));
        if from.is_empty() {
            return Ok(Vec::new());
        }
        let (_, count) = head(&mut from)?;
        let mut keys = Vec::with_capacity(count);
        for _ in 0..count {
            keys.push(key(&mut from)?);
        }
        let rows = keys.into_iter();
        rows.map(|(ino, child)| row(&mut from, ino, child))
            .collect()
    }

    /// Tells inode number and record of each entry of a directory, without a look at the rest.
    pub(crate) fn keys(
        &self,
        record: u32,
        mut see: impl FnMut(u64, Option<u32>),
    ) -> Result<(), Malformed> {
        let mut from = Reader(self.record(record));
        if from.is_empty() {
            return Ok(());
        }
        let (_, count) = head(&mut from)?;
        for _ in 0..count {
            let (ino, child) = key(&mut from)?;
            see(ino, child);
        }
        Ok(())
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
    /// Begins with every record as it was.
    pub(crate) fn keeping(old: &Old) -> Self {
        let all = 0..number(old.len());
        let free = all.clone().filter(|record| !old.is_used(*record)).collect();
        let keep = |record| match old.is_used(record) {
            true => Record::Kept,
            false => Record::Free,
        };
        Self {
            records: all.map(keep).collect(),
            free,
        }
    }

    /// Takes what [`record`] made, in place of the directory's earlier record where it has one, and gives its number.
    pub(crate) fn put(&mut self, earlier: Option<u32>, record: Vec<u8>) -> u32 {
        let place = earlier.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.records.push(Record::Free);
            number(self.records.len() - 1)
        });
        self.records[place as usize] = Record::Fresh(record);
        place
    }

    /// Forgets a directory of the old cache that is gone, with all below it.
    pub(crate) fn forget(&mut self, old: &Old, record: u32) {
        let mut left = vec![record];
        while let Some(record) = left.pop() {
            self.records[record as usize] = Record::Free;
            self.free.push(record);
            // It was read through before, so it can be.
            let _readable = old.keys(record, |_, child| left.extend(child));
        }
    }

    fn texts<'s>(&'s self, old: Option<&'s Old>) -> impl Iterator<Item = &'s [u8]> {
        self.records
            .iter()
            .enumerate()
            .map(move |(place, record)| -> &'s [u8] {
                match record {
                    Record::Free => &[],
                    Record::Kept => old.map_or(&[], |old| old.record(number(place))),
                    Record::Fresh(text) => text,
                }
            })
    }

    /// How many entries the tree has, and the newest of their ctimes.
    pub(crate) fn sum(&self, old: Option<&Old>) -> (u64, Time) {
        let heads = self.texts(old).filter_map(|text| head(&mut Reader(text)).ok());
        heads.fold((0, Time::default()), |(entries, newest), (time, count)| {
            (entries + count as u64, newest.max(time))
        })
    }

    /// Writes the cache. `old` is what kept records are taken from.
    pub(crate) fn write(
        &self,
        path: &Path,
        of: &Of<'_>,
        packs: impl ExactSizeIterator<Item = PackId>,
        root: &Row,
        old: Option<&Old>,
    ) -> std::io::Result<()> {
        let len: usize = self.texts(old).map(|text| text.len() + 4).sum();
        let mut text = Vec::with_capacity(len + packs.len() * 32 + 4096);
        text.extend_from_slice(MAGIC);
        put_bytes(&mut text, of.store.as_bytes());
        put_bytes(&mut text, of.token.as_bytes());
        put_time(&mut text, self.sum(old).1.max(root.ctime));
        put_len(&mut text, packs.len());
        for pack in packs {
            text.extend_from_slice(&pack.0);
        }
        put_key(&mut text, root);
        put_row(&mut text, root);
        put_len(&mut text, self.records.len());
        for record in self.texts(old) {
            put_bytes(&mut text, record);
        }
        let hash = blake3::hash(&text);
        text.extend_from_slice(hash.as_bytes());
        crate::files::replace(path, &text)
    }
}

/// What a cache is of.
pub(crate) struct Of<'s> {
    pub(crate) store: &'s str,
    /// What the caller calls the tree; empty where it does not.
    pub(crate) token: &'s str,
}

/// A directory's record: the newest ctime in it, the keys of its entries, then the rest of them.
pub(crate) fn record(rows: &[Row]) -> Vec<u8> {
    let mut record = Vec::with_capacity(rows.len() * 96 + 16);
    let newest = rows.iter().map(|row| row.ctime).max();
    put_time(&mut record, newest.unwrap_or_default());
    put_len(&mut record, rows.len());
    rows.iter().for_each(|row| put_key(&mut record, row));
    rows.iter().for_each(|row| put_row(&mut record, row));
    record
}

fn head(from: &mut Reader<'_>) -> Result<(Time, usize), Malformed> {
    Ok((time(from)?, from.count(2)?))
}

fn number(len: usize) -> u32 {
    u32::try_from(len).expect("no tree has four billion directories")
}

fn put_time(to: &mut Vec<u8>, time: Time) {
    put_signed(to, time.0);
    put_num(to, time.1.into());
}

fn time(from: &mut Reader<'_>) -> Result<Time, Malformed> {
    Ok((from.signed()?, from.num32()?))
}

fn put_key(to: &mut Vec<u8>, row: &Row) {
    put_num(to, row.ino);
    put_num(to, row.record.map_or(0, |record| u64::from(record) + 1));
}

fn key(from: &mut Reader<'_>) -> Result<(u64, Option<u32>), Malformed> {
    let ino = from.num()?;
    let record = from.num()?.checked_sub(1).map(u32::try_from).transpose();
    Ok((ino, record.map_err(|_| Malformed("a number too large"))?))
}

fn put_row(to: &mut Vec<u8>, row: &Row) {
    put_time(to, row.ctime);
    row.entry.encode(to);
}

fn row(from: &mut Reader<'_>, ino: u64, record: Option<u32>) -> Result<Row, Malformed> {
    Ok(Row {
        ino,
        record,
        ctime: time(from)?,
        entry: Entry::decode(from)?,
    })
}
