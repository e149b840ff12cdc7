//! What lies between two cuts of one head, told by the file system itself: it numbers every change of an inode with its
//! transaction, and skips whole tree blocks that no change touched.
//!
//! A cut is made inside the commit of transaction T, when nobody can join T any more: it has all changes of the head up to T
//! and none after. So the inodes in which two cuts differ are those that the younger one shows as changed after the older
//! one's T, and those that it has not any more, whose directory is one of the former.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;

use protocol::{CutId, WorkspaceId};
use rustix::io::Errno;

use super::{Btrfs, as_fd};
use crate::sys::btrfs::{self, Info};
use crate::{Error, Result};

/// Where more changed, a list of it takes as much memory and time as looking at everything.
const MOST: usize = 1 << 20;

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
        let of_one_head =
            this.1.parent_uuid == other.1.parent_uuid && this.1.parent_uuid != [0; 16];
        // A fork's first cut is a copy, taken of a cut.
        if name(&named, &other.1) != mark || !of_one_head {
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
        })
        .map_err(|errno| self.unreadable(workspace, cut, errno))?;
        Ok((all.len() <= MOST).then_some(all))
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

/// The cut's id, and the number that its subvolume was born with: no other has that.
fn name(cut: &CutId, info: &Info) -> String {
    format!("{cut} {:032x}", u128::from_be_bytes(info.uuid))
}
