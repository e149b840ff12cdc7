//! Detached mounts of host directories, made by whoever has the right to: the daemon as root, else PID 1.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::OpenTreeFlags;

use super::plan::{Owners, Place, Tree};
use crate::Error;
use crate::sys::{
    MOUNT_ATTR_IDMAP, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountAttr, Reach,
    mount_setattr,
};

/// A detached mount.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) mount: OwnedFd,
    /// Whether owners look the same inside as on disk.
    pub(super) same_owners: bool,
}

impl Tree {
    /// Makes the mount. `ids` is the user namespace whose numbers are to be seen; none where mapping needs a privilege
    /// that is missing: then the files of the daemon's user are root's.
    pub(super) fn open(&self, ids: Option<BorrowedFd<'_>>) -> Result<Opened, Error> {
        let map = ids.filter(|_| self.owners != Owners::Nobody);
        // Mounts below come along only where they need no map of their own: not all file systems can have one. Without
        // privilege they must: the kernel does not let us look under them.
        let reach = if map.is_some() {
            Reach::One
        } else {
            Reach::Below
        };
        let mount = self.clone_mount(reach)?;
        let same_owners = match map {
            None => false,
            Some(userns) => match map_owners(mount.as_fd(), userns) {
                Ok(()) => true,
                Err(_) if self.owners == Owners::SameIfPossible => false,
                Err(source) => return Err(self.cannot_map(source)),
            },
        };
        let writable = matches!(self.place, Place::Head | Place::State);
        let attr = MountAttr {
            set: MOUNT_ATTR_NOSUID
                | MOUNT_ATTR_NODEV
                | if writable { 0 } else { MOUNT_ATTR_RDONLY },
            ..MountAttr::default()
        };
        mount_setattr(mount.as_fd(), reach, attr)
            .map_err(|e| self.failed("restrict the mount of", e))?;
        Ok(Opened { mount, same_owners })
    }

    fn clone_mount(&self, reach: Reach) -> Result<OwnedFd, Error> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if reach == Reach::Below {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        rustix::mount::open_tree(CWD, &self.source, flags)
            .map_err(|e| self.failed("clone the mount of", e.into()))
    }

    fn failed(&self, verb: &str, source: io::Error) -> Error {
        Error::step(format!("{verb} {}", self.source.display()), source)
    }

    fn cannot_map(&self, source: io::Error) -> Error {
        Error::Step {
            step: format!(
                "map owners on the file system of {} ({})",
                self.source.display(),
                file_system(&self.source)
            ),
            remedy: Some(
                "keep it on ext4, xfs, btrfs or tmpfs; overlay, network and FUSE file systems have no idmapped mounts"
                    .to_owned(),
            ),
            source,
        }
    }
}

/// Makes owners on `mount` look inside user namespace `userns` as they are on disk.
pub(super) fn map_owners(mount: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let attr = MountAttr {
        set: MOUNT_ATTR_IDMAP,
        userns_fd: u64::try_from(userns.as_raw_fd()).map_err(io::Error::other)?,
        ..MountAttr::default()
    };
    mount_setattr(mount, Reach::One, attr)
}

/// Returns the name, or else the magic number, of the file system at `path`.
pub(super) fn file_system(path: &Path) -> String {
    let Ok(found) = rustix::fs::statfs(path) else {
        return "unknown".to_owned();
    };
    let name = match found.f_type.cast_unsigned() & 0xffff_ffff {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0x6573_5546 => "fuse",
        0xe0f5_e1e2 => "erofs",
        0x7371_7368 => "squashfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x0102_1997 => "9p",
        0x6a65_6a63 => "virtiofs",
        other => return format!("type {other:#x}"),
    };
    name.to_owned()
}
