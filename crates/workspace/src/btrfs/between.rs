//! What lies between two cuts of one head, told by the file system itself: it numbers every change of an inode with its
//! transaction, and skips whole tree blocks that no change touched.
//!
//! A cut is made inside the commit of transaction T, when nobody can join T any more: it has all changes of the head up to T
//! and none after. So the inodes in which two cuts differ are those that the younger one shows as changed after the older
//! one's T, and those that it has not any more, whose directory is one of the former.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use protocol::{CutId, WorkspaceId};
use rustix::io::Errno;

use super::{Btrfs, as_fd};
use crate::sys::btrfs::{self, Info};
use crate::{Error, Result};

/// Where more changed, a list of it takes as much memory and time as looking at everything.
const MOST: usize = 1 << 20;
/// Where more changed, to ask for the names of each costs more than to look at everything.
const MOST_PLACES: usize = 1 << 14;

impl Btrfs {
    pub(super) fn marked(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<String> {
        let (_, info) = self.looked_at(workspace, cut)?;
        Ok(name(cut, &info))
    }

    pub(super) fn differing(
        &self,
        workspace: &WorkspaceId,
        mark: &str,
        cut: &CutId,
    ) -> Result<Option<BTreeSet<u64>>> {
        let this = self.looked_at(workspace, cut)?;
        let named: Option<CutId> = mark.split_once(' ').and_then(|(cut, _)| cut.parse().ok());
        let Some(named) = named else {
            return Ok(None);
        };
        let other = match self.looked_at(workspace, &named) {
            // The pool may have lost it and gone on from an earlier state: then the numbers after it mean nothing.
            Err(Error::NoCut { .. }) => return Ok(None),
            other => other?,
        };
        if name(&named, &other.1) != mark {
            return Ok(None);
        }
        let changed = Self::between(this, other);
        let changed = changed.map_err(|errno| self.unreadable(workspace, cut, errno))?;
        Ok(changed.map(|(_, inodes)| inodes))
    }

    /// Returns the paths below `up`, as the younger of two cuts has them, of all inodes in which they may differ.
    pub(super) fn places(
        &self,
        workspace: &WorkspaceId,
        one: &CutId,
        other: &CutId,
    ) -> Result<Option<BTreeSet<Vec<u8>>>> {
        let sides = (
            self.looked_at(workspace, one)?,
            self.looked_at(workspace, other)?,
        );
        let changed = Self::between(sides.0, sides.1);
        let unreadable = |errno| self.unreadable(workspace, one, errno);
        let Some((younger, inodes)) = changed.map_err(unreadable)? else {
            return Ok(None);
        };
        if inodes.len() > MOST_PLACES {
            return Ok(None);
        }
        let mut known = HashMap::from([(btrfs::ROOT_INODE, vec![Vec::new()])]);
        let mut places = BTreeSet::new();
        for inode in inodes {
            let paths = paths(as_fd(&younger), inode, &mut known).map_err(unreadable)?;
            places.extend(paths.into_iter().filter_map(below_up));
        }
        Ok(Some(places))
    }

    /// Returns the younger of two cuts of one head, and the inodes in which they may differ.
    fn between(
        this: (File, Info),
        other: (File, Info),
    ) -> std::result::Result<Option<(File, BTreeSet<u64>)>, Errno> {
        // A fork's first cut is a copy, taken of a cut.
        if this.1.parent_uuid != other.1.parent_uuid || this.1.parent_uuid == [0; 16] {
            return Ok(None);
        }
        let (older, younger) = if other.1.made <= this.1.made {
            (other, this)
        } else {
            (this, other)
        };
        let mut all = BTreeSet::new();
        btrfs::changed_inodes(as_fd(&younger.0), older.1.made, |inode| {
            all.insert(inode);
            if all.len() > MOST {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        Ok((all.len() <= MOST).then_some((younger.0, all)))
    }

    fn looked_at(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<(File, Info)> {
        let opened = self.open_cut(workspace, cut)?;
        let info = btrfs::info(as_fd(&opened));
        let info = info.map_err(|errno| self.unreadable(workspace, cut, errno))?;
        Ok((opened, info))
    }

    fn unreadable(&self, workspace: &WorkspaceId, cut: &CutId, errno: Errno) -> Error {
        Error::errno("look at", self.names.cut(workspace, cut), errno)
    }
}

/// Returns all paths of an inode from the root of its subvolume, a slash before each name; none of one that is gone.
///
/// From name to directory, in no recursion: a tree may be as deep as it likes.
fn paths(
    fd: BorrowedFd<'_>,
    inode: u64,
    known: &mut HashMap<u64, Vec<Vec<u8>>>,
) -> std::result::Result<Vec<Vec<u8>>, Errno> {
    let mut waiting = vec![inode];
    while let Some(&next) = waiting.last() {
        if known.contains_key(&next) {
            waiting.pop();
            continue;
        }
        let names = btrfs::names_of(fd, next)?;
        let unknown = names.iter().map(|(dir, _)| *dir);
        let before = waiting.len();
        waiting.extend(unknown.filter(|dir| !known.contains_key(dir)));
        if waiting.len() > before {
            continue;
        }
        let mut paths = Vec::new();
        for (dir, name) in names {
            for path in known.get(&dir).into_iter().flatten() {
                paths.push([path.as_slice(), b"/", &name].concat());
            }
        }
        known.insert(next, paths);
        waiting.pop();
    }
    Ok(known.get(&inode).cloned().unwrap_or_default())
}

/// Returns what is left of a path below the directory of the files.
fn below_up(path: Vec<u8>) -> Option<Vec<u8>> {
    match path.strip_prefix(b"/up")? {
        b"" => Some(Vec::new()),
        rest => rest.strip_prefix(b"/").map(<[u8]>::to_vec),
    }
}

/// The cut's id, and the number that its subvolume was born with: no other has that.
fn name(cut: &CutId, info: &Info) -> String {
    format!("{cut} {:032x}", u128::from_be_bytes(info.uuid))
}
