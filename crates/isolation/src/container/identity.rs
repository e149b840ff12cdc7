//! Who a sandbox is to programs that ask: `/etc/machine-id`.
//!
//! It lies in the state directory, which no fork and no pulled copy has in common with another: the files may be the same,
//! the machine is not. Where the image has no such file, there is none.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::place::{self, Root};
use super::special;
use super::world::open_directory;
use crate::Error;

const NAME: &str = "machine-id";
/// Thirty-two hexadecimal digits and a line feed (machine-id(5)).
const LENGTH: usize = 33;

/// Puts it over the image's. `ours` is a mounted directory of ours that is sealed later.
pub(super) fn place(root: &Root, state: &OwnedFd, ours: BorrowedFd<'_>) -> Result<(), Error> {
    let Some(point) = root.existing(Path::new("/etc/machine-id"))? else {
        return Ok(());
    };
    let failed = |e: io::Error| Error::step("give the sandbox its machine-id", e);
    let state = open_directory(state)?;
    let id = known_or_new(state.as_fd()).map_err(failed)?;
    write(ours, NAME, id.as_bytes()).map_err(failed)?;
    // From a mount that is attached: only newer kernels clone from one that is not.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = rustix::mount::open_tree(ours, NAME, flags).map_err(|e| failed(e.into()))?;
    special::seal(mount.as_fd())?;
    match place::attach(mount.as_fd(), point.as_fd()) {
        // It is a directory in this image, which is its own affair.
        Err(e) if e.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => Ok(()),
        attached => attached.map_err(failed),
    }
}

fn known_or_new(state: BorrowedFd<'_>) -> io::Result<String> {
    let mut known = String::new();
    match rustix::fs::openat(state, NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => {
            std::fs::File::from(file).read_to_string(&mut known)?;
        }
        Err(Errno::NOENT) => {}
        Err(other) => return Err(other.into()),
    }
    if known.len() == LENGTH {
        return Ok(known);
    }
    let mut random = [0; 16];
    // The root is the sandbox's already, and its /dev ours.
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    // As systemd makes them: a version 4 UUID.
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let mut id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    id.push('\n');
    let fresh = "machine-id.new";
    write(state, fresh, id.as_bytes())?;
    rustix::fs::renameat(state, fresh, state, NAME)?;
    Ok(id)
}

fn write(at: BorrowedFd<'_>, name: &str, text: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o444))?;
    std::fs::File::from(file).write_all(text)
}
