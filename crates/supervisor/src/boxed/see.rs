//! What is at a path, without opening more than is asked for, and why something could not be done to it.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use protocol::files::{Entry, Kind, Name, Problem, Why};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::words::quoted;

pub(super) fn path_of(name: &Name) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&name.0))
}

pub(super) fn name_of(path: impl AsRef<OsStr>) -> Name {
    Name(path.as_ref().as_bytes().to_vec())
}

/// Returns what a failed `verb` on `path` means for whoever asked.
pub(super) fn problem(verb: &str, path: &Path, error: impl Into<io::Error>) -> Problem {
    let error = error.into();
    let why = match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => Why::Missing,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Why::Denied,
        Some(Errno::EXIST | Errno::NOTEMPTY) => Why::Exists,
        Some(
            Errno::NOTDIR
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::INVAL
            | Errno::NXIO
            | Errno::NODEV
            | Errno::XDEV
            | Errno::BUSY
            | Errno::TXTBSY,
        ) => Why::Unfit,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Why::Full,
        _ => Why::Other,
    };
    let path = quoted(&name_of(path).escaped());
    let words = match Errno::from_io_error(&error) {
        // Magic links, which lead out of the tree, are refused like endless ones.
        Some(Errno::LOOP) => {
            format!("cannot {verb} {path}: too many links, or one of /proc that leads elsewhere")
        }
        Some(errno) => format!("cannot {verb} {path}: {}", said(errno)),
        None => format!("cannot {verb} {path}: {error}"),
    };
    Problem { why, words }
}

/// The kernel's words without its number.
fn said(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}

pub(super) fn unfit(path: &Path, words: &str) -> Problem {
    Problem {
        why: Why::Unfit,
        words: format!("{} {words}", quoted(&name_of(path).escaped())),
    }
}

/// Opens without ever waiting for another process, and without the links of /proc that lead out of the tree.
pub(super) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_at(CWD, path, flags)
}

pub(super) fn open_at(dir: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let mut flags = flags | OFlags::CLOEXEC;
    // A descriptor that only names a file knows nothing of the two.
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    }
    rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Describes what `name` in `dir` is; a link itself.
pub(super) fn at(dir: impl AsFd, file: &Path, name: Name) -> Result<Entry, Errno> {
    let stat = rustix::fs::statat(&dir, file, AtFlags::SYMLINK_NOFOLLOW)?;
    let mut entry = of(&stat, name);
    if entry.kind == Kind::Symlink {
        // It may be another thing by now: then it has no target.
        let target = rustix::fs::readlinkat(&dir, file, Vec::new());
        entry.target = target.ok().map(|target| Name(target.into_bytes()));
    }
    Ok(entry)
}

#[allow(
    clippy::useless_conversion,
    reason = "the number of names has another width on other machines"
)]
pub(super) fn of(stat: &Stat, name: Name) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::BlockDevice | FileType::CharacterDevice => Kind::Device,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    };
    let ns = |secs: i64, nanos: u64| {
        let nanos = i64::try_from(nanos).unwrap_or(0);
        secs.saturating_mul(1_000_000_000).saturating_add(nanos)
    };
    Entry {
        name,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        links: stat.st_nlink.into(),
        inode: stat.st_ino,
        modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
        changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        target: None,
    }
}
