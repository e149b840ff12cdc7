//! A data directory with a pool, alone in the world: its mounts are in the test's own namespace and go with it.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::{CutId, WorkspaceId};
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

pub(crate) fn small_image() -> Options {
    Options {
        choice: Choice::Btrfs,
        image_bytes: Some(512 << 20),
    }
}

pub(crate) fn write(path: impl AsRef<Path>, text: &str) {
    fs::write(path, text).unwrap();
}
