//! A mount namespace of the daemon's own, so that its end, however it comes, takes the pool's mount along.

use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change, mount_remount,
    unmount,
};

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

/// How every pool is mounted. Reading a workspace must not change it.
pub(crate) const QUIET: MountFlags = MountFlags::NOATIME
    .union(MountFlags::NODEV)
    .union(MountFlags::NOSUID);

/// A mount of ours, undone on drop.
#[derive(Debug)]
pub(crate) struct Mounted {
    at: PathBuf,
}

impl Mounted {
    /// Takes over the mount that was made at `at`.
    pub(crate) fn at(at: &Path) -> Self {
        Self { at: at.to_owned() }
    }

    /// Mounts a directory over itself, so that reading in it leaves no access times. None: that is so already.
    pub(crate) fn quiet(dir: &Path) -> Result<Option<Self>> {
        let refused = |errno| Error::errno("mount without access times", dir, errno);
        let found = rustix::fs::statvfs(dir).map_err(refused)?;
        if found.f_flag.contains(StatVfsMountFlags::NOATIME) {
            return Ok(None);
        }
        mount_bind(dir, dir).map_err(refused)?;
        let mounted = Self::at(dir);
        mount_remount(dir, QUIET | MountFlags::BIND, "").map_err(refused)?;
        Ok(Some(mounted))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Sandboxes have clones of it, and somebody may still be reading.
        if let Err(errno) = unmount(&self.at, UnmountFlags::DETACH) {
            tracing::warn!(path = %self.at.display(), %errno, "cannot unmount the workspace pool");
        }
    }
}
