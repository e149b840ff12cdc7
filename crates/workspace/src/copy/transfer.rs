//! Copying a tree with everything that an overlay's upper holds: owners, times, extended attributes, hard links, holes,
//! whiteouts, names that are no text.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::tree::{Entry, Stamp, Tree};
use crate::{Error, Result, xattr};

/// What an earlier copy holds, to be shared where it is still the same.
pub(super) struct Share<'a> {
    /// Its tree.
    pub(super) content: &'a Path,
    /// What the head looked like then, sorted by path.
    pub(super) entries: &'a [Entry],
}

/// One copy in the making.
pub(super) struct Transfer<'a> {
    from: &'a Tree,
    to: &'a Path,
    share: Option<Share<'a>>,
    /// Where a file with more than one name was put first.
    linked: HashMap<u64, PathBuf>,
    /// Directories that vanished before we came to them.
    gone: HashSet<Vec<u8>>,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(from: &'a Tree, to: &'a Path, share: Option<Share<'a>>) -> Self {
        Self {
            from,
            to,
            share,
            linked: HashMap::new(),
            gone: HashSet::new(),
        }
    }

    /// Copies `entries`, the walk of the source. Returns those that were still there.
    pub(super) fn run(mut self, entries: Vec<Entry>) -> Result<Vec<Entry>> {
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries {
            if self.gone.contains(parent(&entry.path)) {
                if entry.file_type() == FileType::Directory {
                    self.gone.insert(entry.path.as_bytes().to_vec());
                }
            } else if self.put(&entry)? {
                kept.push(entry);
            } else {
                self.gone.insert(entry.path.into_encoded_bytes());
            }
        }
        // Last and from the deepest: what is put into a directory changes its times, and it may deny us writing.
        for entry in kept
            .iter()
            .rev()
            .filter(|entry| entry.file_type() == FileType::Directory)
        {
            if let Some(source) = self.from.find(&entry.path, OFlags::PATH)? {
                dress(&source, &self.target(entry), entry)?;
            }
        }
        Ok(kept)
    }

    fn target(&self, entry: &Entry) -> PathBuf {
        // Joining nothing would add a slash.
        if entry.path.is_empty() {
            self.to.to_owned()
        } else {
            self.to.join(&entry.path)
        }
    }

    /// Copies one file. False: it is not there any more.
    fn put(&mut self, entry: &Entry) -> Result<bool> {
        let target = self.target(entry);
        let made = |errno| Error::errno("copy to", &target, errno);
        let kind = entry.file_type();
        let shared = entry.nlink > 1 && kind != FileType::Directory;
        if shared
            && let Some(first) = self.linked.get(&entry.ino)
            && link(first, &target)?
        {
            return Ok(true);
        }
        if kind != FileType::Directory
            && let Some(earlier) = self.unchanged(entry)
            && link(&earlier, &target)?
        {
            self.linked.insert(entry.ino, target);
            return Ok(true);
        }
        let Some(source) = self.from.find(&entry.path, OFlags::PATH)? else {
            return Ok(false);
        };
        let found = rustix::fs::fstat(&source).map_err(made)?;
        if FileType::from_raw_mode(found.st_mode) != kind {
            return Ok(false);
        }
        let private = Mode::from_raw_mode(0o600);
        match kind {
            // Dressed at the end.
            FileType::Directory => {
                let open = Mode::from_raw_mode(0o700);
                rustix::fs::mkdir(&target, open).map_err(made)?;
                return Ok(true);
            }
            FileType::RegularFile => self.content(&source, entry, &target)?,
            FileType::Symlink => {
                let to = rustix::fs::readlinkat(&source, "", Vec::new()).map_err(made)?;
                rustix::fs::symlinkat(to, CWD, &target).map_err(made)?;
            }
            special => {
                rustix::fs::mknodat(CWD, &target, special, private, entry.rdev).map_err(made)?
            }
        }
        dress(&source, &target, entry)?;
        if shared {
            self.linked.insert(entry.ino, target);
        }
        Ok(true)
    }

    /// Finds the earlier copy of a file that did not change since.
    fn unchanged(&self, entry: &Entry) -> Option<PathBuf> {
        let share = self.share.as_ref()?;
        let at = share
            .entries
            .binary_search_by(|earlier| earlier.path.cmp(&entry.path))
            .ok()?;
        let earlier = &share.entries[at];
        (!earlier.racy && earlier.same(entry)).then(|| share.content.join(&entry.path))
    }

    fn content(&self, source: &OwnedFd, entry: &Entry, target: &Path) -> Result<()> {
        let mut from = reopen(source, self.from, entry)?;
        let io = |e| Error::io("copy to", target)(e);
        let mut to = File::create_new(target).map_err(io)?;
        if rustix::fs::ioctl_ficlone(&to, &from).is_ok() {
            return Ok(());
        }
        copy_data(&mut from, &mut to).map_err(|errno| Error::errno("copy to", target, errno))
    }
}

/// Opens a file for reading that was found without opening it: the same file, whatever its name stands for by now.
fn reopen(found: &OwnedFd, tree: &Tree, entry: &Entry) -> Result<File> {
    let path = tree.path().join(&entry.path);
    File::open(proc_path(found)).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => Error::Unreadable {
            path,
            uid: entry.uid,
            mode: entry.mode & 0o7777,
        },
        _ => Error::io("read", path)(e),
    })
}

fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn parent(path: &OsStr) -> &[u8] {
    let path = path.as_bytes();
    path.iter()
        .rposition(|&byte| byte == b'/')
        .map_or(&[], |at| &path[..at])
}

