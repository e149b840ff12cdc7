//! The contract of a pool, and the types in it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use protocol::{CutId, WorkspaceId};

use crate::Result;

/// The two directories of a writable head, to be given to an overlay mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The overlay's `upperdir`.
    pub upper: PathBuf,
    /// The overlay's `workdir`; on the same mount as `upper`.
    pub work: PathBuf,
}

/// One cut, durable on this machine's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// Its name, as the caller chose it.
    pub id: CutId,
    /// The tree of the upper as it was; the same as [`Pool::cut_path`].
    pub path: PathBuf,
}

/// What [`Pool::gc`] leaves alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Whether its writable head is wanted, or only cuts of it.
    pub head: bool,
    /// The cuts of it that are wanted.
    pub cuts: Vec<CutId>,
}

/// What [`Pool::gc`] found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Writable heads that nobody named; removed.
    pub heads: Vec<WorkspaceId>,
    /// Cuts that nobody named; removed.
    pub cuts: Vec<(WorkspaceId, CutId)>,
    /// Half-made things of a crash; removed.
    pub halves: usize,
    /// Heads without a cut that were named and had not reached the disk before a power cut; made again, empty.
    pub remade_heads: Vec<WorkspaceId>,
    /// Heads that were named and are not there, though they have cuts: to be restored from one.
    pub missing_heads: Vec<WorkspaceId>,
    /// Cuts that were named and are not there.
    pub missing_cuts: Vec<(WorkspaceId, CutId)>,
}

/// How full the pool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the pool can hold. Of an image: with what the disk below lets it grow by.
    pub total_bytes: u64,
    /// Bytes that are left of it.
    pub free_bytes: u64,
    /// Writable heads, without those kept in stock.
    pub heads: u64,
    /// Cuts of all workspaces.
    pub cuts: u64,
}

/// A place for writable heads and their cuts.
///
/// Every verb blocks and may be called from many threads at once; two cuts of the same workspace take turns. "Durable on
/// return" means that the thing survives a power cut. After a crash anywhere, call [`Pool::gc`] with what the journals
/// name: it removes what the crash left.
pub trait Pool: Send + Sync {
    /// Returns the engine's name: `btrfs` or `copy`.
    fn kind(&self) -> &'static str;

    /// Makes an empty head under a name from [`new_workspace`](crate::new_workspace). One that is there already: nothing.
    ///
    /// Not durable on return, for it holds nothing yet: where a crash or a power cut took it, [`Pool::gc`] makes it again, empty,
    /// under its name. So the name may be written down first.
    fn create_as(&self, workspace: &WorkspaceId) -> Result<()>;

    /// Makes an empty head as [`Pool::create_as`] does, under a new name. A crash before the caller wrote that down leaves a
    /// head for [`Pool::gc`].
    fn create(&self) -> Result<WorkspaceId> {
        let workspace = crate::new_workspace()?;
        self.create_as(&workspace)?;
        Ok(workspace)
    }

    /// Returns the directories of a head.
    ///
    /// # Errors
    /// [`crate::Error::NoHead`] if there is none of that name. Nothing on disk changes, but call it before each mount and
    /// not for sport: the cut after it looks twice (one commit, 2 ms) to tell the mount's own writes from changes.
    fn layout(&self, workspace: &WorkspaceId) -> Result<Layout>;

    /// Takes a cut if anything changed since the last one, or since the head was made.
    ///
    /// `None`: nothing changed, nothing was made. Mounting an overlay over the head, which writes to `work`, is no change;
    /// an access time is one, so mount it `noatime`. That nothing changed is proven; now and then a cut is
    /// made though nothing did (a file that was deleted before the last cut and closed after it).
    /// `Some`: every write that returned before this call is in it, and it is durable. A crash in the middle leaves
    /// either nothing or a whole cut that no journal names: [`Pool::gc`] removes it, and the next cut compares with the
    /// last one that is there.
    ///
    /// `still` is called right before the instant that the cut shows, to stop the writers; what it returns is dropped right
    /// after. It is not called where nothing changed, nor by a pool that copies, whose cut shows no instant. Where the writers
    /// go on, the cut has a part of what they write meanwhile: up to the middle of one write, of one file and not of another
    /// that was written before, and on btrfs a file may have its new length already and zeros at its end.
    ///
    /// # Errors
    /// [`crate::Error::CutExists`] if the name is taken; [`crate::Error::Full`] if the pool is, with earlier cuts intact.
    /// After an error no cut of this name exists and the call may be repeated.
    fn cut_still(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        still: &dyn Fn() -> Box<dyn Send>,
    ) -> Result<Option<Cut>>;

