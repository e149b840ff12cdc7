//! Refs: names that point to a snapshot and move, by compare-and-swap.
//!
//! Every store can create an object only if there is none; not every one can replace one only if it is the one read.
//! So each move is an object of its own, `refs/NAME/GENERATION`, and the highest generation counts. Who creates it won.
//! Passed generations are cleared away by a garbage collection, once they are old: were the one just passed removed at
//! once, a slow writer could create it again and believe that it had won.

use serde::{Deserialize, Serialize};

use crate::backend::{Lasts, Prepared};
use crate::envelope::{self, Body};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::snapshot;
use crate::store::Store;

/// How often a ref was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(u64);

/// A ref that is about to be moved. Dropped, it is not.
pub struct Moving {
    name: String,
    was: Option<Generation>,
    next: Generation,
    object: String,
    prepared: Prepared,
    to: SnapshotId,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    snapshot: SnapshotId,
}

impl Store {
    /// Reads a ref; `None` if there is none of that name.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if its object is.
    pub fn get_ref(&self, name: &str) -> Result<Option<(SnapshotId, Generation)>> {
        check(name)?;
        // A generation may go between listing and reading: it was passed, and a collection runs.
        for _ in 0..16 {
            let Some(generation) = self.generations(name)?.pop() else {
                return Ok(None);
            };
            let object = object(name, generation);
            let Some(bytes) = self.backend.get(&object)? else {
                continue;
            };
            let text = envelope::open(&self.vault, &object, Body::Sealed, &bytes)?;
            let stored: Stored = serde_json::from_slice(&text)
                .map_err(|why| Error::damaged(object, why.to_string()))?;
            return Ok(Some((stored.snapshot, generation)));
        }
        Err(Error::Moved { name: name.into() })
    }

    /// Points a ref to a snapshot if it still is at the generation that the caller read; `None` if it must not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Moved`] if somebody else was faster.
    pub fn set_ref(
        &self,
        name: &str,
        was: Option<Generation>,
        to: &SnapshotId,
    ) -> Result<Generation> {
        let moving = self.prepare_ref(name, was, to)?;
        self.move_ref(moving)
    }

    /// Begins a move that nobody sees before [`move_ref`](Self::move_ref).
    pub(crate) fn prepare_ref(
        &self,
        name: &str,
        was: Option<Generation>,
        to: &SnapshotId,
    ) -> Result<Moving> {
        check(name)?;
        let next = Generation(was.map_or(0, |was| was.0 + 1));
        let object = object(name, next);
        let text = serde_json::to_vec(&Stored { snapshot: *to }).expect("a ref is plain JSON");
        let closed = envelope::close(&self.vault, &object, Body::Sealed, text);
        let prepared = self.backend.prepare(&object, closed);
        Ok(Moving {
            name: name.into(),
            was,
            next,
            object,
            prepared,
            to: *to,
        })
    }

    /// Ends a move that [`Push::commit_for`](crate::Push::commit_for) began: as [`set_ref`](Self::set_ref).
    ///
    /// # Errors
    ///
    /// [`Error::Moved`] if somebody else was faster.
    pub fn move_ref(&self, moving: Moving) -> Result<Generation> {
        let Moving {
            name,
            was,
            next,
            object,
            prepared,
            to,
        } = moving;
        let is_there = self.generations(&name)?.last().copied() == was;
        let has_moved = is_there
            && self
                .backend
                .create_prepared(&object, prepared, Lasts::Always)?;
        // From here on the ref holds the snapshot, or nobody wants it.
        self.backend.remove(vec![snapshot::pending(&to)])?;
        if has_moved {
            return Ok(next);
        }
        Err(Error::Moved { name })
    }

    /// Lists the names of the refs, whether or not they can be read.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn ref_names(&self) -> Result<Vec<String>> {
        self.backend.dirs("refs")
    }

    /// Lists the refs.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn list_refs(&self) -> Result<Vec<(String, SnapshotId)>> {
        let mut all = Vec::new();
        for name in self.backend.dirs("refs")? {
            if let Some((to, _)) = self.get_ref(&name)? {
                all.push((name, to));
            }
        }
        Ok(all)
    }

    /// Removes a ref, if there is one. What it pointed to goes with the next collection.
    ///
    /// # Errors
    ///
    /// The store's.
    pub fn remove_ref(&self, name: &str) -> Result<()> {
        check(name)?;
        // In order: until the last one is gone, the ref is what it was.
        for generation in self.generations(name)? {
            self.backend.remove(vec![object(name, generation)])?;
        }
        Ok(())
    }

    /// Removes generations that were passed and are so old.
    pub(crate) fn clear_refs(&self, older: std::time::Duration) -> Result<()> {
        for name in self.backend.dirs("refs")? {
            let mut listed = self.backend.list(&format!("refs/{name}"))?;
            listed.pop();
            let old = listed
                .iter()
                .filter(|listed| crate::gc::age(listed.modified) >= older);
            let gone = old
                .map(|listed| format!("refs/{name}/{}", listed.name))
                .collect();
            self.backend.remove(gone)?;
        }
        Ok(())
    }

    fn generations(&self, name: &str) -> Result<Vec<Generation>> {
        let names = self.backend.names(&format!("refs/{name}"))?;
        let mut all: Vec<_> = names
            .iter()
            .filter_map(|name| name.parse().ok().map(Generation))
            .collect();
        all.sort_unstable();
        Ok(all)
    }
}

fn object(name: &str, generation: Generation) -> String {
    format!("refs/{name}/{:020}", generation.0)
}

fn check(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.bytes().all(allowed) {
        return Err(Error::Invalid(format!(
            "{name:?} cannot be a ref's name: letters, digits, `-`, `_` and `.`"
        )));
    }
    Ok(())
}
