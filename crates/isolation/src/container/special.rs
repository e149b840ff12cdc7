//! The file systems that are made for a sandbox and not of its image: `/proc`, `/sys`, `/dev`, `/run/durable`, `/opt/durable`.
//!
//! All are made as detached mounts while the host's `/proc` and `/dev` are still in sight (the kernel gives a new procfs
//! only to who sees a whole one, and devices can only be cloned), and attached after the host's root is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use protocol::paths;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

use super::place::{self, Root};
use super::plan::Place;
use crate::Error;
use crate::sys::{
    MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MountAttr, Reach, mount_setattr,
};

const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Unreadable: they tell of the whole machine.
const MASKED_FILES: [&str; 6] = [
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "timer_list",
    "sched_debug",
];
const MASKED_DIRS: [&str; 3] = ["acpi", "asound", "scsi"];
/// Unwritable.
const READ_ONLY: [&str; 5] = ["bus", "fs", "irq", "sys", "sysrq-trigger"];

/// The detached mounts.
#[derive(Debug)]
pub(super) struct Special {
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
    devices: Vec<(&'static str, OwnedFd)>,
    pts: OwnedFd,
    shm: OwnedFd,
    opt: OwnedFd,
    run: OwnedFd,
}

impl Special {
    /// Makes them. Call it with the sandbox's ids and in its namespaces.
    ///
    /// What lies in `/dev/shm` is memory that no kill gives back, so it may be half of `memory` at most: else filling it
    /// would take PID 1 along.
    pub(super) fn open(has_groups: bool, memory: Option<u64>) -> Result<Self, Error> {
        let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let inert = quiet | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let pts: &[_] = if has_groups {
            &[("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")]
        } else {
            &[("ptmxmode", "0666"), ("mode", "0620")]
        };
        let mut devices = Vec::with_capacity(DEVICES.len());
        for (name, major, minor) in DEVICES {
            devices.push((name, device(name, major, minor)?));
        }
        let half = memory.map_or_else(|| "50%".to_owned(), |bytes| (bytes / 2).to_string());
        let private = [("mode", "0755"), ("size", "1m"), ("nr_inodes", "64")];
        // Two certificate bundles may be in it (see `trust`); what is not there takes no memory.
        let roomy = [("mode", "0755"), ("size", "4m"), ("nr_inodes", "64")];
        Ok(Self {
            proc: make("proc", &[], inert).map_err(procfs_hint)?,
            sys: make("tmpfs", &private, inert)?,
            dev: make(
                "tmpfs",
                &private,
                MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
            )?,
            devices,
            pts: make(
                "devpts",
                pts,
                MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC,
            )?,
            shm: make("tmpfs", &[("mode", "1777"), ("size", &half)], inert)?,
            opt: make("tmpfs", &private, quiet)?,
            run: make("tmpfs", &roomy, inert)?,
        })
    }

    /// Attaches all in `root`. The directory of the shim's socket is returned still writable (see [`seal`]).
    pub(super) fn attach(self, root: &Root, ours: &[(Place, OwnedFd)]) -> Result<OwnedFd, Error> {
        self.attach_dev(root)?;
        seal(self.sys.as_fd())?;
        root.mount(self.sys.as_fd(), Path::new("/sys"))?;
        root.mount(self.proc.as_fd(), Path::new("/proc"))?;
        self.mask()?;
        attach_opt(self.opt.as_fd(), root, ours)?;
        let shim = Path::new(paths::SHIM_SOCKET)
            .parent()
            .unwrap_or(Path::new("/run/durable"));
        root.mount(self.run.as_fd(), shim)?;
        Ok(self.run)
    }

    fn attach_dev(&self, root: &Root) -> Result<(), Error> {
        let failed = |name: &str| {
            let step = format!("make /dev/{name}");
            move |e: Errno| Error::step(step, e)
        };
        let dev = self.dev.as_fd();
        for (link, target) in DEVICE_LINKS {
            rustix::fs::symlinkat(target, dev, link).map_err(failed(link))?;
        }
        for dir in ["pts", "shm"] {
            rustix::fs::mkdirat(dev, dir, Mode::from_raw_mode(0o755)).map_err(failed(dir))?;
        }
        for (name, _) in &self.devices {
            file(dev, name, 0o666).map_err(failed(name))?;
        }
        // A mount point must be attached itself before something can be attached to it (kernels before 6.15).
        root.mount(dev, Path::new("/dev"))?;
        let attach = |mount: BorrowedFd<'_>, name: &str| {
            place::attach_at(mount, dev, Path::new(name))
                .map_err(|e| Error::step(format!("mount /dev/{name}"), e))
        };
        attach(self.pts.as_fd(), "pts")?;
        attach(self.shm.as_fd(), "shm")?;
        for (name, mount) in &self.devices {
            attach(mount.as_fd(), name)?;
        }
        // Whoever opens a device may rely on its being one, PID 1 above all.
        seal(dev)
    }

