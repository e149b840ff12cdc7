//! The system calls that have no safe wrapper elsewhere. Nothing here decides anything.

#![expect(unsafe_code, reason = "ioctls and unshare have no safe form")]

pub(crate) mod btrfs;
pub(crate) mod loopdev;

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Gives the calling thread a mount namespace of its own.
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: unshare takes no pointers; CLONE_NEWNS alone changes which mounts the caller sees, no memory.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

/// Fills `buffer` with random bytes.
pub(crate) fn random(buffer: &mut [u8; 8]) -> Result<(), Errno> {
    // SAFETY: the pointer and the length are those of a live, writable array.
    let read = unsafe { libc::getrandom(buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    // Up to 256 bytes are never cut short.
    if usize::try_from(read) == Ok(buffer.len()) {
        Ok(())
    } else {
        Err(last())
    }
}

/// Calls an ioctl that reads or writes one `T`.
///
/// # Safety
/// `request` must be one whose argument is a pointer to a structure of `T`'s layout, all of whose bit patterns are valid.
unsafe fn ioctl<T>(
    fd: BorrowedFd<'_>,
    request: libc::c_ulong,
    argument: &mut T,
) -> Result<i32, Errno> {
    // SAFETY: the pointer is to a live, exclusively borrowed `T`; the caller vouches for its layout.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
        -1 => Err(last()),
        value => Ok(value),
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
