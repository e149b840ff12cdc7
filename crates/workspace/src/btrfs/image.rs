//! The loop image that holds the pool where the data directory is not on btrfs; its size is the business of [`super::room`].
//!
//! Two loop devices on one image would be two file systems writing over each other, so an image that is attached already
//! (sandboxes of a killed daemon keep it so) is found and used again. The kernel detaches it when the last mount, the
//! daemon's or a sandbox's, is gone. Mounted in the daemon's own mount namespace, nothing is left on the host.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, FlockOperation, Mode};
use rustix::io::Errno;
use rustix::mount::{mount, mount_remount};

use super::as_fd;
use super::room::{self, Room};
use crate::mounts::{Mounted, QUIET};
use crate::sys::loopdev::{self, Io};
use crate::{Error, Result};

/// The image's name in the data directory.
pub(crate) const IMAGE: &str = "pool.btrfs";
const HALF_MADE: &str = "pool.btrfs.new";

/// Somebody else may take the free loop device first, this often in a row at most.
const TRIES: u32 = 64;
const LOOP_MAJOR: u32 = 7;

/// An attached image, mounted at a directory.
#[derive(Debug)]
pub(crate) struct Attached {
    image: PathBuf,
    // Dropped before the mount that it looks at.
    room: Room,
    /// None: it was mounted there before us, so it is not ours to undo.
    _mounted: Option<Mounted>,
}

impl Attached {
    /// Makes the image if there is none, attaches it if it is not, and mounts it at `at`.
    pub(crate) fn open(data_dir: &Path, at: &Path, most: Option<u64>) -> Result<Self> {
        let image = data_dir.join(IMAGE);
        let fresh = !image.exists();
        if fresh {
            make(data_dir, &image, most)?;
        }
        let mounted = mount_image(&image, at);
        if mounted.is_err() && fresh {
            // A machine that cannot mount it falls back to copies and should not keep it. Its error is the one to tell.
            let _removed: std::io::Result<()> = fs::remove_file(&image);
        }
        let (device, _mounted) = mounted?;
        let room = Room::open(&image, device, at, most)?;
        Ok(Self {
            image,
            room,
            _mounted,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.image
    }

    pub(crate) fn room(&self) -> &Room {
        &self.room
    }
}

/// Whether a path is on btrfs.
pub(crate) fn is_btrfs(path: &Path) -> bool {
    const MAGIC: u32 = 0x9123_683E;
    rustix::fs::statfs(path).is_ok_and(|stat| u32::try_from(stat.f_type) == Ok(MAGIC))
}

fn unavailable(path: &Path, why: impl Into<String>) -> Error {
    Error::Unavailable {
        kind: "btrfs",
        path: path.to_owned(),
        why: why.into(),
    }
}

/// Makes the image under another name first, so that one with the right name is whole.
fn make(data_dir: &Path, image: &Path, most: Option<u64>) -> Result<()> {
    let half = data_dir.join(HALF_MADE);
    let file = File::create(&half).map_err(Error::io("make", &half))?;
    if let Err(error) = room::begin(&file, &half, data_dir, most) {
        // It may have taken the disk's last blocks.
        let _removed: std::io::Result<()> = fs::remove_file(&half);
        return Err(error);
    }
    // Metadata twice, as mkfs itself would: it is small, and a bad sector in it would cost every workspace.
    let mkfs =
        Command::new(mkfs().ok_or_else(|| unavailable(data_dir, "mkfs.btrfs is not installed"))?)
            .args([
                "--quiet",
                "--force",
                "--nodiscard",
                "--metadata",
                "dup",
                "--data",
                "single",
                "--label",
                "durable-pool",
            ])
            .arg(&half)
            .output()
            .map_err(Error::io("run mkfs.btrfs on", &half))?;
    if !mkfs.status.success() {
        let said = String::from_utf8_lossy(&mkfs.stderr);
        return Err(unavailable(
            data_dir,
            format!(
                "mkfs.btrfs failed: {}",
                said.lines().last().unwrap_or("silently")
            ),
        ));
    }
    file.sync_all().map_err(Error::io("sync", &half))?;
    fs::rename(&half, image).map_err(Error::io("rename", &half))?;
    File::open(data_dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync", data_dir))
}

/// Finds `mkfs.btrfs`; a daemon's `PATH` often lacks the administrator's directories.
pub(crate) fn mkfs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(fixed)
        .map(|dir| dir.join("mkfs.btrfs"))
        .find(|program| program.is_file())
}

/// Attaches and mounts; returns the loop device, and no mount where somebody made it before.
fn mount_image(image: &Path, at: &Path) -> Result<(PathBuf, Option<Mounted>)> {
    let open = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(image)
            .map_err(Error::io("open", image))
    };
    // Somebody who opens the pool at the same moment waits until we have attached it, and finds that. The lock has a
    // descriptor of its own, for the loop device keeps the one it is given.
    let lock = open()?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)
        .map_err(|e| Error::errno("lock", image, e))?;
    let file = open()?;
    fs::create_dir_all(at).map_err(Error::io("make the directory", at))?;
    if let Some(path) = mounted_there(&file, at)? {
        return Ok((path, None));
    }
    // Open until it is mounted: a device in use is not detached under our hands.
    let (device, path) = match find(&file, image)? {
        Some(found) => found,
        None => attach(&file, image)?,
    };
    // Blocks that were given back to the disk would be missing when it is full.
    mount(&path, at, "btrfs", QUIET, c"nodiscard").map_err(|errno| match errno {
        Errno::NODEV => unavailable(image, "this kernel has no btrfs"),
        Errno::PERM | Errno::ACCESS => unavailable(image, "this process may not mount"),
        errno => Error::errno("mount", image, errno),
    })?;
    let mounted = Mounted::at(at);
    drop(device);
    // Sandboxes may have had it mounted, with what an earlier version asked for.
    mount_remount(at, QUIET, "nodiscard").map_err(|e| Error::errno("mount anew", at, e))?;
    Ok((path, Some(mounted)))
}

