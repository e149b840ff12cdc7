//! A blob store, opened.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::backend::Backend;
use crate::config;
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::id::{PackId, SnapshotId};
use crate::index::Known;
use crate::key::{Key, Vault};
use crate::pack::Index;
use crate::push::Push;
use crate::sink::lock;
use crate::snapshot::{self, Snapshot};

/// Chunks that are remembered from one verb to the next: some 30 MiB. Of a larger store the copy is read each time.
const REMEMBERED: usize = 1 << 18;

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
    /// What the store had when it was last looked at.
    remembered: Mutex<Option<Arc<Known>>>,
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
            remembered: Mutex::default(),
        })
    }

    /// Says whether it is still the store that was opened: one may be removed, and another made in its place.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn is_same(&self) -> Result<bool> {
        let now = config::read(&self.backend)?;
        Ok(now.is_some_and(|now| now.id == self.id))
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
        let parent = parent.map(|id| self.snapshot(id)).transpose()?;
        self.begin_after(parent)
    }

    /// The same with a parent that was read already.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn begin_after(&self, parent: Option<Snapshot>) -> Result<Push<'_>> {
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
        let names = self.backend.names("snapshots")?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    pub(crate) fn known(&self) -> Result<Arc<Known>> {
        // Taken out, so that nobody else holds it and what is new can be added in place.
        let before = lock(&self.remembered).take();
        let cache = self.index_cache();
        let known = Known::load(&self.backend, &self.vault, before, cache.as_deref())?;
        if known.len() <= REMEMBERED {
            *lock(&self.remembered) = Some(Arc::clone(&known));
        }
        Ok(known)
    }

    /// Adds what was just written to what is known.
    pub(crate) fn learn(&self, written: Vec<(PackId, Index)>) {
        let mut remembered = lock(&self.remembered);
        if let Some(known) = remembered.take() {
            let mut known = Arc::unwrap_or_clone(known);
            for (pack, index) in written {
                if !known.by_pack.contains_key(&pack) {
                    known.add(pack, index);
                }
            }
            *remembered = Some(Arc::new(known));
        }
    }

    pub(crate) fn fetch(&self) -> Result<Fetch<'_>> {
        Ok(Fetch::new(self, self.known()?))
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