    /// Takes a cut as [`Pool::cut_still`] does, of writers that go on.
    fn cut(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<Option<Cut>> {
        self.cut_still(workspace, cut, &|| Box::new(()))
    }

    /// Makes a new head with the content of a cut of `of`; without a cut, an empty one as by [`Pool::create`].
    ///
    /// The new head has its own name; `of` and its cuts stay as they are. Durable on return, where a cut is given. A crash
    /// in the middle leaves a head for [`Pool::gc`]. May be repeated; it makes another.
    fn restore(&self, of: &WorkspaceId, cut: Option<&CutId>) -> Result<WorkspaceId>;

    /// Makes a new head with the content of a cut of `of`, under a name from [`new_workspace`](crate::new_workspace), and
    /// keeps that cut under its own name among the new head's: whatever becomes of `of`, the new workspace has everything.
    ///
    /// Durable on return. What a crash left out is made by the same call again, which leaves alone what is there; so the
    /// name may be written down first, and the call repeated as long as nobody wrote to the head. A whole fork needs its
    /// source no more.
    ///
    /// # Errors
    /// [`crate::Error::NoCut`] if there is none of that name; [`crate::Error::Full`] if the pool is. Nothing is left then.
    fn fork_as(&self, of: &WorkspaceId, cut: &CutId, workspace: &WorkspaceId) -> Result<()>;

    /// Forks as [`Pool::fork_as`] does, under a new name. A crash in the middle leaves a head or a cut for [`Pool::gc`].
    fn fork(&self, of: &WorkspaceId, cut: &CutId) -> Result<WorkspaceId> {
        let workspace = crate::new_workspace()?;
        self.fork_as(of, cut, &workspace)?;
        Ok(workspace)
    }

    /// Whether a fork takes the same short time whatever the files are, and fails only where the pool does.
    fn forks_at_once(&self) -> bool;

    /// Returns where the tree of a cut is. Whether it is there is not looked up. The tree must not be written to.
    fn cut_path(&self, workspace: &WorkspaceId, cut: &CutId) -> PathBuf;

    /// Removes a head and keeps its cuts. Of a head that is not there: nothing.
    fn retire(&self, workspace: &WorkspaceId) -> Result<()>;

    /// Removes a head and all of its cuts. Of what is not there: nothing. A crash leaves some of it: repeat, or
    /// [`Pool::gc`]. Processes that still have the head mounted see it empty or erroring, never somebody else's files.
    fn remove(&self, workspace: &WorkspaceId) -> Result<()>;

    /// Removes one cut. Of a cut that is not there: nothing.
    fn drop_cut(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<()>;

    /// Removes every head and cut that is not named, and what crashes left half-made; tells what is missing.
    ///
    /// For the start of the daemon: it must not run beside verbs that make something which `keep` does not name yet.
    fn gc(&self, keep: &[Keep]) -> Result<Swept>;

    /// Tells whether a head can be held to a size. Changes nothing.
    ///
    /// # Errors
    /// [`crate::Error::NoLimits`] with what to do about it.
    fn can_limit(&self) -> Result<()>;

    /// Limits the bytes that a head's files take on disk; its cuts do not count.
    ///
    /// A write beyond it fails with `EDQUOT`, inside and only there, and what is removed makes room at once. A head that is
    /// over the limit already keeps its files. Not durable on return and not inherited: to be called before each mount. The first
    /// limit of a pool waits until all of it has been counted.
    ///
    /// # Errors
    /// [`crate::Error::NoLimits`], [`crate::Error::NoHead`].
    fn limit(&self, workspace: &WorkspaceId, bytes: u64) -> Result<()>;

    /// Returns the bytes that a head's files take, a few seconds late; `None` where nobody counts, as in a pool without limits.
    ///
    /// # Errors
    /// The head is not there.
    fn used(&self, workspace: &WorkspaceId) -> Result<Option<u64>>;

    /// Returns the bytes of file content that a cut has on disk and `before`, an earlier cut of the same workspace, has not;
    /// all of its bytes where there is no earlier one. `None` where the pool cannot tell cheaply.
    ///
    /// # Errors
    /// [`crate::Error::NoCut`] if one of them is not there.
    fn cost(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        before: Option<&CutId>,
    ) -> Result<Option<u64>>;

    /// Returns a name for a cut that no other cut ever has, also not one of the same id that is taken after this one was lost:
    /// what [`Pool::changed_inodes`] compares with. `None` where the pool cannot compare.
    ///
    /// # Errors
    /// [`crate::Error::NoCut`] if it is not there, in a pool that can.
    fn mark(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<Option<String>>;

    /// Returns the numbers of all inodes in which a cut may differ from another one of the same head, whichever is older.
    ///
    /// An inode that both have and that is not among them is the same in both: kind, attributes, links, content, and, of a
    /// directory, names and the inodes behind them. Costs what changed, not what is there.
    ///
    /// `None` where that cannot be told: `mark` is of a cut that is not there any more, of another head (a fork's, or one
    /// that was restored, is another), or of another pool; so much changed that looking at everything costs no more; or the
    /// pool copies.
    ///
    /// # Errors
    /// [`crate::Error::NoCut`] if `cut` is not there, in a pool that can tell.
    fn changed_inodes(
        &self,
        workspace: &WorkspaceId,
        mark: &str,
        cut: &CutId,
    ) -> Result<Option<BTreeSet<u64>>>;

    /// Returns the paths at which the files of two cuts of one head can differ, from the top of the cut's tree, as the younger one
    /// has them: what is gone is told by its directory. Costs what changed, not what is there.
    ///
    /// `None` as for [`Pool::changed_inodes`].
    ///
    /// # Errors
    /// [`crate::Error::NoCut`] if one of them is not there.
    fn changed_places(
        &self,
        workspace: &WorkspaceId,
        one: &CutId,
        other: &CutId,
    ) -> Result<Option<BTreeSet<Vec<u8>>>>;

    /// Returns how full the pool is.
    fn usage(&self) -> Result<Usage>;
}