    /// Hides and protects what a procfs shows of the machine.
    fn mask(&self) -> Result<(), Error> {
        let proc = self.proc.as_fd();
        let null = self
            .devices
            .first()
            .map(|d| d.1.as_fd())
            .ok_or_else(|| Error::step("mask /proc", Errno::NODEV))?;
        let masks = MASKED_FILES
            .iter()
            .map(|f| (f, null))
            .chain(MASKED_DIRS.iter().map(|d| (d, self.sys.as_fd())));
        for (name, cover) in masks {
            if !exists(proc, name) {
                continue;
            }
            let cover = clone(cover, Path::new(""))?;
            restrict(cover.as_fd(), MOUNT_ATTR_RDONLY)?;
            place::attach_at(cover.as_fd(), proc, Path::new(name))
                .map_err(|e| Error::step(format!("mask /proc/{name}"), e))?;
        }
        for name in READ_ONLY {
            if !exists(proc, name) {
                continue;
            }
            let same = clone(proc, Path::new(name))?;
            restrict(same.as_fd(), MOUNT_ATTR_RDONLY)?;
            place::attach_at(same.as_fd(), proc, Path::new(name))
                .map_err(|e| Error::step(format!("protect /proc/{name}"), e))?;
        }
        Ok(())
    }
}

fn attach_opt(opt: BorrowedFd<'_>, root: &Root, ours: &[(Place, OwnedFd)]) -> Result<(), Error> {
    let failed = |e: Errno| Error::step("make /opt/durable", e);
    let bin = PathBuf::from(paths::BIN);
    let shell = Path::new(paths::SHELL).file_name().unwrap_or_default();
    let name = bin.file_name().unwrap_or_default();
    for dir in ["bin", "harness"] {
        rustix::fs::mkdirat(opt, dir, Mode::from_raw_mode(0o755)).map_err(failed)?;
    }
    let dir = rustix::fs::openat(opt, "bin", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    file(dir.as_fd(), &name.to_string_lossy(), 0o755).map_err(failed)?;
    rustix::fs::symlinkat(name, &dir, shell).map_err(failed)?;
    root.mount(opt, Path::new(paths::OPT))?;
    for (place, mount) in ours {
        let at = match place {
            Place::Binary => Path::new("bin").join(name),
            Place::Harness => PathBuf::from("harness"),
            _ => continue,
        };
        place::attach_at(mount.as_fd(), opt, &at).map_err(|e| {
            Error::step(
                format!("mount {}", Path::new(paths::OPT).join(&at).display()),
                e,
            )
        })?;
    }
    seal(opt)
}

/// Makes a mount read-only for good: nobody inside has the right to undo it.
pub(super) fn seal(mount: BorrowedFd<'_>) -> Result<(), Error> {
    restrict(mount, MOUNT_ATTR_RDONLY)
}

fn restrict(mount: BorrowedFd<'_>, set: u64) -> Result<(), Error> {
    let attr = MountAttr {
        set,
        ..MountAttr::default()
    };
    mount_setattr(mount, Reach::One, attr).map_err(|e| Error::step("make a mount read-only", e))
}

/// Makes an empty file without opening it: an open one would keep its mount from being sealed.
fn file(directory: BorrowedFd<'_>, name: &str, mode: u32) -> Result<(), Errno> {
    rustix::fs::mknodat(
        directory,
        name,
        FileType::RegularFile,
        Mode::from_raw_mode(mode),
        0,
    )
}

fn exists(directory: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::accessat(
        directory,
        name,
        rustix::fs::Access::EXISTS,
        rustix::fs::AtFlags::empty(),
    )
    .is_ok()
}

/// Makes a file system of its own.
pub(super) fn make(
    kind: &str,
    options: &[(&str, &str)],
    attr: MountAttrFlags,
) -> Result<OwnedFd, Error> {
    let steps = || -> Result<OwnedFd, Errno> {
        let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
        rustix::mount::fsconfig_create(context.as_fd())?;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attr)
    };
    steps().map_err(|e| Error::step(format!("make a {kind}"), e))
}

fn clone(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Error> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    rustix::mount::open_tree(at, path, flags)
        .map_err(|e| Error::step(format!("clone a mount at {path:?}"), e))
}

/// Clones a device of the host, after a look that it is that device.
fn device(name: &str, major: u32, minor: u32) -> Result<OwnedFd, Error> {
    let path = Path::new("/dev").join(name);
    let failed = |e: io::Error| Error::step(format!("clone {}", path.display()), e);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let mount = rustix::mount::open_tree(CWD, &path, flags).map_err(|e| failed(e.into()))?;
    let found = rustix::fs::fstat(&mount).map_err(|e| failed(e.into()))?;
    let is_it = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
        && found.st_rdev == rustix::fs::makedev(major, minor);
    if !is_it {
        return Err(failed(io::Error::other(format!(
            "it is not character device {major}:{minor}"
        ))));
    }
    let set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
    let attr = MountAttr {
        set,
        clear: 0,
        ..MountAttr::default()
    };
    mount_setattr(mount.as_fd(), Reach::One, attr).map_err(failed)?;
    Ok(mount)
}

fn procfs_hint(error: Error) -> Error {
    match error {
        Error::Step { step, source, .. } => Error::Step {
            step,
            remedy: Some(
                "parts of /proc are hidden on this machine, as in most containers; start that container with an unmasked /proc (docker: `--security-opt systempaths=unconfined`)".to_owned(),
            ),
            source,
        },
        other => other,
    }
}
