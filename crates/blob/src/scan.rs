//! Reads a tree and pushes it: directories by several threads, each directory by one, finished from the leaves up.
//!
//! A directory is a job. Its thread lists it, asks for every entry's state, compares with the cache, and reads what is
//! new. It is finished when its last child is, by whichever thread finished that one; there is no recursion, so a tree
//! may be as deep as it likes. A thread without a directory compresses what the others read.
//!
//! Where the caller knows which inodes changed since the cached tree, only directories that have to do with them are jobs.
//! One that changed, or an entry of it, is listed; an entry of the same name and inode that did not change is taken from the
//! cache without a call. One that only leads to such a directory is taken from the cache as a whole.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::affected::{self, Way};
use crate::cache::{self, New, Old, Row};
use crate::chunker::DATA;
use crate::content::Content;
use crate::entry::{Entry, Kind};
use crate::error::{Error, Result};
use crate::files;
use crate::id::ChunkId;
use crate::pack::{Class, Loose};
use crate::sink::{Carried, Lane, Sink, lock};

/// Frames that wait for a thread to compress them; past that the reader does it.
const OFFERS: usize = 4;

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) looked_at: AtomicU64,
    pub(crate) read_files: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
}

/// A tree being pushed.
pub(crate) struct Scan<'a> {
    sink: &'a Sink<'a>,
    path: &'a Path,
    root: OwnedFd,
    device: u64,
    old: Option<&'a Old>,
    /// Every chunk of the cached tree is in the store.
    complete: bool,
    since: Option<Since<'a>>,
    state: Mutex<State>,
    wake: Condvar,
    links: Mutex<HashMap<(u64, u64), Kind>>,
    pub(crate) counts: Counts,
}

/// What is known to have changed since the cached tree.
struct Since<'a> {
    changed: &'a BTreeSet<u64>,
    /// Of each record's directory.
    ways: Vec<Way>,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    offers: Vec<Loose>,
    dirs: Vec<Dir>,
    idle: usize,
    running: usize,
    failed: Option<Error>,
    new: New,
    root: Option<Content>,
    root_record: u32,
}

struct Job {
    dir: usize,
    path: Vec<u8>,
    /// Its record in the cache.
    record: Option<u32>,
    look: Look,
}

/// How much of a directory is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Its names, and every entry.
    Entries,
    /// Its names, and the entries that changed.
    Names,
    /// Nothing: it only leads to one that is looked at.
    Below,
}

/// What was found in a directory.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    children: Vec<Child>,
    /// Records of directories that are not in it any more.
    gone: Vec<u32>,
    /// Nothing in it differs from the cache but, perhaps, in children.
    same: bool,
}

/// A directory in a directory, to be gone into.
struct Child {
    /// The place in the rows.
    place: usize,
    was: Option<Content>,
    record: Option<u32>,
    look: Look,
}

/// A directory whose children are not all finished.
struct Dir {
    /// The parent, and the place in its rows.
    parent: Option<(usize, usize)>,
    rows: Vec<Row>,
    pending: usize,
    /// Nothing in it differs from the cache but, perhaps, in children.
    same: bool,
    /// Its content in the cache.
    was: Option<Content>,
    /// The record that it keeps.
    keeps: Option<u32>,
}

