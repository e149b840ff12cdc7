//! A blob store, opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Backend;
use crate::config;
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::id::SnapshotId;
use crate::index::Known;
use crate::key::{Key, Vault};
use crate::push::Push;
use crate::snapshot::{self, Snapshot};

/// How a store is used on this machine.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Where this machine keeps a copy of the store's index; without it every verb reads all of the index.
    pub cache: Option<PathBuf>,
    /// How many threads read, hash and compress; 0 for as many as the machine has.
    pub threads: usize,
}

/// Returns the directory that a store's address means, `/dir` or `file:///dir`; none where it means a bucket.
#[must_use]
pub fn directory(url: &str) -> Option<&Path> {
    match url.split_once("://") {
        None => Some(Path::new(url)),
        Some(("file", path)) => Some(Path::new(path)),
        Some(_) => None,
    }
}

/// A blob store: a directory or a bucket with snapshots.
///
/// Calls block, and may be made on any thread that may block.
pub struct Store {
    pub(crate) backend: Backend,
    pub(crate) vault: Vault,
    pub(crate) id: String,
    pub(crate) options: Options,
}

impl Store {
    /// Opens a store, and makes one where there is none: encrypted to `key` if one is given.
    ///
    /// `url` is a path, `file:///dir`, `s3://bucket/prefix`, `gs://…` or `az://…`; a cloud's credentials come from the
    /// environment.
    ///
    /// # Errors
    ///
    /// [`Error::KeyNeeded`], [`Error::WrongKey`] and [`Error::NotEncrypted`] where key and store do not fit.
    pub fn open(url: &str, key: Option<&Key>) -> Result<Self> {
        Self::open_with(url, key, Options::default())
    }

    /// The same, with what this machine can do for it.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(url: &str, key: Option<&Key>, options: Options) -> Result<Self> {
        let backend = Backend::open(url)?;
        let (config, vault) = config::open(&backend, key)?;
        if let Some(cache) = &options.cache {
            std::fs::create_dir_all(cache).map_err(Error::io("create", cache))?;
        }
        Ok(Self {
            backend,
            vault,
            id: config.id,
            options,
        })
    }

    /// Lets another age recipient (`age1…`) open the store too.
    ///
    /// # Errors
    ///
    /// [`Error::NotEncrypted`] if the store has no key at all.
    pub fn add_recipient(&self, recipient: &str) -> Result<()> {
        let master = self.vault.master().ok_or(Error::NotEncrypted)?;
        config::add_key(&self.backend, master, recipient)
    }

    /// Begins a push. What is in `parent`'s streams can be appended to.
    ///
    /// # Errors
    ///
    /// [`Error::NoSnapshot`] if there is no such parent.
    pub fn begin(&self, parent: Option<&SnapshotId>) -> Result<Push<'_>> {
        Push::new(self, parent)
    }

    /// Reads a snapshot's own object.
    ///
    /// # Errors
    ///
    /// [`Error::NoSnapshot`] if there is none of that name.
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Snapshot> {
        snapshot::read(self, id)
    }

    /// Lists the snapshots, in the order of their names.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn list(&self) -> Result<Vec<SnapshotId>> {
        Ok(self
            .backend
            .list("snapshots")?
            .iter()
            .filter_map(|listed| listed.name.parse().ok())
            .collect())
    }

    pub(crate) fn known(&self) -> Result<Known> {
        let cache = self.index_cache();
        Known::load(&self.backend, &self.vault, cache.as_deref())
    }

    pub(crate) fn fetch(&self) -> Result<Fetch<'_>> {
        Ok(Fetch::new(self, Arc::new(self.known()?)))
    }

    pub(crate) fn index_cache(&self) -> Option<PathBuf> {
        let dir = self.options.cache.as_ref()?;
        Some(dir.join(format!("index-{}", self.id)))
    }

    pub(crate) fn threads(&self) -> usize {
        match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some,
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.id)
    }
}
