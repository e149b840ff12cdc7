//! The system calls that have no safe wrapper elsewhere. Nothing here decides anything.

#![expect(unsafe_code, reason = "ioctls and unshare have no safe form")]

use rustix::io::Errno;

/// Gives the calling thread a mount namespace of its own.
pub(crate) fn unshare_mounts() -> Result<(), Errno> {
    // SAFETY: unshare takes no pointers; CLONE_NEWNS alone changes which mounts the caller sees, no memory.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