impl<'a> Scan<'a> {
    /// `changed` is in which inodes the tree may differ from the cached one; without it, every entry is looked at.
    pub(crate) fn new(
        sink: &'a Sink<'a>,
        path: &'a Path,
        old: Option<&'a Old>,
        changed: Option<&'a BTreeSet<u64>>,
    ) -> Result<Self> {
        let root = files::open_root(path).map_err(Error::errno("open", path))?;
        let stat = rustix::fs::fstat(&root).map_err(Error::errno("look at", path))?;
        let complete =
            old.is_some_and(|old| old.complete(|pack| sink.known.by_pack.contains_key(pack)));
        // A chunk that the store lost is uploaded again by reading its file, so everything is looked at then.
        let since = match (old, changed) {
            (Some(old), Some(changed)) if complete && old.root().ino == stat.st_ino => {
                affected::find(old, changed).map(|ways| Since { changed, ways })
            }
            _ => None,
        };
        Ok(Self {
            sink,
            path,
            root,
            device: stat.st_dev,
            complete,
            old,
            since,
            state: Mutex::default(),
            wake: Condvar::new(),
            links: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// Pushes the tree with so many threads. Gives its root and what the next push should remember.
    pub(crate) fn run(&self, threads: usize) -> Result<(Row, New)> {
        let stat = rustix::fs::fstat(&self.root).map_err(Error::errno("look at", self.path))?;
        let mut root = Row {
            ino: stat.st_ino,
            ctime: ctime(&stat),
            record: None,
            entry: self.bare(Vec::new(), &stat, Kind::Dir(Content::default())),
        };
        root.entry.xattrs = files::xattrs(self.root.as_fd())
            .map_err(Error::errno("read the attributes of", self.path))?;
        let was = self.old.map(Old::root);
        let (record, content) = (
            was.and_then(|row| row.record),
            was.and_then(|row| dir_content(&row.entry)),
        );
        {
            let mut state = lock(&self.state);
            let look = self.look(record);
            if let (Some(_), Some(old)) = (&self.since, self.old) {
                state.new = New::keeping(old);
            }
            match (look, record) {
                (None, Some(record)) => {
                    state.root_record = record;
                    state.root = content;
                }
                (look, record) => {
                    state.dirs.push(Dir {
                        parent: None,
                        rows: Vec::new(),
                        pending: 0,
                        same: false,
                        was: content,
                        keeps: self.since.as_ref().and(record),
                    });
                    state.jobs.push(Job {
                        dir: 0,
                        path: Vec::new(),
                        record,
                        look: look.unwrap_or(Look::Entries),
                    });
                }
            }
        }
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|| self.work());
            }
            self.work();
        });
        let mut state = std::mem::take(&mut *lock(&self.state));
        if let Some(why) = state.failed.take() {
            return Err(why);
        }
        root.record = Some(state.root_record);
        root.entry.kind = Kind::Dir(state.root.take().unwrap_or_default());
        Ok((root, state.new))
    }

    fn work(&self) {
        let mut lane = Lane::new();
        let done = self
            .take_jobs(&mut lane)
            .and_then(|()| self.sink.flush(&mut lane));
        if let Err(why) = done {
            lock(&self.state).failed.get_or_insert(why);
        }
        self.wake.notify_all();
    }

    fn take_jobs(&self, lane: &mut Lane) -> Result<()> {
        enum Next {
            Frame(Loose),
            Dir(Job),
        }
        loop {
            let next = {
                let mut state = lock(&self.state);
                loop {
                    if state.failed.is_some() {
                        return Ok(());
                    }
                    if let Some(frame) = state.offers.pop() {
                        break Next::Frame(frame);
                    }
                    if let Some(job) = state.jobs.pop() {
                        state.running += 1;
                        break Next::Dir(job);
                    }
                    if state.running == 0 {
                        return Ok(());
                    }
                    state.idle += 1;
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    state.idle -= 1;
                }
            };
            match next {
                Next::Frame(frame) => self.sink.store(frame)?,
                Next::Dir(job) => {
                    let done = self.directory(job, lane);
                    let mut state = lock(&self.state);
                    state.running -= 1;
                    if let Err(why) = done {
                        state.failed.get_or_insert(why);
                    }
                    drop(state);
                    self.wake.notify_all();
                }
            }
        }
    }

    /// Gives a full frame to a thread that has nothing to do, or stores it here.
    fn full(&self, frame: Loose) -> Result<()> {
        let mut state = lock(&self.state);
        if state.idle > 0 && state.offers.len() < OFFERS {
            state.offers.push(frame);
            drop(state);
            self.wake.notify_one();
            return Ok(());
        }
        drop(state);
        self.sink.store(frame)
    }

    /// How much of the directory of a record is looked at; `None`: nothing in it or below it changed.
    fn look(&self, record: Option<u32>) -> Option<Look> {
        let (Some(since), Some(record)) = (&self.since, record) else {
            return Some(Look::Entries);
        };
        match since.ways.get(record as usize) {
            Some(Way::Same) => None,
            Some(Way::Below) => Some(Look::Below),
            Some(Way::Here) => Some(Look::Names),
            None => Some(Look::Entries),
        }
    }

    fn directory(&self, job: Job, lane: &mut Lane) -> Result<()> {
        let old_rows = match (self.old, job.record) {
            (Some(old), Some(record)) => old.rows(record),
            _ => Ok(Vec::new()),
        };
        let (old_rows, look) = match old_rows {
            Ok(rows) => (rows, job.look),
            // Nothing of it can be believed.
            Err(_) => (Vec::new(), Look::Entries),
        };
        let Found {
            rows,
            children,
            gone,
            same,
        } = match look {
            Look::Entries => self.every_entry(&job.path, old_rows, lane)?,
            Look::Names => self.changed_entries(&job.path, old_rows, lane)?,
            Look::Below => self.as_it_was(old_rows),
        };
        let mut state = lock(&self.state);
        if let Some(old) = self.old {
            for record in gone {
                state.new.forget(old, record);
            }
        }
        let pending = children.len();
        for child in children {
            let mut path = job.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&rows[child.place].entry.name);
            let number = state.dirs.len();
            state.dirs.push(Dir {
                parent: Some((job.dir, child.place)),
                rows: Vec::new(),
                pending: 0,
                same: false,
                was: child.was,
                keeps: self.since.as_ref().and(child.record),
            });
            state.jobs.push(Job {
                dir: number,
                path,
                record: child.record,
                look: child.look,
            });
        }
        let this = &mut state.dirs[job.dir];
        this.rows = rows;
        this.pending = pending;
        this.same = same;
        drop(state);
        self.wake.notify_all();
        if pending == 0 {
            self.finish(job.dir, lane)?;
        }
        Ok(())
    }

    /// Lists a directory and looks at every entry.
    fn every_entry(&self, path: &[u8], old_rows: Vec<Row>, lane: &mut Lane) -> Result<Found> {
        let (dir, names) = self.listed(path)?;
        let mut found = Found {
            same: self.complete && old_rows.len() == names.len(),
            ..Found::default()
        };
        let mut old_rows = old_rows.into_iter().peekable();
        for (name, _) in names {
            let stat = self.look_at(dir.as_fd(), path, &name)?;
            while old_rows.next_if(|old| old.entry.name < name).is_some() {}
            let old = old_rows.next_if(|old| old.entry.name == name);
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let known = old.as_ref().is_some_and(|old| self.unchanged(old, &stat));
            found.same &= known;
            if is_dir {
                let old = old.as_ref();
                found.children.push(Child {
                    place: found.rows.len(),
                    was: old.and_then(|old| dir_content(&old.entry)),
                    // Its record is of what was there by that name; nothing of it is believed that does not look the same.
                    record: old.and_then(|old| old.record),
                    look: Look::Entries,
                });
            }
            let entry = match old {
                Some(old) if known => old.entry,
                _ => self.read_at(dir.as_fd(), path, &name, &stat, lane)?,
            };
            found.rows.push(Row {
                entry,
                ino: stat.st_ino,
                ctime: ctime(&stat),
                record: None,
            });
        }
        Ok(found)
    }

    /// Lists a directory and looks at the entries that changed, and those that were not there by that name.
    fn changed_entries(&self, path: &[u8], old_rows: Vec<Row>, lane: &mut Lane) -> Result<Found> {
        let (dir, names) = self.listed(path)?;
        let mut found = Found {
            same: old_rows.len() == names.len(),
            ..Found::default()
        };
        let mut old_rows = old_rows.into_iter().peekable();
        for (name, ino) in names {
            while let Some(gone) = old_rows.next_if(|old| old.entry.name < name) {
                found.gone.extend(gone.record);
            }
            let here = old_rows.next_if(|old| old.entry.name == name);
            let (same, other): (Option<Row>, Option<Row>) = match here {
                Some(row) if row.ino == ino => (Some(row), None),
                other => (None, other),
            };
            found.gone.extend(other.and_then(|other| other.record));
            let changed = self
                .since
                .as_ref()
                .is_none_or(|since| since.changed.contains(&ino));
            match same {
                Some(row) if !changed => {
                    if row.record.is_some()
                        && let Some(look) = self.look(row.record)
                    {
                        found.children.push(child(found.rows.len(), &row, look));
                    }
                    found.rows.push(row);
                }
                same => {
                    found.same = false;
                    let stat = self.look_at(dir.as_fd(), path, &name)?;
                    let entry = self.read_at(dir.as_fd(), path, &name, &stat, lane)?;
                    let row = Row {
                        entry,
                        ino: stat.st_ino,
                        ctime: ctime(&stat),
                        // Put right when the child is finished.
                        record: None,
                    };
                    let is_dir = matches!(row.entry.kind, Kind::Dir(_));
                    let place = found.rows.len();
                    match same {
                        // The same directory, which changed: so it is looked at as well.
                        Some(old) if is_dir && old.record.is_some() => {
                            let look = self.look(old.record).unwrap_or(Look::Names);
                            found.children.push(child(place, &old, look));
                        }
                        same => {
                            found.gone.extend(same.and_then(|old| old.record));
                            if is_dir {
                                found.children.push(Child {
                                    place,
                                    was: None,
                                    record: None,
                                    look: Look::Entries,
                                });
                            }
                        }
                    }
                    found.rows.push(row);
                }
            }
        }
        found.gone.extend(old_rows.filter_map(|gone| gone.record));
        Ok(found)
    }

    /// Takes a directory from the cache.
    fn as_it_was(&self, rows: Vec<Row>) -> Found {
        let children = rows.iter().enumerate().filter_map(|(place, row)| {
            row.record?;
            Some(child(place, row, self.look(row.record)?))
        });
        Found {
            children: children.collect(),
            rows,
            gone: Vec::new(),
            same: true,
        }
    }

    fn listed(&self, path: &[u8]) -> Result<(OwnedFd, files::Names)> {
        let full = || self.full_path(path, b"");
        let dir =
            files::open_below(self.root.as_fd(), path).map_err(Error::errno("open", full()))?;
        let names = files::names(dir.as_fd()).map_err(Error::errno("list", full()))?;
        Ok((dir, names))
    }

    fn look_at(&self, dir: BorrowedFd<'_>, path: &[u8], name: &[u8]) -> Result<Stat> {
        self.counts.looked_at.fetch_add(1, Relaxed);
        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| Error::errno("look at", self.full_path(path, name))(errno))
    }

    fn read_at(
        &self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        stat: &Stat,
        lane: &mut Lane,
    ) -> Result<Entry> {
        self.read(dir, name, stat, lane)
            .map_err(|carried| placed(carried, self.full_path(path, name)))
    }

    /// Stores a directory whose children are all finished, then its parent if it was the last of that one's, and so on.
    fn finish(&self, mut number: usize, lane: &mut Lane) -> Result<()> {
        loop {
            let (rows, same, was, keeps) = {
                let dir = &mut lock(&self.state).dirs[number];
                let rows = std::mem::take(&mut dir.rows);
                (rows, dir.same, dir.was.take(), dir.keeps)
            };
            let content = match was {
                Some(was) if same => was,
                _ => {
                    let mut text = Vec::with_capacity(rows.len() * 80);
                    rows.iter().for_each(|row| row.entry.encode(&mut text));
                    self.sink.add_meta(lane, &text)?
                }
            };
            let record = cache::record(&rows);
            let mut state = lock(&self.state);
            let record = state.new.put(keeps, record);
            let Some((parent, place)) = state.dirs[number].parent else {
                state.root = Some(content);
                state.root_record = record;
                return Ok(());
            };
            let above = &mut state.dirs[parent];
            let row = &mut above.rows[place];
            above.same &= dir_content(&row.entry).as_ref() == Some(&content);
            row.entry.kind = Kind::Dir(content);
            row.record = Some(record);
            above.pending -= 1;
            if above.pending > 0 {
                return Ok(());
            }
            number = parent;
        }
    }

    /// Says whether an entry is what the cache remembers, and all of its data in the store.
    fn unchanged(&self, old: &Row, stat: &Stat) -> bool {
        let entry = &old.entry;
        let kind_is_same = match (&entry.kind, FileType::from_raw_mode(stat.st_mode)) {
            (Kind::File { size, content, .. }, FileType::RegularFile) => {
                *size == stat.st_size.cast_unsigned()
                    && (self.complete
                        || content.level == 0
                            && content
                                .chunks
                                .iter()
                                .all(|id| self.sink.known.find(id).is_some()))
            }
            (Kind::Dir(_), FileType::Directory)
            | (Kind::Symlink(_), FileType::Symlink)
            | (Kind::CharDevice(..), FileType::CharacterDevice)
            | (Kind::BlockDevice(..), FileType::BlockDevice)
            | (Kind::Fifo, FileType::Fifo)
            | (Kind::Socket, FileType::Socket) => true,
            _ => false,
        };
        kind_is_same
            && old.ino == stat.st_ino
            && old.ctime == ctime(stat)
            && entry.mtime == mtime(stat)
            && self.old.is_some_and(|cache| cache.settled(old))
    }

    /// Reads an entry, and the data of a file.
    fn read(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
        lane: &mut Lane,
    ) -> Result<Entry, Carried> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let fd = rustix::fs::openat(dir, name, flags, Mode::empty())
                    .map_err(std::io::Error::from)?;
                let mut entry = self.bare(name.to_vec(), stat, Kind::Fifo);
                entry.xattrs = files::xattrs(fd.as_fd()).map_err(std::io::Error::from)?;
                entry.kind = self.linked_data(fd, stat, lane)?;
                return Ok(entry);
            }
            FileType::Directory => Kind::Dir(Content::default()),
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(dir, name, Vec::new()).map_err(std::io::Error::from)?;
                Kind::Symlink(target.into_bytes())
            }
            FileType::CharacterDevice => Kind::CharDevice(
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            ),
            FileType::BlockDevice => Kind::BlockDevice(
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            ),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::Unknown => return Err(std::io::Error::from(Errno::INVAL).into()),
        };
        let mut entry = self.bare(name.to_vec(), stat, kind);
        entry.xattrs = files::xattrs_at(dir, name).map_err(std::io::Error::from)?;
        Ok(entry)
    }

    /// Reads a file's data, once for all of its names.
    fn linked_data(&self, fd: OwnedFd, stat: &Stat, lane: &mut Lane) -> Result<Kind, Carried> {
        let key = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(kind) = lock(&self.links).get(&key)
        {
            return Ok(kind.clone());
        }
        let kind = self.data(fd, stat, lane)?;
        if stat.st_nlink > 1 {
            lock(&self.links).insert(key, kind.clone());
        }
        Ok(kind)
    }

    fn data(&self, fd: OwnedFd, stat: &Stat, lane: &mut Lane) -> Result<Kind, Carried> {
        let size = stat.st_size.cast_unsigned();
        self.counts.read_files.fetch_add(1, Relaxed);
        self.counts.read_bytes.fetch_add(size, Relaxed);
        let extents = if stat.st_blocks.cast_unsigned() * 512 < size {
            files::extents(fd.as_fd(), size).map_err(std::io::Error::from)?
        } else {
            None
        };
        let spans = extents.clone().unwrap_or_else(|| vec![(0, size)]);
        let mut data = Spans {
            fd: fd.as_fd(),
            spans: spans.into_iter(),
            at: 0,
            left: 0,
        };
        let mut chunks = Vec::new();
        let mut got = 0;
        if size <= DATA.min as u64 {
            use std::io::Read as _;
            let mut buffer = std::mem::take(&mut lane.buffer);
            buffer.clear();
            data.read_to_end(&mut buffer)?;
            got = buffer.len() as u64;
            if got > 0 {
                chunks.push(self.chunk(lane, &buffer)?);
            }
            lane.buffer = buffer;
        } else {
            let mut buffer = Vec::new();
            DATA.split(&mut data, &mut buffer, |chunk| {
                got += chunk.len() as u64;
                chunks.push(self.chunk(lane, chunk)?);
                Ok::<(), Carried>(())
            })?;
        }
        let kind = Kind::File {
            size,
            extents,
            content: self.sink.listed(lane, 0, chunks)?,
        };
        let entry = self.bare(Vec::new(), stat, kind);
        if entry.data_len() != got {
            return Err(std::io::Error::other(
                "it changed while it was read: a cut must stand still",
            )
            .into());
        }
        Ok(entry.kind)
    }

    fn chunk(&self, lane: &mut Lane, bytes: &[u8]) -> Result<ChunkId> {
        let (id, full) = self.sink.add(lane, Class::Data, bytes);
        full.map_or(Ok(()), |frame| self.full(frame))?;
        Ok(id)
    }

    fn bare(&self, name: Vec<u8>, stat: &Stat, kind: Kind) -> Entry {
        let is_dir = matches!(kind, Kind::Dir(_));
        Entry {
            name,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: mtime(stat),
            xattrs: Vec::new(),
            link: (stat.st_nlink > 1 && !is_dir).then(|| self.link(stat)),
            kind,
        }
    }

    /// The number that a file's names share: its inode, and in a mount below the tree something as rare.
    fn link(&self, stat: &Stat) -> u64 {
        if stat.st_dev == self.device {
            return stat.st_ino;
        }
        let mut both = stat.st_dev.to_le_bytes().to_vec();
        both.extend_from_slice(&stat.st_ino.to_le_bytes());
        let hash: [u8; 32] = blake3::hash(&both).into();
        hash.first_chunk()
            .map_or(stat.st_ino, |first| u64::from_le_bytes(*first) | 1 << 63)
    }

    fn full_path(&self, dir: &[u8], name: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let part = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
        self.path.join(part(dir)).join(part(name))
    }
}