/// Gives a file one more name. False: it has as many as it can have, so copy it.
fn link(first: &Path, target: &Path) -> Result<bool> {
    match rustix::fs::linkat(CWD, first, CWD, target, AtFlags::empty()) {
        Ok(()) => Ok(true),
        // Also where the earlier copy is gone or the file system has no hard links.
        Err(Errno::MLINK | Errno::NOENT | Errno::PERM | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(Error::errno("copy to", target, errno)),
    }
}

/// Copies data and leaves holes, up to the length that the file has at the start: a writer that appends meanwhile must not
/// leave a tail of zeros where the copy had looked already.
fn copy_data(from: &mut File, to: &mut File) -> std::result::Result<(), Errno> {
    let failed = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let len = from.metadata().map_err(failed)?.len();
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(&*from, SeekFrom::Data(at)) {
            // No more data: a hole up to the end.
            Err(Errno::NXIO) => break,
            // A file system that knows no holes.
            Err(Errno::INVAL) => at,
            start => start?,
        };
        let end = match rustix::fs::seek(&*from, SeekFrom::Hole(start)) {
            Err(Errno::INVAL) => len,
            // It was cut shorter meanwhile.
            Err(Errno::NXIO) => break,
            end => end?.min(len),
        };
        let wanted = end.saturating_sub(start);
        rustix::fs::seek(&*from, SeekFrom::Start(start))?;
        rustix::fs::seek(&*to, SeekFrom::Start(start))?;
        // copy_file_range below, and read and write where that cannot be.
        let copied = std::io::copy(&mut Read::by_ref(from).take(wanted), to).map_err(failed)?;
        at = start + copied;
        if copied < wanted {
            break;
        }
    }
    let now = from.metadata().map_err(failed)?.len();
    to.set_len(len.min(now)).map_err(failed)
}

/// Gives a copy the owner, rights, attributes and times of its source.
fn dress(source: &OwnedFd, target: &Path, entry: &Entry) -> Result<()> {
    let failed = |errno| Error::errno("copy the attributes to", target, errno);
    let is_link = entry.file_type() == FileType::Symlink;
    let own = rustix::process::geteuid();
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    rustix::fs::chownat(CWD, target, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(
        |errno| match errno {
            // Somebody else's, which only root can make.
            Errno::PERM => Error::Unreadable {
                path: target.to_owned(),
                uid: entry.uid,
                mode: entry.mode & 0o7777,
            },
            errno => failed(errno),
        },
    )?;
    // After the owner, for whose change takes capabilities and set-user-id bits away; before the mode, which an ACL changes.
    for (name, value) in xattr::all(&proc_path(source), xattr::Links::Followed).map_err(failed)? {
        match rustix::fs::lsetxattr(target, name.as_slice(), &value, XattrFlags::empty()) {
            Ok(()) => {}
            // Labels of the host's own security module, which it put on the copy as it saw fit.
            Err(Errno::PERM | Errno::OPNOTSUPP)
                if name.starts_with(b"security.") && !own.is_root() => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    if !is_link {
        let mode = Mode::from_raw_mode(entry.mode & 0o7777);
        rustix::fs::chmodat(CWD, target, mode, AtFlags::empty()).map_err(failed)?;
    }
    let time = |stamp: Stamp| Timespec {
        tv_sec: stamp.sec,
        tv_nsec: stamp.nsec,
    };
    // Nothing depends on access times; the time of change is the likeliest.
    let times = Timestamps {
        last_access: time(entry.mtime),
        last_modification: time(entry.mtime),
    };
    rustix::fs::utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
}

/// Whether a file of `live` holds the same as its copy below `content`; stamps and owners were compared before.
pub(super) fn same_content(live: &Tree, entry: &Entry, content: &Path) -> Result<bool> {
    let copy = if entry.path.is_empty() {
        content.to_owned()
    } else {
        content.join(&entry.path)
    };
    let failed = |errno| Error::errno("compare", &copy, errno);
    let Some(source) = live.find(&entry.path, OFlags::PATH)? else {
        return Ok(false);
    };
    if !entry.path.is_empty() {
        let now = xattr::all(&proc_path(&source), xattr::Links::Followed).map_err(failed)?;
        match xattr::all(&copy, xattr::Links::Themselves) {
            Ok(then) if then == now => {}
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(failed(errno)),
        }
    }
    match entry.file_type() {
        FileType::RegularFile => {
            let mut now = reopen(&source, live, entry)?;
            let mut then = File::open(&copy).map_err(Error::io("compare", &copy))?;
            same_bytes(&mut now, &mut then).map_err(Error::io("compare", &copy))
        }
        FileType::Symlink => {
            let now = rustix::fs::readlinkat(&source, "", Vec::new()).map_err(failed)?;
            Ok(
                fs::read_link(&copy)
                    .is_ok_and(|then| then.as_os_str().as_bytes() == now.to_bytes()),
            )
        }
        // What is in a directory are entries of their own; a special file is all in its stamps.
        _ => Ok(true),
    }
}

fn same_bytes(one: &mut File, other: &mut File) -> std::io::Result<bool> {
    const STEP: usize = 64 << 10;
    let (mut here, mut there) = (vec![0; STEP], vec![0; STEP]);
    loop {
        let len = one.read(&mut here)?;
        if len == 0 {
            return Ok(other.read(&mut there)? == 0);
        }
        match other.read_exact(&mut there[..len]) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if here[..len] != there[..len] {
            return Ok(false);
        }
    }
}
