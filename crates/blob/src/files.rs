//! Files by descriptor and name, never by a path that a symbolic link could bend.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::ffi::CStr;
use rustix::fs::{Mode, OFlags, RawDir, ResolveFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

/// Names and inode numbers, in the order of names.
pub(crate) type Names = Vec<(Vec<u8>, u64)>;
/// Names and values, in the order of names.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a directory that the caller names.
pub(crate) fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}

/// Opens a directory below another: no symbolic link, no `..`, at whatever depth.
pub(crate) fn open_below(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    // Below PATH_MAX, which trees made with relative calls may exceed.
    const AT_ONCE: usize = 3 << 10;
    let mut at: Option<OwnedFd> = None;
    let mut rest = path;
    loop {
        let piece = if rest.len() <= AT_ONCE {
            rest
        } else {
            let end = rest[..AT_ONCE].iter().rposition(|byte| *byte == b'/');
            &rest[..end.ok_or(Errno::NAMETOOLONG)?]
        };
        let from = at.as_ref().map_or(root, |fd| std::os::fd::AsFd::as_fd(fd));
        let name: &[u8] = if piece.is_empty() { b"." } else { piece };
        let next = retried(|| {
            rustix::fs::openat2(
                from,
                name,
                DIRECTORY,
                Mode::empty(),
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
            )
        })?;
        if piece.len() == rest.len() {
            return Ok(next);
        }
        rest = &rest[piece.len() + 1..];
        at = Some(next);
    }
}

/// `openat2` may ask to be called again when somebody renames meanwhile.
fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..64 {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    call()
}

/// Reads the names in a directory, sorted, and the inodes behind them (of what is mounted there: the one below).
pub(crate) fn names(dir: BorrowedFd<'_>) -> Result<Names, Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((name.to_vec(), entry.ino()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The path by which the calls that know no descriptor reach a name in a directory. Its last part is not followed by
/// the calls used here, and the one before it is the kernel's own.
pub(crate) fn by_proc(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// Reads the extended attributes of a name in a directory.
pub(crate) fn xattrs_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Xattrs, Errno> {
    let path = by_proc(dir, name);
    gather(
        |buffer| rustix::fs::llistxattr(path.as_slice(), buffer),
        |name, buffer| rustix::fs::lgetxattr(path.as_slice(), name, buffer),
    )
}

/// Reads those of an open file.
pub(crate) fn xattrs(fd: BorrowedFd<'_>) -> Result<Xattrs, Errno> {
    gather(
        |buffer| rustix::fs::flistxattr(fd, buffer),
        |name, buffer| rustix::fs::fgetxattr(fd, name, buffer),
    )
}

fn gather(
    list: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
    mut get: impl FnMut(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    let list = match grow(list) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    let mut all = Vec::new();
    for name in list.split_inclusive(|byte| *byte == 0) {
        let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::INVAL)?;
        all.push((name.to_bytes().to_vec(), grow(|buffer| get(name, buffer))?));
    }
    all.sort_unstable();
    Ok(all)
}

/// Calls with a larger buffer as long as the answer does not fit.
fn grow(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    // The kernel allows no more of either.
    const LARGEST: usize = 64 << 10;
    let mut small = [0; 256];
    match read(&mut small) {
        Ok(len) => return Ok(small[..len].to_vec()),
        Err(Errno::RANGE) => {}
        Err(errno) => return Err(errno),
    }
    let mut buffer = vec![0; LARGEST];
    let len = read(&mut buffer)?;
    buffer.truncate(len);
    Ok(buffer)
}

/// Sets an extended attribute of a name in a directory.
pub(crate) fn set_xattr_at(
    dir: BorrowedFd<'_>,
    name: &[u8],
    xattr: &[u8],
    value: &[u8],
) -> Result<(), Errno> {
    rustix::fs::lsetxattr(
        by_proc(dir, name).as_slice(),
        xattr,
        value,
        XattrFlags::empty(),
    )
}

/// Where an open file has data; `None` where it has no holes.
pub(crate) fn extents(fd: BorrowedFd<'_>, size: u64) -> Result<Option<Vec<(u64, u64)>>, Errno> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < size {
        let from = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(from) => from,
            // No data from here on.
            Err(Errno::NXIO) => break,
            // A file system that does not know holes has none.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if at == 0 => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let end = rustix::fs::seek(fd, SeekFrom::Hole(from))?.min(size);
        if from >= size || end <= from {
            break;
        }
        all.push((from, end - from));
        at = end;
    }
    Ok((all != [(0, size)]).then_some(all))
}

/// Replaces a file of this machine as a whole, readable by its owner only.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", rand::random::<u64>()));
    let fresh = Path::new(&name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(fresh)?;
    // Not synced: a cache says by its hash whether it is whole.
    let written = file
        .write_all(bytes)
        .and_then(|()| std::fs::rename(fresh, path));
    if written.is_err() {
        drop(std::fs::remove_file(fresh));
    }
    written
}
