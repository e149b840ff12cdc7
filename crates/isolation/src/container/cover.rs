//! Files of ours over the image's: each lies in a directory that is sealed later, and is mounted read-only where the image has one.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::OpenTreeFlags;

use super::{place, special};
use crate::Error;

/// Writes a file that everybody may read.
pub(super) fn write(at: BorrowedFd<'_>, name: &str, text: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o444))?;
    std::fs::File::from(file).write_all(text)
}

/// Mounts file `name` of `ours`, a mounted directory, over what `point` refers to.
pub(super) fn attach(point: BorrowedFd<'_>, ours: BorrowedFd<'_>, name: &str) -> Result<(), Error> {
    let failed = |e: io::Error| Error::step(format!("put {name} over the image's"), e);
    let found = rustix::fs::fstat(point).map_err(|e| failed(e.into()))?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
        // That is the image's own affair, and no file can be mounted there.
        return Ok(());
    }
    // From a mount that is attached: only newer kernels clone from one that is not.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(ours, name, flags).map_err(|e| failed(e.into()))?;
    special::seal(mount.as_fd())?;
    place::attach(mount.as_fd(), point).map_err(failed)
}
