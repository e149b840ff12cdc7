//! Who a sandbox is to programs that ask: `/etc/machine-id`.
//!
//! It lies in the state directory, which no fork and no pulled copy has in common with another: the files may be the same,
//! the machine is not. Where the image has no such file, there is none.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::cover;
use super::place::Root;
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
    cover::write(ours, NAME, id.as_bytes()).map_err(failed)?;
    cover::attach(point.as_fd(), ours, NAME)
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
    cover::write(state, fresh, id.as_bytes())?;
    rustix::fs::renameat(state, fresh, state, NAME)?;
    Ok(id)
}
