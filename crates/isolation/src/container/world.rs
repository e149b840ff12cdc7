//! The root of a sandbox: an overlay in a mount namespace of its own, from which the host's root is gone.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags};

use super::place::{self, Root};
use super::plan::{Place, Plan};
use super::special::{self, Special};
use super::{door, identity, trust};
use crate::Error;

/// Directories that every root has, made in the overlay where the image lacks them.
const DIRECTORIES: [(&str, u32); 3] = [("/tmp", 0o1777), ("/root", 0o700), ("/workspace", 0o755)];

/// Replaces this mount namespace's content by the sandbox's root.
///
/// Returns the directory for the shim's socket, to be sealed when the socket is there.
pub(super) fn build(plan: &Plan, trees: &[(Place, OwnedFd)]) -> Result<OwnedFd, Error> {
    // Nothing that happens here may travel to the host, and nothing of the host's here.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(|e| Error::step("make mounts private", e))?;
    let special = Special::open(plan.ids.has_groups(), plan.limits.memory_bytes)?;
    let root = Root::new(overlay(plan, trees)?);
    leave_host(&root)?;
    for (place, mount) in trees {
        let Place::At(path) = place else { continue };
        root.mount(mount.as_fd(), path)?;
    }
    for (path, mode) in DIRECTORIES {
        let _made: OwnedFd = root.directory(Path::new(path), mode)?;
    }
    let ours = special.attach(&root, trees)?;
    identity::place(&root, tree(trees, &Place::State)?, ours.as_fd())?;
    if plan.doors.is_some() {
        door::place_resolver(&root, ours.as_fd())?;
    }
    if let Some(authority) = &plan.ca {
        trust::place(&root, ours.as_fd(), authority)?;
    }
    Ok(ours)
}

fn tree<'a>(trees: &'a [(Place, OwnedFd)], wanted: &Place) -> Result<&'a OwnedFd, Error> {
    trees
        .iter()
        .find_map(|(place, mount)| (place == wanted).then_some(mount))
        .ok_or_else(|| {
            Error::step(
                format!("find the tree for {wanted:?}"),
                rustix::io::Errno::NOENT,
            )
        })
}

/// Mounts the overlay on a stage on top of the host's root; a stage, because layers are given by path and need one.
fn overlay(plan: &Plan, trees: &[(Place, OwnedFd)]) -> Result<OwnedFd, Error> {
    let staged = |e: rustix::io::Errno| Error::step("set up the stage of the root", e);
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let stage = special::make("tmpfs", &[("mode", "0700")], quiet)?;
    rustix::mount::move_mount(
        stage.as_fd(),
        c"",
        CWD,
        c"/",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(staged)?;
    for dir in ["lower", "head", "root"] {
        rustix::fs::mkdirat(&stage, dir, Mode::RWXU).map_err(staged)?;
    }
    for (place, name) in [(Place::Lower, "lower"), (Place::Head, "head")] {
        place::attach_at(tree(trees, &place)?.as_fd(), stage.as_fd(), Path::new(name))
            .map_err(|e| Error::step(format!("stage the {name} layer"), e))?;
    }
    rustix::process::fchdir(&stage).map_err(staged)?;
    let options = [
        ("lowerdir", PathBuf::from("lower")),
        ("upperdir", escape(&Path::new("head").join(&plan.upper))),
        ("workdir", escape(&Path::new("head").join(&plan.work))),
    ];
    let root = mount_overlay(&options).map_err(|e| Error::Step {
        step: "mount the overlay of the workspace over the image".to_owned(),
        remedy: (e == rustix::io::Errno::INVAL || e == rustix::io::Errno::OPNOTSUPP).then(|| {
            "the data directory must be on a file system that can hold an overlay's upper layer (ext4, xfs, btrfs, tmpfs), with a kernel of 5.19 or newer".to_owned()
        }),
        source: e.into(),
    })?;
    place::attach_at(root.as_fd(), stage.as_fd(), Path::new("root"))
        .map_err(|e| Error::step("stage the root", e))?;
    Ok(root)
}

fn mount_overlay(options: &[(&str, PathBuf)]) -> Result<OwnedFd, rustix::io::Errno> {
    use rustix::mount::{FsMountFlags, FsOpenFlags};
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", "durable")?;
    for (key, path) in options {
        rustix::mount::fsconfig_set_string(context.as_fd(), *key, path)?;
    }
    rustix::mount::fsconfig_set_flag(context.as_fd(), "userxattr")?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    // Overlay goes by its own mount's access-time rule, not the upper's: reading a file would change the workspace.
    let attr = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let root = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attr)?;
    // An overlay that cannot write its upper layer comes up read-only without a word.
    let found = rustix::fs::fstatvfs(&root)?;
    if found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return Err(rustix::io::Errno::ROFS);
    }
    Ok(root)
}

/// Overlay takes a backslash as the start of an escape.
fn escape(path: &Path) -> PathBuf {
    let mut out = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if *byte == b'\\' || *byte == b':' {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    PathBuf::from(OsString::from_vec(out))
}

/// More than anybody stacks on a root: the host's root, our stage on it, and what the host may have there.
const MAX_STACKED: usize = 16;

/// Makes `root` the root and takes the host's away.
///
/// After the pivot the host's root lies over ours at the same place, and on it whatever was mounted over it. A look-up of
/// `/` does not see them; `..` from the root does, so one that is left is the way out. One call unmounts only the topmost.
fn leave_host(root: &Root) -> Result<(), Error> {
    let failed = |e: rustix::io::Errno| Error::step("leave the root of the host", e);
    // An O_PATH descriptor of a mount is a fine place to stand in.
    rustix::process::fchdir(root).map_err(failed)?;
    rustix::process::pivot_root(c".", c".").map_err(failed)?;
    rustix::process::chdir(c"/").map_err(failed)?;
    let ours = mount_id(root.as_fd(), c"").map_err(failed)?;
    for _ in 0..MAX_STACKED {
        if mount_id(CWD, c"/..").map_err(failed)? == ours {
            return Ok(());
        }
        rustix::mount::unmount(c"/..", UnmountFlags::DETACH).map_err(failed)?;
    }
    Err(failed(rustix::io::Errno::BUSY))
}

fn mount_id(at: BorrowedFd<'_>, path: &CStr) -> Result<u64, rustix::io::Errno> {
    let found = rustix::fs::statx(at, path, AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    let known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    known
        .then_some(found.stx_mnt_id)
        .ok_or(rustix::io::Errno::NOSYS)
}

/// Opens a directory of a detached mount for reading.
pub(super) fn open_directory(mount: &OwnedFd) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(mount, c".", flags, Mode::empty())
        .map_err(|e| Error::step("open the state directory", e))
}
