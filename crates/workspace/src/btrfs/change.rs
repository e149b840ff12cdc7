//! Did anything change in a head since its base? Exact, and O(1) where nothing did.
//!
//! Every change of an inode stamps its subvolume with the running transaction's number (`ctransid`), which the kernel
//! shows at once. What was cut in transaction T is unchanged for certain while the stamp is not above T. Where it is,
//! the change may be an overlay's mount, which tidies `work` and leaves a mark on `up`: after a mount, and only then, the
//! inodes that changed are listed and compared.

use std::collections::HashSet;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use protocol::{CutId, WorkspaceId};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

use super::{Base, Btrfs, FROM_XATTR, Head, Reference, as_fd, open_dir};
use crate::names::ids_in;
use crate::sys::btrfs;
use crate::xattr::{self, Xattrs};
use crate::{Error, Result};

/// The inode number of every subvolume's own root directory.
pub(super) const SUBVOLUME_ROOT: u64 = 256;

impl Btrfs {
    /// Tells whether a flushed head differs from its base. Moves the base on where it can prove that it does not.
    pub(super) fn changed(
        &self,
        workspace: &WorkspaceId,
        head: &mut Head,
        subvolume: &File,
    ) -> Result<bool> {
        let path = self.names.head(workspace);
        let look = |errno| Error::errno("look at", &path, errno);
        let base = match &mut head.base {
            Some(base) => base,
            none => none.insert(self.look_up(workspace, subvolume)?),
        };
        if btrfs::info(as_fd(subvolume)).map_err(look)?.changed <= base.transid {
            return Ok(false);
        }
        if !base.mounted {
            return Ok(true);
        }
        // The inodes of a transaction can be listed when it is committed.
        let committed = btrfs::commit(as_fd(subvolume)).map_err(look)?;
        if !only_the_mount(&path, subvolume, base)? {
            return Ok(true);
        }
        base.transid = committed;
        base.mounted = false;
        Ok(false)
    }

    /// Finds the base of a head on disk: its youngest cut, else how it was made.
    fn look_up(&self, workspace: &WorkspaceId, subvolume: &File) -> Result<Base> {
        let path = self.names.head(workspace);
        let look = |errno| Error::errno("look at", &path, errno);
        let own = btrfs::info(as_fd(subvolume)).map_err(look)?;
        let reference = self.origin(&path, &own);
        // A snapshot is made in a commit, before anybody can change it; an empty head in a transaction that goes on.
        let transid = match reference {
            Reference::Fresh => own.made.saturating_sub(1),
            Reference::Cut(_) | Reference::Unknown => own.made,
        };
        let mut base = Base {
            transid,
            reference,
            mounted: true,
        };
        for cut in ids_in::<CutId>(&self.names.cuts_of(workspace))? {
            let made = self.names.cut(workspace, &cut);
            let info = btrfs::info(as_fd(&open_dir(&made)?)).map_err(look)?;
            // Two cuts cannot come from one transaction: the second would have found nothing changed.
            if info.parent_uuid == own.uuid && info.made > base.transid {
                base.transid = info.made;
                base.reference = Reference::Cut(made.join("up"));
            }
        }
        Ok(base)
    }

    fn origin(&self, head: &Path, own: &btrfs::Info) -> Reference {
        if own.parent_uuid == [0; 16] {
            return Reference::Fresh;
        }
        let mut name = [0; 512];
        let from = rustix::fs::getxattr(head, FROM_XATTR, &mut name[..])
            .ok()
            .and_then(|len| {
                let (of, cut) = std::str::from_utf8(&name[..len]).ok()?.split_once('/')?;
                Some((of.parse::<WorkspaceId>().ok()?, cut.parse::<CutId>().ok()?))
            });
        let Some((of, cut)) = from else {
            return Reference::Unknown;
        };
        let up = self.names.cut(&of, &cut).join("up");
        // The name could have been given again after the cut was dropped; the uuid says which it was. A fork's own copy of
        // the cut is its sibling: both are snapshots of the same one.
        let same = open_dir(&self.names.cut(&of, &cut))
            .ok()
            .and_then(|cut| btrfs::info(as_fd(&cut)).ok())
            .is_some_and(|info| {
                own.parent_uuid == info.uuid || own.parent_uuid == info.parent_uuid
            });
        if same {
            Reference::Cut(up)
        } else {
            Reference::Unknown
        }
    }
}

/// Tells whether all that changed since `base` is what mounting an overlay changes.
fn only_the_mount(head: &Path, subvolume: &File, base: &Base) -> Result<bool> {
    let up = head.join("up");
    let up_inode = fs::symlink_metadata(&up)
        .map_err(Error::io("look at", &up))?
        .ino();
    let mut ours = HashSet::from([SUBVOLUME_ROOT, up_inode]);
    inodes_below(&head.join("work"), &mut ours).map_err(Error::io("look into", head))?;
    let mut others = false;
    btrfs::changed_inodes(as_fd(subvolume), base.transid, |inode| {
        others = !ours.contains(&inode);
        if others {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
    .map_err(|errno| Error::errno("list what changed in", head, errno))?;
    // An entry that appeared in `up` or moved there is a changed inode itself; one that went away changed the size of `up`.
    Ok(!others && same_top(&up, &base.reference)?)
}

fn inodes_below(dir: &Path, into: &mut HashSet<u64>) -> std::io::Result<()> {
    into.insert(fs::symlink_metadata(dir)?.ino());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            inodes_below(&entry.path(), into)?;
        } else {
            into.insert(std::os::unix::fs::DirEntryExt::ino(&entry));
        }
    }
    Ok(())
}

/// What a sandbox can change of the `up` directory itself.
#[derive(Debug, PartialEq, Eq)]
struct Top {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    mtime: (i64, u32),
    flags: u64,
    xattrs: Xattrs,
}

fn same_top(up: &Path, reference: &Reference) -> Result<bool> {
    let look = |errno| Error::errno("look at", up, errno);
    let (now, born) = top(up).map_err(look)?;
    Ok(match reference {
        Reference::Unknown => false,
        Reference::Cut(cut) => top(cut).is_ok_and(|(then, _)| then == now),
        Reference::Fresh => {
            let untouched = now.mode & 0o7777 == 0o755 && now.owner == (0, 0) && now.size == 0;
            untouched && now.mtime == born && now.xattrs.is_empty()
        }
    })
}

/// Reads the attributes, and the time of birth.
fn top(path: &Path) -> std::result::Result<(Top, (i64, u32)), Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    let top = Top {
        mode: u32::from(stat.stx_mode),
        owner: (stat.stx_uid, stat.stx_gid),
        size: stat.stx_size,
        mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        flags: stat.stx_attributes.bits(),
        xattrs: xattr::lasting(path)?,
    };
    Ok((top, (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)))
}