/// Returns the device if `at` already is the mount of this image.
fn mounted_there(image: &File, at: &Path) -> Result<Option<PathBuf>> {
    let below = at.parent().unwrap_or(at);
    let device_of = |path: &Path| {
        fs::metadata(path)
            .map(|m| m.dev())
            .map_err(Error::io("look at", path))
    };
    if !is_btrfs(at) || device_of(at)? == device_of(below)? {
        return Ok(None);
    }
    let table = fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(Error::io("read", "/proc/thread-self/mountinfo"))?;
    // id parent dev root MOUNT-POINT options [tags] - type SOURCE super-options; the last line for a place is on top.
    let source = table.lines().rev().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (Path::new(left.split(' ').nth(4)?) == at)
            .then(|| right.split(' ').nth(1))
            .flatten()
    });
    let Some(source) = source.map(PathBuf::from) else {
        return Ok(None);
    };
    let Ok(device) = File::open(&source) else {
        return Ok(None);
    };
    Ok(holds(&device, image, &source)?.then_some(source))
}

/// Whether a loop device has this file.
pub(super) fn holds(device: &File, image: &File, path: &Path) -> Result<bool> {
    let wanted = image.metadata().map_err(Error::io("look at", path))?;
    match loopdev::attached(as_fd(device)) {
        Ok(found) => Ok(found == Some((wanted.dev(), wanted.ino()))),
        // No loop device at all.
        Err(_) => Ok(false),
    }
}

/// Finds the loop device that the image is attached to.
fn find(file: &File, image: &Path) -> Result<Option<(File, PathBuf)>> {
    let list = match fs::read_dir("/sys/block") {
        Ok(list) => list,
        Err(_) => fs::read_dir("/dev").map_err(Error::io("list", "/dev"))?,
    };
    for entry in list {
        let name = entry.map_err(Error::io("list", "/sys/block"))?.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix("loop"))
            .and_then(|n| n.parse::<u32>().ok());
        let Some(number) = number else { continue };
        // One that cannot be opened is just being detached.
        let Ok((device, path)) = open_device(number) else {
            continue;
        };
        if holds(&device, file, image)? {
            return Ok(Some((device, path)));
        }
    }
    Ok(None)
}

fn attach(file: &File, image: &Path) -> Result<(File, PathBuf)> {
    let control = "/dev/loop-control";
    let opened = OpenOptions::new().read(true).write(true).open(control);
    let control = opened.map_err(|e| unavailable(image, format!("cannot open {control}: {e}")))?;
    let mut io = Io::Direct;
    for _ in 0..TRIES {
        let number = loopdev::free_number(as_fd(&control))
            .map_err(|e| unavailable(image, format!("no free loop device: {e}")))?;
        let (device, path) = open_device(number)?;
        match loopdev::attach(as_fd(&device), as_fd(file), io) {
            Ok(()) => return Ok((device, path)),
            Err(Errno::BUSY) => {}
            // A disk that cannot do direct I/O; twice in memory is better than nothing.
            Err(Errno::INVAL) if io == Io::Direct => io = Io::Cached,
            Err(Errno::PERM | Errno::ACCESS) => {
                return Err(unavailable(
                    image,
                    "this process may not attach loop devices",
                ));
            }
            Err(errno) => return Err(Error::errno("attach", image, errno)),
        }
    }
    Err(unavailable(
        image,
        "every free loop device was taken by somebody else",
    ))
}

/// Opens a loop device; makes its node where `/dev` is not the kernel's own.
fn open_device(number: u32) -> Result<(File, PathBuf)> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    if !path.exists() {
        let device = rustix::fs::makedev(LOOP_MAJOR, number);
        match rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::BlockDevice,
            Mode::from_raw_mode(0o600),
            device,
        ) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(unavailable(
                    &path,
                    format!("there is no {}: {errno}", path.display()),
                ));
            }
        }
    }
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&path)
        .map_err(Error::io("open", &path))?;
    let kind = device
        .metadata()
        .map_err(Error::io("look at", &path))?
        .file_type();
    if !kind.is_block_device() {
        return Err(unavailable(
            &path,
            format!("{} is no block device", path.display()),
        ));
    }
    Ok((device, path))
}
