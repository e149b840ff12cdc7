//! What changed between two views.

use std::collections::BTreeSet;

use crate::compare::What;
use crate::rename;
use crate::view::{self, View};
use crate::walk::{self, Difference};
use crate::{Entry, Result};

/// When two files are held for the same without reading them. The same inode of the same file system always is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Never: sizes are compared, then bytes.
    #[default]
    Nothing,
    /// Where inode number, size, mode, mtime and ctime agree.
    ///
    /// Holds if both views' uppers are snapshots of one btrfs subvolume, or of snapshots of it, however far back: a
    /// snapshot keeps inode numbers and ctimes, nobody can set a ctime, and every write moves it. Two things break it: a
    /// clock that was set back to the very tick of an earlier write, and a write in the tick (4 ms) of the previous one
    /// with a snapshot between them. Never give it for directories that were copied, nor for uppers that merely look alike:
    /// two subvolumes hand out the same inode numbers.
    InodeAndTimes,
}

/// Whether a deletion and an addition may be told as one rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renames {
    /// Never.
    Apart,
    /// Where the content is the same, or at least so many of a hundred parts of it.
    Paired {
        /// 1 to 100; git takes 50.
        similarity: u8,
    },
}

impl Default for Renames {
    fn default() -> Self {
        Self::Paired { similarity: 50 }
    }
}

/// The only places at which the uppers of two views can differ, told by whoever made these: their pool.
///
/// A directory of both uppers with the same inode is looked into where it is one of these places or lies above one; and in one that
/// only lies above, nothing but the way down is looked at. Where inodes differ, all below is compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    places: BTreeSet<Vec<u8>>,
    above: BTreeSet<Vec<u8>>,
}

impl Touched {
    /// Takes paths from the tops of the uppers, without slashes at their ends; empty for the tops themselves.
    #[must_use]
    pub fn new(places: BTreeSet<Vec<u8>>) -> Self {
        let mut above = BTreeSet::new();
        for place in &places {
            let mut rest = place.as_slice();
            while !rest.is_empty() {
                rest = view::split(rest).0;
                if !above.insert(rest.to_vec()) {
                    break;
                }
            }
        }
        Self { places, above }
    }

    /// Whether anything at this path or below it can differ.
    pub(crate) fn reaches(&self, path: &[u8]) -> bool {
        self.is_place(path) || self.above.contains(path)
    }

    pub(crate) fn is_place(&self, path: &[u8]) -> bool {
        self.places.contains(path)
    }

    /// Returns the names in a directory by which one comes to a place.
    pub(crate) fn ways(&self, dir: &[u8]) -> BTreeSet<Vec<u8>> {
        let from = view::join(dir, b"");
        let ways = [&self.places, &self.above].into_iter().flat_map(|paths| {
            paths
                .range(from.clone()..)
                .take_while(|path| path.starts_with(&from))
                .filter(|path| path.len() > from.len())
        });
        ways.filter(|path| view::split(path).0 == dir)
            .map(|path| view::split(path).1.to_vec())
            .collect()
    }
}

/// How two views are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// What counts as the same without reading it.
    pub trust: Trust,
    /// Whether renames are looked for.
    pub renames: Renames,
    /// Paths that are left out, with all below them.
    pub ignore: Vec<Vec<u8>>,
    /// Where the uppers can differ, where that is known.
    pub touched: Option<Touched>,
}

/// What happened to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// It is new.
    Added,
    /// It is gone.
    Deleted,
    /// It is there before and after.
    Modified,
    /// It is new, and what it holds was elsewhere before.
    Renamed {
        /// Where it was.
        from: Vec<u8>,
        /// How many of a hundred parts of the content are the same.
        similarity: u8,
    },
}

/// One path that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// From the top of the view, without slashes at its ends; empty for the top itself.
    pub path: Vec<u8>,
    /// What happened.
    pub status: Status,
    /// In what the two sides differ. All false for what is new or gone.
    pub what: What,
    /// What was there, or at the place it came from.
    pub before: Option<Entry>,
    /// What is there.
    pub after: Option<Entry>,
}

/// Compares two views and returns what changed from `a` to `b`, sorted by path. A directory that came or went is told
/// with everything in it.
///
/// # Errors
/// What the kernel says about a path of either; nothing is told then.
pub fn changes(a: &View, b: &View, options: &Options) -> Result<Vec<Change>> {
    let mut changes: Vec<Change> = walk::differences(a, b, options)?
        .into_iter()
        .map(Change::from)
        .collect();
    if let Renames::Paired { similarity } = options.renames {
        rename::pair(&mut changes, a, b, similarity)?;
    }
    Ok(changes)
}

impl From<Difference> for Change {
    fn from(difference: Difference) -> Self {
        let status = match (&difference.before, &difference.after) {
            (None, _) => Status::Added,
            (_, None) => Status::Deleted,
            _ => Status::Modified,
        };
        Self {
            path: difference.path,
            status,
            what: difference.what,
            before: difference.before,
            after: difference.after,
        }
    }
}
