//! Writes a snapshot's tree into an empty directory, as it was.
//!
//! First the directories and everything without data, then the data pack by pack, so that each pack is read once, then
//! hard links, and last the directories' own times and modes. Whoever else can write into the target cannot lead a
//! write out of it: every file is reached by descriptor, and no symbolic link is followed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::entry::{Entry, Kind};
use crate::error::{Error, Result};
use crate::fetch::{Bad, Fault, Fetch};
use crate::files;
use crate::id::SnapshotId;
use crate::plan::{self, Want};
use crate::sink::{self, lock};
use crate::store::Store;

/// Parts of a pack nearer than this are read as one.
const GAP: u64 = 128 << 10;
/// No read is longer.
const RUN: u64 = 8 << 20;

/// How a tree is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// How many threads; 0 for as many as the store was opened with.
    pub threads: usize,
}

/// What a pull wrote, and what this user may not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullReport {
    /// Entries written.
    pub entries: u64,
    /// Bytes of data written.
    pub bytes: u64,
    /// Entries whose owner could not be set.
    pub owners_refused: u64,
    /// Extended attributes that could not be set.
    pub xattrs_refused: u64,
    /// Device nodes that could not be made.
    pub devices_refused: u64,
}

impl PullReport {
    /// Says whether everything is as it was pushed.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.owners_refused + self.xattrs_refused + self.devices_refused == 0
    }
}

impl Store {
    /// Writes a snapshot's tree into an empty directory: data, holes, names, modes, owners, times, attributes, links.
    ///
    /// A user who is not root sets the owners it may set; the report counts the rest. Nothing is synced: a caller who
    /// needs the tree to survive a power cut syncs the file system.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`]; [`Error::Chunk`] at the first damaged chunk. What was written until then is an incomplete
    /// tree, and is the caller's to remove.
    pub fn pull_tree(
        &self,
        id: &SnapshotId,
        into: &Path,
        options: PullOptions,
    ) -> Result<PullReport> {
        let snapshot = self.snapshot(id)?;
        let (root, content) = plan::root(&snapshot).ok_or_else(|| Error::NoPart {
            snapshot: *id,
            part: "tree".into(),
        })?;
        let target = files::open_root(into).map_err(Error::errno("open", into))?;
        if !files::names(target.as_fd())
            .map_err(Error::errno("list", into))?
            .is_empty()
        {
            return Err(Error::NotEmpty(into.into()));
        }
        let pull = Pull {
            fetch: self.fetch()?,
            snapshot: *id,
            into,
            root: target,
            dirs: Vec::new(),
            files: Vec::new(),
            wants: Vec::new(),
            links: Vec::new(),
            counts: Counts::default(),
        };
        let threads = match options.threads {
            0 => self.threads(),
            some => some,
        };
        pull.run(root, content, threads)
    }
}

#[derive(Default)]
struct Counts {
    bytes: AtomicU64,
    owners: AtomicU64,
    xattrs: AtomicU64,
    devices: AtomicU64,
}

struct Dir {
    path: Vec<u8>,
    entry: Entry,
}

struct File {
    dir: u32,
    entry: Entry,
    /// Chunks still to be written.
    left: AtomicU32,
    /// It is there, and holds some of its chunks.
    begun: bool,
}

struct Link {
    dir: u32,
    name: Vec<u8>,
    /// The directory and name of the file it is another name of.
    to: (u32, Vec<u8>),
}

struct Pull<'p> {
    fetch: Fetch<'p>,
    snapshot: SnapshotId,
    into: &'p Path,
    root: OwnedFd,
    dirs: Vec<Dir>,
    files: Vec<File>,
    wants: Vec<Want>,
    links: Vec<Link>,
    counts: Counts,
}

