//! The disk that loses its power: an ext4 in a sparse image, mounted where nobody else sees it.
//!
//! Where it is shut down, what the file system handed to the device before is kept, and what it held back is gone. A device that
//! loses its own cache cannot be had this way; for that there are copies (see `tape`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::Failure;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::sys;

const BYTES: u64 = 2 << 30;
/// How long the kernel may take to let go of a dead mount.
const RELEASE_WITHIN: Duration = Duration::from_secs(20);

/// The image and where it is mounted, if it is.
pub(crate) struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// Makes an empty file system in `image` and mounts it at `at`.
    pub(crate) fn make(image: PathBuf, at: PathBuf) -> Result<Self, Failure> {
        format(&image)?;
        Self::of(image, at)
    }

    /// Mounts the file system in `image` at `at`. The image is ours from here on.
    pub(crate) fn of(image: PathBuf, at: PathBuf) -> Result<Self, Failure> {
        std::fs::create_dir_all(&at).map_err(Failure::cannot(format!("make {}", at.display())))?;
        let disk = Self { image, at };
        disk.mount()?;
        Ok(disk)
    }

    /// Mounts it; the kernel replays its log where it lost its power.
    pub(crate) fn mount(&self) -> Result<(), Failure> {
        // Nothing but what the load writes goes on.
        run(Command::new("mount")
            .args(["-t", "ext4", "-o", "loop,noinit_itable"])
            .arg(&self.image)
            .arg(&self.at))
    }

    /// Takes its power.
    pub(crate) fn cut(&self) -> Result<(), Failure> {
        let what = "shut the file system down (this needs root, and ext4 with FS_IOC_SHUTDOWN)";
        let dir = File::open(&self.at).map_err(Failure::cannot(what))?;
        sys::shut_down(&dir).map_err(Failure::cannot(what))
    }

    /// Unmounts it and returns when no loop device has it any more, so that the next mount reads what is really there.
    pub(crate) fn unmount(&self) -> Result<(), Failure> {
        let until = Instant::now() + RELEASE_WITHIN;
        let what = || format!("unmount {}", self.at.display());
        loop {
            match unmount(&self.at, UnmountFlags::empty()) {
                // Not mounted any more.
                Ok(()) | Err(Errno::INVAL) => break,
                // The kernel frees the namespaces of killed processes in its own time, and tells nobody.
                Err(Errno::BUSY) if Instant::now() < until => pause(),
                Err(errno) => return Err(Failure::cannot(what())(errno)),
            }
        }
        while attached(&self.image) {
            if Instant::now() >= until {
                return Err(Failure::wrong(format!(
                    "{} stays attached",
                    self.image.display()
                )));
            }
            pause();
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a failure: our mount namespace ends with us, and the mount with it.
        let _gone = unmount(&self.at, UnmountFlags::DETACH);
        let _gone = std::fs::remove_file(&self.image);
    }
}

/// Makes an empty file system in a new sparse file.
pub(crate) fn format(image: &Path) -> Result<File, Failure> {
    let what = || format!("make the image {}", image.display());
    let file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(image)
        .map_err(Failure::cannot(what()))?;
    file.set_len(BYTES).map_err(Failure::cannot(what()))?;
    run(Command::new("mkfs.ext4")
        .args(["-q", "-F", "-E", "nodiscard"])
        .arg(image))?;
    Ok(file)
}

fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Whether a loop device has this file.
fn attached(image: &Path) -> bool {
    let devices = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok())
        .any(|backing| Path::new(backing.trim_end()) == image)
}

/// Runs a program to its end, which must be a good one.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::cannot(what.clone()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::wrong(format!(
        "{what}: {}: {}",
        output.status,
        said.trim()
    )))
}
