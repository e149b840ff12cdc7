//! A mount namespace of the daemon's own, so that its end, however it comes, takes the pool's mount along.

use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::{Error, Result};

/// Whose mounts this process makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Its own: nobody outside sees them, and they go with the last process that has them.
    Private,
    /// The host's: this process may not have its own (nor mount anything).
    Shared,
}

/// Moves this process into a mount namespace of its own, which hears of the host's mounts and tells of none.
///
/// Call it before the process has threads: only the calling thread moves, and threads made later. Without the right to
/// do so nothing changes, and [`Mounts::Shared`] is returned.
///
/// # Errors
/// The system refused for another reason than rights.
pub fn private_mounts() -> Result<Mounts> {
    let refused = |doing, errno: Errno| Error::Io {
        doing,
        path: "/".into(),
        source: errno.into(),
    };
    match crate::sys::unshare_mounts() {
        Ok(()) => {}
        Err(Errno::PERM) => return Ok(Mounts::Shared),
        Err(errno) => return Err(refused("get a mount namespace below", errno)),
    }
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(Path::new("/"), slave)
        .map_err(|errno| refused("stop mounts from leaving", errno))?;
    Ok(Mounts::Private)
}
