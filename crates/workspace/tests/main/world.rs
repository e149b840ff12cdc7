//! A data directory with a pool, alone in the world: its mounts are in the test's own namespace and go with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use protocol::{CutId, WorkspaceId};
use rustix::mount::MountFlags;
use tempfile::TempDir;
use workspace::{Choice, Error, Options, Pool, open_with};

pub(crate) struct World {
    // Dropped in this order: the pool unmounts before the directory goes.
    pub(crate) pool: Box<dyn Pool>,
    pub(crate) dir: TempDir,
}

/// Why a test was not run is said here.
pub(crate) fn skip(what: &str) {
    println!("SKIPPED: {what}");
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn dir() -> TempDir {
    TempDir::with_prefix("workspace-test-").unwrap()
}

impl World {
    pub(crate) fn copy() -> Self {
        let dir = dir();
        let pool = workspace::open(dir.path(), Choice::Copy).unwrap();
        Self { pool, dir }
    }

    /// None, said aloud, where this machine has no btrfs.
    pub(crate) fn btrfs() -> Option<Self> {
        workspace::private_mounts().unwrap();
        let dir = dir();
        match open_with(dir.path(), &small_image()) {
            Ok(pool) => Some(Self { pool, dir }),
            Err(error @ Error::Unavailable { .. }) => {
                skip(&error.to_string());
                None
            }
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }

    /// None, said aloud, where there is no image: no btrfs at all, or no need of one.
    pub(crate) fn image() -> Option<Self> {
        let world = Self::btrfs()?;
        if world.dir.path().join("pool.btrfs").exists() {
            return Some(world);
        }
        skip("temporary files are on btrfs; set TMPDIR to another file system");
        None
    }

    /// A pool in a directory on btrfs that is mounted so that each read leaves an access time; copies there too.
    pub(crate) fn each_on_btrfs(claim: impl Fn(&Self)) {
        let Some(outer) = Self::btrfs() else { return };
        let noisy = dir();
        rustix::mount::mount_bind(outer.dir.path().join("pool"), noisy.path()).unwrap();
        let flags = MountFlags::BIND | MountFlags::STRICTATIME;
        rustix::mount::mount_remount(noisy.path(), flags, "").unwrap();
        for choice in [Choice::Auto, Choice::Copy] {
            let dir = TempDir::with_prefix_in("data-", noisy.path()).unwrap();
            let pool = workspace::open(dir.path(), choice).unwrap();
            claim(&Self { pool, dir });
        }
        rustix::mount::unmount(noisy.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    /// Runs a claim on every engine that can be had.
    pub(crate) fn each(claim: impl Fn(&Self)) {
        claim(&Self::copy());
        if let Some(world) = Self::btrfs() {
            claim(&world);
        }
    }

    /// Lets go of the pool and opens it again, as a restarted daemon would.
    pub(crate) fn reopened(self) -> Self {
        let Self { pool, dir } = self;
        let choice = if pool.kind() == "copy" {
            Choice::Copy
        } else {
            Choice::Btrfs
        };
        drop(pool);
        let pool = workspace::open(dir.path(), choice).unwrap();
        Self { pool, dir }
    }

    pub(crate) fn upper(&self, workspace: &WorkspaceId) -> PathBuf {
        self.pool.layout(workspace).unwrap().upper
    }

    /// Takes a cut that must be one.
    pub(crate) fn cut(&self, workspace: &WorkspaceId, name: &str) -> CutId {
        let id: CutId = name.parse().unwrap();
        let cut = self.pool.cut(workspace, &id).unwrap();
        let cut = cut.unwrap_or_else(|| panic!("{}: nothing changed for {name}", self.pool.kind()));
        assert_eq!(cut.path, self.pool.cut_path(workspace, &id));
        id
    }

    /// Asks for a cut that must not be one.
    pub(crate) fn no_cut(&self, workspace: &WorkspaceId) {
        let cut = self
            .pool
            .cut(workspace, &"unwanted".parse().unwrap())
            .unwrap();
        assert_eq!(cut, None, "{}: a cut of nothing", self.pool.kind());
    }
}

/// A small disk: an ext4 of its own in a file that takes what is written to it.
pub(crate) struct Disk {
    _file: TempDir,
    at: TempDir,
}

impl Disk {
    pub(crate) fn new(bytes: u64) -> Self {
        workspace::private_mounts().unwrap();
        let (file, at) = (dir(), dir());
        let image = file.path().join("disk");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m", "0"])
            .arg(&image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(at.path()));
        Self { _file: file, at }
    }

    pub(crate) fn path(&self) -> &Path {
        self.at.path()
    }

    /// Takes every block that is left.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.path().join("ballast");
        let file = fs::File::create(&path).unwrap();
        let mut size = 0;
        for step in [64_u64 << 20, 1 << 20, 4096] {
            while take(&file, size, step).is_ok() {
                size += step;
            }
        }
        path
    }

    pub(crate) fn pool(&self, most: u64) -> Box<dyn Pool> {
        let options = Options {
            choice: Choice::Btrfs,
            image_bytes: Some(most),
        };
        open_with(self.path(), &options).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::DETACH;
        rustix::mount::unmount(self.at.path(), flags).unwrap();
    }
}

/// Gives a file blocks without writing them.
pub(crate) fn take(file: &fs::File, at: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), at, bytes)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

pub(crate) fn small_image() -> Options {
    Options {
        choice: Choice::Btrfs,
        image_bytes: Some(512 << 20),
    }
}

pub(crate) fn write(path: impl AsRef<Path>, text: &str) {
    fs::write(path, text).unwrap();
}
