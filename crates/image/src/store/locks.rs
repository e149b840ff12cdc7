//! One builder for each image: within this process, and between processes of the same store.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::OwnedMutexGuard;

use crate::digest::Digest;
use crate::error::{Error, Result};

/// A lock of another process gives no event; a pull takes seconds.
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Locks(Mutex<HashMap<Digest, Weak<tokio::sync::Mutex<()>>>>);

/// The right to build one image.
pub(super) struct Held {
    _here: OwnedMutexGuard<()>,
    _elsewhere: File,
}

impl Locks {
    /// Waits until nobody else builds the image.
    pub(super) async fn hold(&self, dir: &Path, digest: &Digest) -> Result<Held> {
        let here = self.mutex(digest).lock_owned().await;
        let path = dir.join("locks").join(digest.hex());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(Error::io("open", &path))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => tokio::time::sleep(POLL).await,
                Err(errno) => return Err(Error::errno("lock", path)(errno)),
            }
        }
        Ok(Held {
            _here: here,
            _elsewhere: file,
        })
    }

    fn mutex(&self, digest: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, mutex| mutex.strong_count() > 0);
        if let Some(mutex) = map.get(digest).and_then(Weak::upgrade) {
            return mutex;
        }
        let mutex = Arc::new(tokio::sync::Mutex::new(()));
        map.insert(*digest, Arc::downgrade(&mutex));
        mutex
    }
}
