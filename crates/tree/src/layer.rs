//! One directory tree on disk, opened by paths that stay in it. The kernel is told to follow no symbolic link and not to
//! leave the top (`openat2`); where it knows no such call, each component is opened by itself.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::entry::Xattrs;
use crate::{Error, Result};

/// The kernel takes no path of 4096 bytes or more in one call; deeper ones are walked in pieces.
const PIECE: usize = 3500;

/// How a file of a tree is opened: never through a link, never waiting for the other end of a pipe.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// A directory that was opened, and is the top of everything that is opened through it.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

impl Root {
    /// Opens the top; its own path is the caller's and may lead through links.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::openat(CWD, path, flags, Mode::empty())
            .map(Self)
            .map_err(Error::io("open", path.as_os_str().as_encoded_bytes()))
    }

    /// Returns the top's inode.
    pub(crate) fn ino(&self) -> Result<u64> {
        let stat = fs::fstat(&self.0).map_err(Error::io("look at", b""))?;
        Ok(stat.st_ino)
    }

    /// Opens the directory at `path`, which is empty for the top.
    pub(crate) fn dir(&self, path: &[u8]) -> Result<OwnedFd> {
        self.open_at(path, READ | OFlags::DIRECTORY)
            .map_err(Error::io("open", path))
    }

    /// Opens the regular file at `path`.
    pub(crate) fn file(&self, path: &[u8]) -> Result<File> {
        let fd = self.open_at(path, READ).map_err(Error::io("open", path))?;
        regular(fd, path)
    }

    fn open_at(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut from: Option<OwnedFd> = None;
        let mut rest = path;
        loop {
            let at = from.as_ref().map_or(self.0.as_fd(), AsFd::as_fd);
            if rest.len() <= PIECE {
                return beneath(at, rest, flags);
            }
            let end = rest[..PIECE]
                .iter()
                .rposition(|&byte| byte == b'/')
                .ok_or(Errno::NAMETOOLONG)?;
            let dir = beneath(at, &rest[..end], READ | OFlags::DIRECTORY)?;
            rest = &rest[end + 1..];
            from = Some(dir);
        }
    }
}

fn beneath(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    if path.split(|&byte| byte == b'/').any(|part| part == b"..") {
        return Err(Errno::XDEV);
    }
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(at, path, flags, Mode::empty(), resolve) {
        // An old kernel, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => one_by_one(at, path, flags),
        // A rename elsewhere on the machine disturbed the kernel's look at "beneath".
        Err(Errno::AGAIN) => one_by_one(at, path, flags),
        opened => opened,
    }
}

fn one_by_one(at: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut from: Option<OwnedFd> = None;
    let mut parts = path.split(|&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let at = from.as_ref().map_or(at, AsFd::as_fd);
        let flags = match parts.peek() {
            Some(_) => READ | OFlags::DIRECTORY,
            None => flags,
        };
        from = Some(fs::openat(at, part, flags, Mode::empty())?);
    }
    from.ok_or(Errno::NOENT)
}

fn regular(fd: OwnedFd, path: &[u8]) -> Result<File> {
    let stat = fs::fstat(&fd).map_err(Error::io("look at", path))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::Unexpected {
            path: path.to_vec(),
            expected: "a regular file",
        });
    }
    Ok(File::from(fd))
}

/// Opens a regular file by its name in an open directory.
pub(crate) fn file_in(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<File> {
    let fd = fs::openat(dir, name, READ, Mode::empty()).map_err(Error::io("open", path))?;
    regular(fd, path)
}

/// Looks at a name in an open directory. None: it is not there.
pub(crate) fn stat_in(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Option<Stat>> {
    match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Error::io("look at", path)(errno)),
    }
}

/// Reads where a symbolic link leads.
pub(crate) fn target_in(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Vec<u8>> {
    fs::readlinkat(dir, name, Vec::new())
        .map(std::ffi::CString::into_bytes)
        .map_err(Error::io("read the link", path))
}

/// Lists the names in an open directory, in no order.
pub(crate) fn names_in(dir: BorrowedFd<'_>, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for item in Dir::read_from(dir).map_err(Error::io("list", path))? {
        let item = item.map_err(Error::io("list", path))?;
        let name = item.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// The only way to the attributes of a name in a directory without opening what it names.
fn by_proc(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend(name);
    path
}

/// Reads one extended attribute of a name in an open directory (`.` for the directory itself).
pub(crate) fn xattr_in(
    dir: BorrowedFd<'_>,
    name: &[u8],
    attribute: &str,
    path: &[u8],
) -> Result<Option<Vec<u8>>> {
    let at = by_proc(dir, name);
    match grow(|buffer| fs::lgetxattr(at.as_slice(), attribute, buffer)) {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(errno) => Err(Error::io("read the attributes of", path)(errno)),
    }
}

/// Reads all extended attributes of a name in an open directory, as somebody in the sandbox would see them.
pub(crate) fn xattrs_in(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<Xattrs> {
    let at = by_proc(dir, name);
    let list = match grow(|buffer| fs::llistxattr(at.as_slice(), buffer)) {
        Err(Errno::OPNOTSUPP) => return Ok(Xattrs::new()),
        list => list.map_err(Error::io("read the attributes of", path))?,
    };
    let mut all = Xattrs::new();
    for attribute in list.split(|&byte| byte == 0) {
        let Some(shown) = shown_name(attribute) else {
            continue;
        };
        match grow(|buffer| fs::lgetxattr(at.as_slice(), attribute, buffer)) {
            Ok(value) => drop(all.insert(shown, value)),
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(Error::io("read the attributes of", path)(errno)),
        }
    }
    Ok(all)
}

/// The name that the overlay shows for one on disk. None: the overlay keeps it for itself. A name that looks like one of
/// its own is kept on disk with one more `overlay.` in it.
fn shown_name(attribute: &[u8]) -> Option<Vec<u8>> {
    if attribute.is_empty() {
        return None;
    }
    for space in [b"user.".as_slice(), b"trusted."] {
        if let Some(rest) = attribute.strip_prefix(space)
            && let Some(own) = rest.strip_prefix(b"overlay.")
        {
            return own.starts_with(b"overlay.").then(|| [space, own].concat());
        }
    }
    Some(attribute.to_vec())
}

/// Calls with a larger buffer as long as the answer does not fit; the kernel allows no more than 64 KiB.
fn grow(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 64 << 10 => buffer.resize(64 << 10, 0),
            Err(errno) => return Err(errno),
        }
    }
}
