//! How much the files of a head may take: a limit on what its subvolume refers to.
//!
//! What only cuts still have is not referred to by the head, so history does not count. The kernel counts nothing before the
//! first limit of a pool, for counting makes each cut dearer (docs/adr/0003).

use std::fs::File;

use protocol::WorkspaceId;
use rustix::io::Errno;

use super::{Btrfs, as_fd, open_dir};
use crate::sys::btrfs::{self, Quota};
use crate::{Error, Result};

impl Btrfs {
    /// Fails where no limit can be had.
    pub(super) fn can_be_limited(&self) -> Result<()> {
        let root = open_dir(&self.names.root)?;
        match self.counts(&root)? {
            Quota::Counting | Quota::Doubtful => Ok(()),
            // Others may be in a file system that is not our own, and they would pay, too.
            Quota::Off if self.image.is_some() => Ok(()),
            Quota::Off => {
                Err(self.no_limits("its file system, which is not the pool's alone, has no quotas"))
            }
            Quota::Simple => {
                Err(self
                    .no_limits("its file system has simple quotas, by which every old cut counts"))
            }
        }
    }

    pub(super) fn set_limit(&self, workspace: &WorkspaceId, bytes: u64) -> Result<()> {
        self.can_be_limited()?;
        let root = open_dir(&self.names.root)?;
        let path = self.names.head(workspace);
        let subvolume = match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoHead {
                    workspace: workspace.clone(),
                });
            }
            opened => opened.map_err(Error::io("open", &path))?,
        };
        let refused = |errno| Error::errno("limit the size of", &path, errno);
        if self.counts(&root)? == Quota::Off {
            tracing::info!(pool = %self.names.root.display(), "sizes are counted from now on");
            btrfs::count(as_fd(&root)).map_err(refused)?;
        }
        self.recount()?;
        // A limit on what is not counted yet would let more through.
        btrfs::counted(as_fd(&root)).map_err(refused)?;
        btrfs::limit(as_fd(&subvolume), bytes).map_err(refused)
    }

    /// Takes the limit off a head, where it has one.
    pub(super) fn lift(&self, subvolume: &File) {
        // Where nothing is counted there is none; where it stays, the next write says so.
        let _none = btrfs::limit(as_fd(subvolume), u64::MAX);
    }

    /// Counts anew where the kernel gave up counting, as it does when much is removed at once.
    pub(super) fn recount(&self) -> Result<()> {
        let root = open_dir(&self.names.root)?;
        if self.counts(&root)? != Quota::Doubtful {
            return Ok(());
        }
        match btrfs::count_anew(as_fd(&root)) {
            // It does so already.
            Ok(()) | Err(Errno::INPROGRESS | Errno::BUSY) => Ok(()),
            Err(errno) => Err(Error::errno("count the sizes in", &self.names.root, errno)),
        }
    }

    pub(super) fn taken(&self, workspace: &WorkspaceId) -> Result<Option<u64>> {
        let path = self.names.head(workspace);
        let look = |errno| Error::errno("look at", &path, errno);
        let subvolume = open_dir(&path)?;
        let info = btrfs::info(as_fd(&subvolume)).map_err(look)?;
        btrfs::referenced(as_fd(&subvolume), info.id).map_err(look)
    }

    fn counts(&self, root: &File) -> Result<Quota> {
        btrfs::quota(as_fd(root))
            .map_err(|e| Error::errno("look at the quotas of", &self.names.root, e))
    }

    fn no_limits(&self, why: &'static str) -> Error {
        Error::NoLimits {
            path: self.names.root.clone(),
            why,
            hint: format!(
                "`btrfs quota enable {}` switches them on, for all of that file system; or leave the limit out",
                self.names.root.display()
            ),
        }
    }
}
