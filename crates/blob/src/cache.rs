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
//! changed since the tree of this cache, only the records of directories that have to do with them are made anew. A record
//! begins with what finds them: inode numbers and records of its entries.
//!
//! The file is blocks: one with every record, and then one for each push that made only some anew. A block's hash covers
//! the hash of the one before it, so one that was written beside another push's counts for nothing, nor does all that follows.

use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

use crate::entry::Entry;
use crate::id::{IdSet, PackId};
use crate::wire::{Malformed, Reader, put_bytes, put_len, put_num, put_signed};

const MAGIC: &[u8; 8] = b"DSBC0002";
/// The longest tick of a kernel's clock (HZ = 100).
const TICK: i128 = 10_000_000;

/// So much is added to a cache before it is written anew, at least.
const ADDED: usize = 64 << 10;

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
    /// How long the first block is, and the hash of the last.
    first: usize,
    hash: [u8; 32],
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
    /// Whether it began with the old one's records.
    keeps: bool,
}

enum Record {
    /// Of no directory.
    Free,
    /// As it is in the old cache.
    Kept,
    Fresh(Vec<u8>),
}

/// What a block says of all of the tree.
struct Block {
    token: String,
    newest: Time,
    packs: Vec<PackId>,
    root: Row,
    /// How many records there are.
    count: usize,
    /// Those in this block.
    records: Vec<(usize, Range<usize>)>,
}

impl Old {
    /// Reads a cache as far as it is whole; `None` if there is none, it is of another version, or another store's.
    pub(crate) fn read(path: &Path, store: &str) -> Option<Self> {
        let mut bytes = std::fs::read(path).ok()?;
        let mut old: Option<Self> = None;
        let mut at = 0;
        while let Some((text, hash)) = block(&bytes, at, old.as_ref().map(|old| old.hash)) {
            let Ok(Some(block)) = Block::parse(&bytes[text.clone()], text.start, store) else {
                break;
            };
            at = text.end + 32;
            let old = old.get_or_insert_with(|| Self {
                bytes: Vec::new(),
                first: at,
                hash,
                records: Vec::new(),
                packs: IdSet::default(),
                newest: block.newest,
                token: String::new(),
                root: block.root.clone(),
            });
            old.hash = hash;
            old.records.resize(block.count, 0..0);
            for (number, range) in block.records {
                *old.records.get_mut(number)? = range;
            }
            old.packs.extend(block.packs);
            (old.token, old.newest, old.root) = (block.token, block.newest, block.root);
        }
        bytes.truncate(at);
        old.map(|old| Self { bytes, ..old })
    }

    pub(crate) fn root(&self) -> &Row {
        &self.root
    }

    /// What the caller called the tree; empty where it did not.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Says whether what was added to it is so little that more may be.
    fn is_short(&self) -> bool {
        self.bytes.len() < self.first + ADDED + self.first / 2
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
            keeps: true,
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
        let heads = self
            .texts(old)
            .filter_map(|text| head(&mut Reader(text)).ok());
        heads.fold((0, Time::default()), |(entries, newest), (time, count)| {
            (entries + count as u64, newest.max(time))
        })
    }

    /// Writes the cache, or adds to it what is new. `old` is what kept records are taken from.
    pub(crate) fn write(
        &self,
        path: &Path,
        of: &Of<'_>,
        packs: &[PackId],
        root: &Row,
        old: Option<&Old>,
    ) -> std::io::Result<()> {
        let newest = self.sum(old).1.max(root.ctime);
        if let Some(old) = old.filter(|old| self.keeps && old.is_short()) {
            let is_new = |place: usize| match &self.records[place] {
                Record::Kept => false,
                Record::Fresh(_) => true,
                Record::Free => old.is_used(number(place)),
            };
            let packs = packs.iter().filter(|pack| !old.packs.contains(*pack));
            let packs: Vec<PackId> = packs.copied().collect();
            let records = self.texts(Some(old)).enumerate();
            let records: Vec<_> = records.filter(|(place, _)| is_new(*place)).collect();
            let added = self.block(of, newest, (&packs, root), &records, old.hash);
            let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
            // Another push may have added to it meanwhile.
            if file.metadata()?.len() == old.bytes.len() as u64 {
                return file.write_all(&added);
            }
        }
        let records: Vec<_> = self.texts(old).enumerate().collect();
        let all = self.block(of, newest, (packs, root), &records, [0; 32]);
        crate::files::replace(path, &all)
    }

    fn block(
        &self,
        of: &Of<'_>,
        newest: Time,
        (packs, root): (&[PackId], &Row),
        records: &[(usize, &[u8])],
        before: [u8; 32],
    ) -> Vec<u8> {
        let len: usize = records.iter().map(|(_, text)| text.len() + 8).sum();
        let mut to = Vec::with_capacity(len + packs.len() * 32 + 4096);
        to.extend_from_slice(&[0; 8]);
        to.extend_from_slice(MAGIC);
        put_bytes(&mut to, of.store.as_bytes());
        put_bytes(&mut to, of.token.as_bytes());
        put_time(&mut to, newest);
        put_len(&mut to, packs.len());
        packs.iter().for_each(|pack| to.extend_from_slice(&pack.0));
        put_key(&mut to, root);
        put_row(&mut to, root);
        put_len(&mut to, self.records.len());
        put_len(&mut to, records.len());
        for (number, text) in records {
            put_len(&mut to, *number);
            put_bytes(&mut to, text);
        }
        let len = (to.len() - 8) as u64;
        to[..8].copy_from_slice(&len.to_le_bytes());
        let hash = chained(before, &to[8..]);
        to.extend_from_slice(&hash);
        to
    }
}

impl Block {
    /// `at` is where the text begins in the file.
    fn parse(text: &[u8], at: usize, store: &str) -> Result<Option<Self>, Malformed> {
        let mut from = Reader(text);
        if from.array()? != *MAGIC || from.bytes()? != store.as_bytes() {
            return Ok(None);
        }
        let token = String::from_utf8_lossy(from.bytes()?).into_owned();
        let newest = time(&mut from)?;
        let mut packs = Vec::new();
        for _ in 0..from.count(32)? {
            packs.push(PackId(from.array()?));
        }
        let (ino, record) = key(&mut from)?;
        let root = row(&mut from, ino, record)?;
        let count = usize::try_from(from.num32()?).map_err(|_| Malformed("a number too large"))?;
        let mut records = Vec::new();
        for _ in 0..from.count(2)? {
            let number = usize::try_from(from.num32()?);
            let number = number.map_err(|_| Malformed("a number too large"))?;
            let record = from.bytes()?;
            let end = at + text.len() - from.0.len();
            records.push((number, end - record.len()..end));
        }
        Ok(Some(Self {
            token,
            newest,
            packs,
            root,
            count,
            records,
        }))
    }
}

/// Where the text of the block at a place is, and its hash; `None` if no whole one is there.
fn block(bytes: &[u8], at: usize, before: Option<[u8; 32]>) -> Option<(Range<usize>, [u8; 32])> {
    let (len, rest) = bytes.get(at..)?.split_first_chunk::<8>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
    let (text, rest) = rest.split_at_checked(len)?;
    let told = rest.first_chunk::<32>()?;
    let hash = chained(before.unwrap_or_default(), text);
    (hash == *told).then_some((at + 8..at + 8 + len, hash))
}

fn chained(before: [u8; 32], text: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&before);
    hasher.update(text);
    hasher.finalize().into()
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
