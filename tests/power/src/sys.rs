//! The one call that no crate wraps: taking the power from a mounted file system.

use std::fs::File;
use std::io;

use rustix::ioctl::{Setter, ioctl};

/// `FS_IOC_SHUTDOWN`, `_IOR('X', 125, __u32)`.
const SHUTDOWN: u32 = 0x8004_587d;
/// Do not even write out the log: what was not synced is lost, as in a power cut.
const NO_LOG_FLUSH: u32 = 2;

/// Shuts the file system that `dir` is on down. Every later write to it fails.
pub(crate) fn shut_down(dir: &File) -> io::Result<()> {
    // SAFETY: the kernel reads one u32 through the pointer, which is what `Setter` gives it for this operation.
    unsafe { ioctl(dir, Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) }?;
    Ok(())
}