impl Pull<'_> {
    fn run(
        mut self,
        root: &Entry,
        content: &crate::content::Content,
        threads: usize,
    ) -> Result<PullReport> {
        let entries = self.make(root, content)?;
        self.wants
            .sort_by_key(|want| (want.place.pack, want.place.frame, want.place.at));
        self.fill(threads)?;
        self.link()?;
        // A directory is finished after what is below it: its mode may forbid to go there.
        for dir in self.dirs.iter().rev() {
            let (parent, name) = split(&dir.path);
            let above = self.open(parent)?;
            let name = if dir.path.is_empty() { b"." } else { name };
            self.dress(above.as_fd(), name, &dir.entry)
                .map_err(self.failed("finish", &dir.path))?;
        }
        let counts = &self.counts;
        Ok(PullReport {
            entries,
            bytes: counts.bytes.load(Relaxed),
            owners_refused: counts.owners.load(Relaxed),
            xattrs_refused: counts.xattrs.load(Relaxed),
            devices_refused: counts.devices.load(Relaxed),
        })
    }

    fn open(&self, path: &[u8]) -> Result<OwnedFd> {
        files::open_below(self.root.as_fd(), path).map_err(self.failed("open", path))
    }

    fn failed(&self, doing: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> Error + use<> {
        use std::os::unix::ffi::OsStrExt as _;
        Error::errno(doing, self.into.join(std::ffi::OsStr::from_bytes(path)))
    }

    fn fault(&self, fault: Fault, path: &[u8]) -> Error {
        fault.of(&self.snapshot, path)
    }

    /// Makes directories and all that has no data, and lists the data that is wanted.
    fn make(&mut self, root: &Entry, content: &crate::content::Content) -> Result<u64> {
        let mut linked = std::collections::HashMap::new();
        let mut entries = 0;
        self.dirs.push(Dir {
            path: Vec::new(),
            entry: root.clone(),
        });
        let mut stack = vec![(0u32, content.clone())];
        while let Some((number, content)) = stack.pop() {
            let path = self.dirs[number as usize].path.clone();
            let all = self
                .fetch
                .directory(&content, &mut |_| {})
                .map_err(|fault| self.fault(fault, &path))?;
            let dir = self.open(&path)?;
            for entry in all {
                entries += 1;
                let below = plan::join(&path, &entry.name);
                if let Some(link) = entry.link {
                    let first = (number, entry.name.clone());
                    match linked.entry(link) {
                        std::collections::hash_map::Entry::Vacant(empty) => {
                            empty.insert(first);
                        }
                        std::collections::hash_map::Entry::Occupied(to) => {
                            self.links.push(Link {
                                dir: number,
                                name: entry.name,
                                to: to.get().clone(),
                            });
                            continue;
                        }
                    }
                }
                match &entry.kind {
                    Kind::Dir(content) => {
                        rustix::fs::mkdirat(&dir, entry.name.as_slice(), Mode::RWXU)
                            .map_err(self.failed("make", &below))?;
                        stack.push((count32(self.dirs.len()), content.clone()));
                        self.dirs.push(Dir { path: below, entry });
                    }
                    Kind::File { .. } => self.plan_file(&dir, number, entry, &below)?,
                    _ => self
                        .make_node(dir.as_fd(), &entry)
                        .map_err(self.failed("make", &below))?,
                }
            }
        }
        Ok(entries)
    }

    fn plan_file(&mut self, dir: &OwnedFd, number: u32, entry: Entry, path: &[u8]) -> Result<()> {
        let Kind::File {
            size,
            extents,
            content,
        } = &entry.kind
        else {
            return Ok(());
        };
        let file = count32(self.files.len());
        let chunks = plan::wants(
            &self.fetch,
            content,
            entry.data_len(),
            file,
            &mut self.wants,
        )
        .map_err(|fault| fault.of(&self.snapshot, path))?;
        // What one chunk fills is made when that is at hand; the others are opened again and again.
        let begun = chunks != 1 || extents.is_some();
        if begun {
            let fd = create(dir.as_fd(), &entry.name).map_err(self.failed("make", path))?;
            rustix::fs::ftruncate(&fd, *size).map_err(self.failed("size", path))?;
            if chunks == 0 {
                self.dress_file(&fd, &entry)
                    .map_err(self.failed("finish", path))?;
            }
        }
        self.files.push(File {
            dir: number,
            entry,
            left: AtomicU32::new(count32(chunks)),
            begun,
        });
        Ok(())
    }

    fn make_node(&self, dir: BorrowedFd<'_>, entry: &Entry) -> Result<(), Errno> {
        let name = entry.name.as_slice();
        let (kind, device) = match &entry.kind {
            Kind::Symlink(target) => {
                rustix::fs::symlinkat(target.as_slice(), dir, name)?;
                return self.dress(dir, name, entry);
            }
            Kind::CharDevice(major, minor) => (FileType::CharacterDevice, (*major, *minor)),
            Kind::BlockDevice(major, minor) => (FileType::BlockDevice, (*major, *minor)),
            Kind::Fifo => (FileType::Fifo, (0, 0)),
            Kind::Socket => (FileType::Socket, (0, 0)),
            Kind::File { .. } | Kind::Dir(_) => return Ok(()),
        };
        let number = rustix::fs::makedev(device.0, device.1);
        match rustix::fs::mknodat(dir, name, kind, Mode::RUSR, number) {
            Err(Errno::PERM | Errno::ACCESS)
                if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) =>
            {
                self.counts.devices.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(errno) => Err(errno),
            Ok(()) => self.dress(dir, name, entry),
        }
    }

    /// Reads the wanted packs, several at once, and writes what is in them.
    fn fill(&self, threads: usize) -> Result<()> {
        let packs: Vec<&[Want]> = self
            .wants
            .chunk_by(|a, b| a.place.pack == b.place.pack)
            .collect();
        // One large pack is work for every thread.
        let mut runs = Vec::new();
        for pack in packs {
            self.runs(pack, &mut runs);
        }
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let stop = AtomicBool::new(false);
        let work = || {
            let mut at = None;
            while !stop.load(Relaxed) {
                let Some(run) = runs.get(next.fetch_add(1, Relaxed)) else {
                    return;
                };
                if let Err(why) = self.fill_run(run, &mut at) {
                    lock(&failed).get_or_insert(why);
                    stop.store(true, Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let failed = lock(&failed).take();
        failed.map_or(Ok(()), Err)
    }

    /// Cuts what is wanted of a pack into reads.
    fn runs<'w>(&self, mut wants: &'w [Want], to: &mut Vec<&'w [Want]>) {
        let frame = |want: &Want| self.fetch.known.frame(want.place).1;
        while let Some(first) = wants.first() {
            let start = frame(first).at;
            let mut end = start + u64::from(frame(first).stored);
            let len = wants.iter().take_while(|want| {
                let frame = frame(want);
                let fits = frame.at <= end + GAP
                    && frame.at + u64::from(frame.stored) <= (start + RUN).max(end);
                if fits {
                    end = end.max(frame.at + u64::from(frame.stored));
                }
                fits
            });
            let (run, rest) = wants.split_at(len.count().max(1));
            to.push(run);
            wants = rest;
        }
    }

    fn fill_run(&self, run: &[Want], at: &mut Option<(u32, OwnedFd)>) -> Result<()> {
        let (pack, first) = self.fetch.known.frame(run[0].place);
        let (_, last) = self.fetch.known.frame(run[run.len() - 1].place);
        let start = first.at;
        let end = last.at + u64::from(last.stored);
        let bytes = self
            .fetch
            .store
            .backend
            .get_range(&sink::object(pack), start, end - start)?;
        for wants in run.chunk_by(|a, b| a.place.frame == b.place.frame) {
            let (_, frame) = self.fetch.known.frame(wants[0].place);
            let bad = |why: &str| {
                let bad = Bad {
                    chunk: wants[0].chunk,
                    pack: Some(pack),
                    why: why.into(),
                };
                self.fault(Fault::Bad(bad), &self.path(&wants[0]))
            };
            let bytes = bytes.as_ref().ok_or_else(|| bad("the pack is missing"))?;
            let from = usize::try_from(frame.at - start).unwrap_or(usize::MAX);
            let stored = bytes
                .get(from..from + frame.stored as usize)
                .ok_or_else(|| bad("the pack is cut short"))?;
            let raw = self.fetch.unseal(frame, stored).map_err(bad)?;
            let mut before: Option<Want> = None;
            for want in wants {
                // The same chunk of another file was checked just now.
                if before.is_none_or(|before| before.place != want.place) {
                    self.fetch
                        .cut(&want.chunk, want.place, &raw)
                        .map_err(|bad| self.fault(Fault::Bad(bad), &self.path(want)))?;
                }
                before = Some(*want);
                let chunk = &raw[want.place.at as usize..][..want.place.len as usize];
                self.write(want, chunk, at)?;
            }
        }
        Ok(())
    }

    fn path(&self, want: &Want) -> Vec<u8> {
        let file = &self.files[want.file as usize];
        plan::join(&self.dirs[file.dir as usize].path, &file.entry.name)
    }

    fn write(&self, want: &Want, bytes: &[u8], at: &mut Option<(u32, OwnedFd)>) -> Result<()> {
        let file = &self.files[want.file as usize];
        let dir = match at {
            Some((number, dir)) if *number == file.dir => &*dir,
            _ => {
                let dir = self.open(&self.dirs[file.dir as usize].path)?;
                &at.insert((file.dir, dir)).1
            }
        };
        let failed = |errno| self.failed("write", &self.path(want))(errno);
        let fd = if file.begun {
            let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(dir, file.entry.name.as_slice(), flags, Mode::empty())
                .map_err(failed)?
        } else {
            create(dir.as_fd(), &file.entry.name).map_err(failed)?
        };
        place(&fd, &file.entry, want.at, bytes).map_err(failed)?;
        self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
        if file.left.fetch_sub(1, SeqCst) == 1 {
            self.dress_file(&fd, &file.entry)
                .map_err(self.failed("finish", &self.path(want)))?;
        }
        Ok(())
    }

    fn link(&self) -> Result<()> {
        for link in &self.links {
            let path = &self.dirs[link.dir as usize].path;
            let dir = self.open(path)?;
            let to = self.open(&self.dirs[link.to.0 as usize].path)?;
            match rustix::fs::linkat(
                &to,
                link.to.1.as_slice(),
                &dir,
                link.name.as_slice(),
                AtFlags::empty(),
            ) {
                // A device that could not be made has no other names either.
                Err(Errno::NOENT) if self.counts.devices.load(Relaxed) > 0 => {
                    self.counts.devices.fetch_add(1, Relaxed);
                }
                done => done.map_err(self.failed("link", &plan::join(path, &link.name)))?,
            }
        }
        Ok(())
    }

    /// Sets owner, attributes, mode and time of an open file, in the order in which none undoes another.
    fn dress_file(&self, fd: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
        self.owned(rustix::fs::fchown(fd, owner(entry).0, owner(entry).1))?;
        for (name, value) in &entry.xattrs {
            self.attributed(rustix::fs::fsetxattr(
                fd,
                name.as_slice(),
                value,
                rustix::fs::XattrFlags::empty(),
            ))?;
        }
        rustix::fs::fchmod(fd, Mode::from_raw_mode(entry.mode))?;
        rustix::fs::futimens(fd, &times(entry))
    }

    /// The same for a name in a directory.
    fn dress(&self, dir: BorrowedFd<'_>, name: &[u8], entry: &Entry) -> Result<(), Errno> {
        let (uid, gid) = owner(entry);
        self.owned(rustix::fs::chownat(
            dir,
            name,
            uid,
            gid,
            AtFlags::SYMLINK_NOFOLLOW,
        ))?;
        for (xattr, value) in &entry.xattrs {
            self.attributed(files::set_xattr_at(dir, name, xattr, value))?;
        }
        // A symbolic link has no mode of its own.
        if !matches!(entry.kind, Kind::Symlink(_)) {
            chmod(dir, name, entry.mode)?;
        }
        rustix::fs::utimensat(dir, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn owned(&self, done: Result<(), Errno>) -> Result<(), Errno> {
        match done {
            Err(Errno::PERM | Errno::INVAL) => {
                self.counts.owners.fetch_add(1, Relaxed);
                Ok(())
            }
            done => done,
        }
    }

    fn attributed(&self, done: Result<(), Errno>) -> Result<(), Errno> {
        match done {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => {
                self.counts.xattrs.fetch_add(1, Relaxed);
                Ok(())
            }
            done => done,
        }
    }
}

/// Sets a mode without following a symbolic link that somebody may have put there since.
fn chmod(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let by_fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    rustix::fs::chmod(by_fd.as_str(), Mode::from_raw_mode(mode))
}

fn create(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Writes data that begins at `at` of a file's data to where that is in the file.
fn place(fd: &OwnedFd, entry: &Entry, at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    let Kind::File { size, extents, .. } = &entry.kind else {
        return Ok(());
    };
    let dense = [(0, *size)];
    let extents = extents.as_deref().unwrap_or(&dense);
    let (mut passed, mut at) = (0, at);
    for (start, len) in extents {
        if at < passed + len && !bytes.is_empty() {
            let within = at - passed;
            let fits = usize::try_from(len - within)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let (now, rest) = bytes.split_at(fits);
            write_all(fd, now, start + within)?;
            bytes = rest;
            at += fits as u64;
        }
        passed += len;
    }
    Ok(())
}

fn write_all(fd: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(len) => {
                bytes = &bytes[len..];
                at += len as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn owner(entry: &Entry) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
    )
}

fn times(entry: &Entry) -> Timestamps {
    Timestamps {
        // When a file was last read is not kept.
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: entry.mtime.0,
            tv_nsec: entry.mtime.1.into(),
        },
    }
}

/// Parts a path into the directory and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

fn count32(count: usize) -> u32 {
    u32::try_from(count).expect("no tree has four billion entries")
}
