//! A place to build in, and the sweeping of places whose builders died.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::record::{self, sync_dir};
use crate::error::{Error, Result};
use crate::layer::tree::{open_dir, remove_dir};

/// A directory in `tmp`; it goes when this does. As long as it is there, nobody sweeps.
pub(super) struct Stage {
    tmp: PathBuf,
    name: String,
    _lock: File,
}

fn lock_file(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let opened = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    opened.map_err(Error::io("open", path))
}

/// Removes what killed builders left, if nobody is building.
pub(super) fn sweep(dir: &Path) -> Result<()> {
    let lock = lock_file(dir)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(errno) => return Err(Error::errno("lock", dir.join("lock"))(errno)),
    }
    let tmp = dir.join("tmp");
    for name in record::names(&tmp)? {
        remove(&tmp, &name)?;
    }
    // Whoever has one of these open still excludes nobody from building; two who do are told apart by the rename.
    let locks = dir.join("locks");
    for name in record::names(&locks)? {
        let path = locks.join(name);
        fs::remove_file(&path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}

fn remove(tmp: &Path, name: &str) -> Result<()> {
    let path = tmp.join(name);
    let meta = fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
    if !meta.is_dir() {
        return fs::remove_file(&path).map_err(Error::io("remove", path));
    }
    let parent = open_dir(tmp).map_err(Error::errno("open", tmp))?;
    remove_dir(&parent, name.as_bytes()).map_err(Error::errno("remove", path))
}

impl Stage {
    /// Makes a new one. Waits while somebody sweeps.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lock = lock_file(dir)?;
        let locked = rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockShared));
        locked.map_err(Error::errno("lock", dir.join("lock")))?;
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{}-{next}", std::process::id(), since.as_nanos());
        let tmp = dir.join("tmp");
        let path = tmp.join(&name);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("make the directory", path))?;
        Ok(Self {
            tmp,
            name,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> PathBuf {
        self.tmp.join(&self.name)
    }

    /// Puts what was built to its place. Returns whether it was needed: somebody else may have been faster.
    pub(super) fn put(&self, built: &Path, place: &Path) -> Result<bool> {
        match fs::rename(built, place) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::EXIST | Errno::NOTEMPTY)
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(Error::io("make", place)(error)),
        }
        sync_dir(place.parent().unwrap_or(place))?;
        Ok(true)
    }

    /// Takes something from its place, to remove it here.
    pub(super) fn take(&self, place: &Path) -> Result<()> {
        fs::rename(place, self.path().join("removed")).map_err(Error::io("remove", place))?;
        sync_dir(place.parent().unwrap_or(place))
    }

    /// Removes it now, and says if that fails.
    pub(super) fn discard(self) -> Result<()> {
        remove(&self.tmp, &self.name)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.tmp, &self.name)
            && !matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
        {
            // The next one who opens the store sweeps it.
            tracing::warn!(%error, "what was left of building an image could not be removed");
        }
    }
}