/// The data of a file, its extents one after the other.
struct Spans<'f> {
    fd: BorrowedFd<'f>,
    spans: std::vec::IntoIter<(u64, u64)>,
    at: u64,
    left: u64,
}

impl std::io::Read for Spans<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.left == 0 {
            match self.spans.next() {
                Some((at, len)) => (self.at, self.left) = (at, len),
                None => return Ok(0),
            }
        }
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = rustix::io::pread(self.fd, &mut buffer[..most], self.at)?;
        if got == 0 {
            // Shorter than it was; whoever counts notices.
            self.spans = Vec::new().into_iter();
            self.left = 0;
            return Ok(0);
        }
        self.at += got as u64;
        self.left -= got as u64;
        Ok(got)
    }
}

/// A directory that was in the cache by that row.
fn child(place: usize, row: &Row, look: Look) -> Child {
    Child {
        place,
        was: dir_content(&row.entry),
        record: row.record,
        look,
    }
}

fn dir_content(entry: &Entry) -> Option<Content> {
    match &entry.kind {
        Kind::Dir(content) => Some(content.clone()),
        _ => None,
    }
}

fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, nanos(stat.st_mtime_nsec))
}

fn ctime(stat: &Stat) -> (i64, u32) {
    (stat.st_ctime, nanos(stat.st_ctime_nsec))
}

fn nanos(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Puts the path to what failed.
fn placed(carried: Carried, path: PathBuf) -> Error {
    match carried.0 {
        Error::Io {
            doing,
            source,
            path: what,
        } if what.as_os_str() == "what is to be pushed" => Error::Io {
            doing,
            path,
            source,
        },
        other => other,
    }
}
