//! What each test has for itself: a store, a cache, and room for trees.

use std::path::{Path, PathBuf};

use blob::{Key, Options, PullOptions, SnapshotId, Store};
use tempfile::TempDir;

pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) key: Option<Key>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
            key: None,
        }
    }

    pub(crate) fn encrypted() -> Self {
        Self {
            key: Some(Key::generate()),
            ..Self::new()
        }
    }

    /// An encrypted world for every other seed.
    pub(crate) fn of(seed: u64) -> Self {
        if seed.is_multiple_of(2) {
            Self::new()
        } else {
            Self::encrypted()
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path("store").display())
    }

    pub(crate) fn store(&self) -> Store {
        let options = Options {
            cache: Some(self.path("cache")),
            threads: 2,
        };
        Store::open_with(&self.url(), self.key.as_ref(), options).unwrap()
    }

    /// A store as another machine sees it: without a cache.
    pub(crate) fn elsewhere(&self) -> Store {
        Store::open(&self.url(), self.key.as_ref()).unwrap()
    }

    /// Pulls into a new directory.
    pub(crate) fn pull(&self, id: &SnapshotId) -> Result<TempDir, blob::Error> {
        let into = TempDir::new_in(self.dir.path()).unwrap();
        let report = self
            .elsewhere()
            .pull_tree(id, into.path(), PullOptions { threads: 2 })?;
        assert!(report.is_exact(), "{report:?}");
        Ok(into)
    }

    /// The objects of a directory of the store, and their sizes.
    pub(crate) fn objects(&self, dir: &str) -> Vec<(PathBuf, u64)> {
        let mut all = Vec::new();
        list(&self.path("store").join(dir), &mut all);
        all.sort();
        all
    }
}

fn list(dir: &Path, to: &mut Vec<(PathBuf, u64)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            list(&entry.path(), to);
        } else {
            to.push((entry.path(), entry.metadata().unwrap().len()));
        }
    }
}

/// Pushes a tree, with or without a cache of it.
pub(crate) fn push(
    store: &Store,
    tree: &Path,
    cache: Option<&Path>,
) -> (SnapshotId, blob::PushReport) {
    let mut push = store.begin(None).unwrap();
    push.tree(tree, cache, None).unwrap();
    push.commit(serde_json::Value::Null).unwrap()
}

/// The seeds of this run.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("BLOB_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    0..count.unwrap_or(8)
}
