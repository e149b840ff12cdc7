//! Stores that stay open for a while: who pushes every minute need not read key and index of the store anew each time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blob::{Key, Store};
use protocol::{ApiError, StoreAt};

use super::{check_directory, key, open_with};

/// Stores that are kept; each has a thread, and what it knows of the store's chunks takes some 30 MiB at most.
const MOST: usize = 4;
/// How long one is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(300);

/// The stores that are open.
#[derive(Default)]
pub struct Opened(Mutex<Vec<Open>>);

struct Open {
    place: Place,
    store: Arc<Store>,
    /// How often it was asked for.
    uses: u64,
}

/// What makes two askers mean one store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    url: String,
    /// Of a directory, whatever symbolic links led there.
    path: Option<PathBuf>,
    /// Whose identity opens it.
    recipient: Option<String>,
}

impl Opened {
    /// Returns the store that is open, or opens it, and makes one where there is none.
    pub(super) fn get(
        self: &Arc<Self>,
        at: &StoreAt,
        cache: &Path,
    ) -> Result<Arc<Store>, ApiError> {
        check_directory(at)?;
        // The identity must still be there, and still be that one.
        let key = at.key_file.as_deref().map(key).transpose()?;
        let place = place(at, key.as_ref());
        if let Some(store) = self.kept(&place) {
            return Ok(store);
        }
        let store = Arc::new(open_with(at, key.as_ref(), Some(cache))?);
        // Once more: a directory that was not there has a path now.
        let place = self::place(at, key.as_ref());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|open| open.place != place);
        if all.len() >= MOST {
            all.remove(0);
        }
        all.push(Open {
            place: place.clone(),
            store: Arc::clone(&store),
            uses: 0,
        });
        drop(all);
        self.close_later(place, 0);
        Ok(store)
    }

    fn kept(self: &Arc<Self>, place: &Place) -> Option<Arc<Store>> {
        let find = || {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = all.iter().position(|open| open.place == *place)?;
            // The one that was used last is the last to go.
            let mut open = all.remove(at);
            open.uses += 1;
            let found = (Arc::clone(&open.store), open.uses);
            all.push(open);
            Some(found)
        };
        let (store, uses) = find()?;
        // Another store may have been made in its place. What cannot be read now is told by who opens it anew.
        if !store.is_same().unwrap_or(false) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|open| !Arc::ptr_eq(&open.store, &store));
            return None;
        }
        self.close_later(place.clone(), uses);
        Some(store)
    }

    /// Lets go of a store that nobody asks for any more.
    fn close_later(self: &Arc<Self>, place: Place, uses: u64) {
        let opened = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(IDLE).await;
            let mut all = opened.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|open| open.place != place || open.uses != uses);
        });
    }
}

fn place(at: &StoreAt, key: Option<&Key>) -> Place {
    Place {
        url: at.url.clone(),
        path: blob::directory(&at.url).and_then(|path| path.canonicalize().ok()),
        recipient: key.map(Key::recipient),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(url: &Path) -> StoreAt {
        StoreAt {
            url: url.display().to_string(),
            key_file: None,
            device: None,
        }
    }

    #[tokio::test]
    async fn a_store_stays_open_until_another_is_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (url, cache) = (dir.path().join("store"), dir.path().join("cache"));
        let opened = Arc::new(Opened::default());
        let first = opened.get(&at(&url), &cache).unwrap();
        assert!(Arc::ptr_eq(&first, &opened.get(&at(&url), &cache).unwrap()));
        // Taken away, and another one made where it was.
        std::fs::remove_dir_all(&url).unwrap();
        let second = opened.get(&at(&url), &cache).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(url.join("config").exists());
        assert!(!first.is_same().unwrap());
        assert!(Arc::ptr_eq(
            &second,
            &opened.get(&at(&url), &cache).unwrap()
        ));
    }

    #[tokio::test]
    async fn a_link_that_leads_elsewhere_now_is_another_store() {
        let dir = tempfile::tempdir().unwrap();
        let (link, cache) = (dir.path().join("link"), dir.path().join("cache"));
        let opened = Arc::new(Opened::default());
        let mut stores = Vec::new();
        for name in ["one", "other"] {
            let to = dir.path().join(name);
            std::fs::create_dir(&to).unwrap();
            drop(std::fs::remove_file(&link));
            std::os::unix::fs::symlink(&to, &link).unwrap();
            stores.push(opened.get(&at(&link), &cache).unwrap());
            assert!(to.join("config").exists());
        }
        assert!(!Arc::ptr_eq(&stores[0], &stores[1]));
    }
}
