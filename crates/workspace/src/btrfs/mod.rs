//! The btrfs engine: each head is a subvolume, a cut a read-only snapshot of it. Taking one costs one commit, however
//! many files there are, and disturbs nobody who has the head mounted.
//!
//! What belongs to a head and where its cuts are is read from the file system alone, so there is no second truth that a
//! crash could leave behind. A snapshot is there or is not; nothing has to be finished after a crash.

mod between;
mod change;
mod image;
mod limit;
mod room;

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::{CutId, WorkspaceId};
use rustix::io::Errno;

use crate::mounts::Mounted;
use crate::names::{Names, ids_in, make_head, new_workspace};
use crate::sys::btrfs::{self, Access};
use crate::{Cut, Error, Keep, Layout, Pool, Result, Swept, Usage};

pub(crate) use image::{Attached, IMAGE, is_btrfs, mkfs};

/// Below this much free space on the disk under an image whose blocks are not reserved no cut is begun: a block that is
/// missing in the middle of a commit stops the file system in it, and with it every sandbox.
const DISK_RESERVE: u64 = 64 << 20;

/// How often a head is restored on a full pool, with a little more room each time.
const RESTORE_TRIES: u32 = 4;

/// Names the head that a restored head's content came from; on the subvolume's root, outside of `up`.
const FROM_XATTR: &str = "user.durable.from";

/// A pool in a btrfs file system.
pub(crate) struct Btrfs {
    names: Names,
    flush: Flush,
    heads: Mutex<HashMap<WorkspaceId, Arc<Mutex<Head>>>>,
    /// The image, where there is one.
    image: Option<Attached>,
    /// The pool's directory mounted over itself, where there is no image and its file system keeps access times.
    _quiet: Option<Mounted>,
}

/// How to make sure that every write that returned shows in a subvolume's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// Ask for a snapshot under a name that is taken: the kernel writes out this one subvolume, waits, and only then
    /// refuses. 0.02 ms where nothing is dirty, whatever the neighbours do. Tried out at each start, for nobody promised it.
    Refused,
    /// `syncfs`, which writes and waits for the neighbours too.
    Whole,
}

/// What is known about the changes of one head.
#[derive(Debug, Default)]
struct Head {
    /// Up to where the last cut, or the making of the head, holds everything. None: not looked up since the start.
    base: Option<Base>,
}

#[derive(Debug, Clone)]
struct Base {
    /// All changes up to this transaction are in what `reference` shows.
    transid: u64,
    reference: Reference,
    /// Whether an overlay may have been mounted since, so that a change of `work` alone must be told from the rest.
    mounted: bool,
}

/// What a head looked like at its base; only the `up` directory's own attributes are read from it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reference {
    /// As it was made: empty.
    Fresh,
    /// As this `up` of a cut.
    Cut(PathBuf),
    /// Restored from a cut that is gone.
    Unknown,
}

impl Btrfs {
    /// Opens the pool in `root`, a directory on btrfs.
    pub(crate) fn open(root: PathBuf, image: Option<Attached>) -> Result<Self> {
        let names = Names { root };
        names.prepare()?;
        let quiet = Mounted::quiet(&names.root)?;
        let held = names.root.join("probe/held");
        fs::create_dir_all(&held).map_err(Error::io("make the directory", &held))?;
        for name in ids_in::<WorkspaceId>(&names.tmp())? {
            remove_subvolume(&names.tmp(), name.as_str())?;
        }
        let mut pool = Self {
            names,
            flush: Flush::Refused,
            heads: Mutex::default(),
            image,
            _quiet: quiet,
        };
        match pool.refused_snapshot_flushes() {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    "this kernel's refused snapshot does not flush; every cut syncs the whole pool"
                );
                pool.flush = Flush::Whole;
            }
            // What is there can be read and removed all the same.
            Err(error @ Error::Full { .. }) => {
                tracing::warn!(%error, "there is no room to try out how to flush; every cut syncs the whole pool");
                pool.flush = Flush::Whole;
            }
            Err(error) => return Err(error),
        }
        Ok(pool)
    }

    /// Tries out whether a refused snapshot makes an unsynced overwrite visible in the subvolume's counters.
    fn refused_snapshot_flushes(&self) -> Result<bool> {
        let name = new_workspace()?;
        let tmp = self.names.tmp();
        let path = tmp.join(name.as_str());
        let dir = open_dir(&tmp)?;
        btrfs::create(as_fd(&dir), name.as_str())
            .map_err(|e| Error::errno("make a subvolume in", &tmp, e))?;
        let subvolume = open_dir(&path)?;
        let file = path.join("file");
        let io = |e| Error::io("write", &file)(e);
        let written = File::create(&file).map_err(io)?;
        written.write_all_at(b"one", 0).map_err(io)?;
        written.sync_all().map_err(io)?;
        let base = btrfs::commit(as_fd(&subvolume)).map_err(|e| Error::errno("sync", &path, e))?;
        // An overwrite stays in memory and shows in no counter until it is written out.
        written.write_all_at(b"two", 0).map_err(io)?;
        self.flush(&path, &subvolume)?;
        let info = btrfs::info(as_fd(&subvolume)).map_err(|e| Error::errno("look at", &path, e))?;
        drop((written, subvolume));
        remove_subvolume(&tmp, name.as_str())?;
        Ok(info.changed > base)
    }

    fn head(&self, workspace: &WorkspaceId) -> Arc<Mutex<Head>> {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.entry(workspace.clone()).or_default().clone()
    }

    fn forget(&self, workspace: &WorkspaceId) {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.remove(workspace);
    }

    /// Makes an empty head of this name.
    fn make(&self, workspace: &WorkspaceId) -> Result<()> {
        let heads = self.names.heads();
        let dir = open_dir(&heads)?;
        btrfs::create(as_fd(&dir), workspace.as_str())
            .map_err(|e| Error::errno("make a subvolume in", &heads, e))?;
        make_head(&self.names.head(workspace))
    }

    /// Makes every write to this subvolume that returned show in its counters.
    fn flush(&self, path: &Path, subvolume: &File) -> Result<()> {
        let refused = match self.flush {
            Flush::Whole => rustix::fs::syncfs(subvolume),
            Flush::Refused => {
                let probe = open_dir(&self.names.root.join("probe"))?;
                match btrfs::snapshot(as_fd(subvolume), as_fd(&probe), "held", Access::ReadOnly) {
                    Err(Errno::EXIST) => Ok(()),
                    Err(errno) => Err(errno),
                    // The name was gone and is a snapshot now, which does as well.
                    Ok(()) => Ok(()),
                }
            }
        };
        refused.map_err(|errno| Error::errno("write out", path, errno))
    }

    fn check_disk(&self) -> Result<()> {
        let Some(image) = &self.image else {
            return Ok(());
        };
        image.room().look()?;
        if image
            .room()
            .disk_free()?
            .is_some_and(|free| free < DISK_RESERVE)
        {
            return Err(Error::Full {
                doing: "keep a reserve on the disk below",
                path: image.path().to_owned(),
            });
        }
        Ok(())
    }

    /// Gives a full pool a little room, if that can be had.
    fn spare(&self) -> Result<bool> {
        self.image
            .as_ref()
            .map_or(Ok(false), |image| image.room().spare())
    }

    /// Fails if the head holds a subvolume, of which a snapshot shows an empty directory.
    fn refuse_nested(&self, workspace: &WorkspaceId, subvolume: &File) -> Result<()> {
        let path = self.names.head(workspace);
        let look = |errno| Error::errno("look for subvolumes in", &path, errno);
        let Some(holder) = btrfs::holders(as_fd(subvolume))
            .map_err(look)?
            .first()
            .copied()
        else {
            return Ok(());
        };
        let below = btrfs::path_of(as_fd(subvolume), holder).map_err(look)?;
        Err(Error::Nested {
            workspace: workspace.clone(),
            path: path.join(OsString::from_vec(below)),
        })
    }

    fn open_cut(&self, of: &WorkspaceId, cut: &CutId) -> Result<File> {
        let source = self.names.cut(of, cut);
        match File::open(&source) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NoCut {
                workspace: of.clone(),
                cut: cut.clone(),
            }),
            opened => opened.map_err(Error::io("open", &source)),
        }
    }

    /// Makes a writable head of a cut; `from` names the cut it will be compared with.
    fn make_from(&self, snapshot: &File, workspace: &WorkspaceId, from: &str) -> Result<()> {
        let path = self.names.head(workspace);
        let dir = open_dir(&self.names.heads())?;
        btrfs::snapshot(
            as_fd(snapshot),
            as_fd(&dir),
            workspace.as_str(),
            Access::Writable,
        )
        .or_else(if_there)
        .map_err(|e| Error::errno("restore to", &path, e))?;
        // The kernel gave it the limit that the cut's head had, and it may be full. It is limited again when it is started.
        self.lift(&open_dir(&path)?);
        let work = path.join("work");
        // What an overlay left in its work directory belongs to the mount it was cut under. If a power cut undoes this, the
        // next mount cleans it. The directory itself stays: a full pool has no room for another.
        match crate::names::empty(&work) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                fs::create_dir(&work).map_err(Error::io("make the directory", &work))?;
            }
            emptied => emptied.map_err(Error::io("empty", &work))?,
        }
        rustix::fs::setxattr(
            &path,
            FROM_XATTR,
            from.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .map_err(|e| Error::errno("mark", &path, e))
    }

    fn remove_cuts(&self, workspace: &WorkspaceId) -> Result<()> {
        let dir = self.names.cuts_of(workspace);
        for cut in ids_in::<CutId>(&dir)? {
            remove_subvolume(&dir, cut.as_str())?;
        }
        crate::gc::remove_empty(&dir)
    }
}

impl Pool for Btrfs {
    fn kind(&self) -> &'static str {
        "btrfs"
    }

    fn create_as(&self, workspace: &WorkspaceId) -> Result<()> {
        self.check_disk()?;
        if self.names.head(workspace).join("work").is_dir() {
            return Ok(());
        }
        self.make(workspace)
    }

    fn layout(&self, workspace: &WorkspaceId) -> Result<Layout> {
        let layout = self.names.layout(workspace)?;
        let pool = &self.names.root;
        let left = rustix::fs::statvfs(pool).map_err(|e| Error::errno("look at", pool, e))?;
        if left.f_bavail == 0 {
            // An overlay that cannot make its directories is mounted read-only.
            self.spare()?;
        }
        let head = self.head(workspace);
        if let Some(base) = &mut head.lock().unwrap_or_else(PoisonError::into_inner).base {
            base.mounted = true;
        }
        Ok(layout)
    }

    fn cut_still(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        still: &dyn Fn() -> Box<dyn Send>,
    ) -> Result<Option<Cut>> {
        let head = self.head(workspace);
        let mut head = head.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.names.head(workspace);
        let subvolume = match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                self.forget(workspace);
                return Err(Error::NoHead {
                    workspace: workspace.clone(),
                });
            }
            opened => opened.map_err(Error::io("open", &path))?,
        };
        self.flush(&path, &subvolume)?;
        if !self.changed(workspace, &mut head, &subvolume)? {
            return Ok(None);
        }
        self.check_disk()?;
        let cuts = self.names.cuts_of(workspace);
        fs::create_dir_all(&cuts).map_err(Error::io("make the directory", &cuts))?;
        // One directory for each workspace: its lock is held through the commit, so cuts in one directory would wait for
        // each other, while cuts in many share a commit.
        let dir = open_dir(&cuts)?;
        let stopped = still();
        let taken = btrfs::snapshot(
            as_fd(&subvolume),
            as_fd(&dir),
            cut.as_str(),
            Access::ReadOnly,
        );
        drop(stopped);
        match taken {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(Error::CutExists {
                    workspace: workspace.clone(),
                    cut: cut.clone(),
                });
            }
            Err(errno) => return Err(Error::errno("take a cut in", &cuts, errno)),
        }
        failpoint::hit("mid_cut");
        let made = self.names.cut(workspace, cut);
        let whole = self.refuse_nested(workspace, &subvolume).and_then(|()| {
            btrfs::info(as_fd(&open_dir(&made)?)).map_err(|e| Error::errno("look at", &made, e))
        });
        let info = match whole {
            Ok(info) => info,
            Err(error) => {
                remove_subvolume(&cuts, cut.as_str())?;
                return Err(error);
            }
        };
        let path = made.join("up");
        // The snapshot is made inside the commit, when nobody can join the transaction any more: what changes the head
        // after it carries a higher number.
        head.base = Some(Base {
            transid: info.made,
            reference: Reference::Cut(path.clone()),
            mounted: false,
        });
        Ok(Some(Cut {
            id: cut.clone(),
            path,
        }))
    }

    fn restore(&self, of: &WorkspaceId, cut: Option<&CutId>) -> Result<WorkspaceId> {
        let Some(cut) = cut else { return self.create() };
        self.check_disk()?;
        let snapshot = self.open_cut(of, cut)?;
        let from = format!("{of}/{cut}");
        let mut tries = RESTORE_TRIES;
        loop {
            tries -= 1;
            let workspace = new_workspace()?;
            match self.make_from(&snapshot, &workspace, &from) {
                Ok(()) => return Ok(workspace),
                Err(error) => {
                    remove_subvolume(&self.names.heads(), workspace.as_str())?;
                    // Going back is the way out of a full pool.
                    if tries == 0 || !matches!(error, Error::Full { .. }) || !self.spare()? {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn fork_as(&self, of: &WorkspaceId, cut: &CutId, workspace: &WorkspaceId) -> Result<()> {
        // Whole already, whatever became of its source.
        let head = self.names.head(workspace).join("work");
        if head.is_dir() && self.names.cut(workspace, cut).is_dir() {
            return Ok(());
        }
        self.check_disk()?;
        let snapshot = self.open_cut(of, cut)?;
        let cuts = self.names.cuts_of(workspace);
        fs::create_dir_all(&cuts).map_err(Error::io("make the directory", &cuts))?;
        let kept = || -> Result<()> {
            let dir = open_dir(&cuts)?;
            failpoint::hit("mid_fork");
            let made = btrfs::snapshot(
                as_fd(&snapshot),
                as_fd(&dir),
                cut.as_str(),
                Access::ReadOnly,
            );
            made.or_else(if_there)
                .map_err(|e| Error::errno("keep a cut in", &cuts, e))
        };
        // Side by side, so that both are in one commit.
        let (head, kept) = std::thread::scope(|scope| {
            let kept = scope.spawn(kept);
            let head = self.make_from(&snapshot, workspace, &format!("{workspace}/{cut}"));
            let kept = kept
                .join()
                .unwrap_or_else(|_| Err(Error::errno("keep a cut in", &cuts, Errno::IO)));
            (head, kept)
        });
        head.and(kept).inspect_err(|_| {
            if let Err(left) = self.remove(workspace) {
                tracing::warn!(%left, "half a fork is left until the next start");
            }
        })
    }

    fn forks_at_once(&self) -> bool {
        true
    }

    fn cut_path(&self, workspace: &WorkspaceId, cut: &CutId) -> PathBuf {
        self.names.cut(workspace, cut).join("up")
    }

    fn retire(&self, workspace: &WorkspaceId) -> Result<()> {
        let head = self.head(workspace);
        let _turn = head.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = remove_subvolume(&self.names.heads(), workspace.as_str());
        self.forget(workspace);
        removed
    }

    fn remove(&self, workspace: &WorkspaceId) -> Result<()> {
        self.retire(workspace)?;
        self.remove_cuts(workspace)
    }

    fn drop_cut(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<()> {
        let head = self.head(workspace);
        let mut head = head.lock().unwrap_or_else(PoisonError::into_inner);
        // "Changed since the last cut" must never mean a cut that is gone.
        let reference = Reference::Cut(self.cut_path(workspace, cut));
        if head
            .base
            .as_ref()
            .is_some_and(|base| base.reference == reference)
        {
            head.base = None;
        }
        remove_subvolume(&self.names.cuts_of(workspace), cut.as_str())
    }

    fn gc(&self, keep: &[Keep]) -> Result<Swept> {
        let mut swept = crate::gc::sweep(self, &self.names, keep)?;
        for name in ids_in::<WorkspaceId>(&self.names.tmp())? {
            remove_subvolume(&self.names.tmp(), name.as_str())?;
            swept.halves += 1;
        }
        for lost in std::mem::take(&mut swept.missing_heads) {
            if keep
                .iter()
                .any(|k| k.workspace == lost && !k.cuts.is_empty())
            {
                swept.missing_heads.push(lost);
            } else {
                self.make(&lost)?;
                swept.remade_heads.push(lost);
            }
        }
        Ok(swept)
    }

    fn can_limit(&self) -> Result<()> {
        self.can_be_limited()
    }

    fn limit(&self, workspace: &WorkspaceId, bytes: u64) -> Result<()> {
        self.set_limit(workspace, bytes)
    }

    fn used(&self, workspace: &WorkspaceId) -> Result<Option<u64>> {
        self.taken(workspace)
    }

    fn cost(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        before: Option<&CutId>,
    ) -> Result<Option<u64>> {
        let snapshot = self.open_cut(workspace, cut)?;
        let path = self.names.cut(workspace, cut);
        let look = |errno| Error::errno("look at", &path, errno);
        let since = match before {
            Some(before) => {
                let before = self.open_cut(workspace, before)?;
                btrfs::info(as_fd(&before)).map_err(look)?.made
            }
            None => 0,
        };
        let bytes = btrfs::young_bytes(as_fd(&snapshot), since).map_err(look)?;
        Ok(Some(bytes))
    }

    fn mark(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<Option<String>> {
        self.marked(workspace, cut).map(Some)
    }

    fn changed_inodes(
        &self,
        workspace: &WorkspaceId,
        mark: &str,
        cut: &CutId,
    ) -> Result<Option<BTreeSet<u64>>> {
        self.differing(workspace, mark, cut)
    }

    fn changed_places(
        &self,
        workspace: &WorkspaceId,
        one: &CutId,
        other: &CutId,
    ) -> Result<Option<BTreeSet<Vec<u8>>>> {
        self.places(workspace, one, other)
    }

    fn usage(&self) -> Result<Usage> {
        let Some(image) = &self.image else {
            return crate::gc::usage(&self.names);
        };
        // What the image grows by between two looks would be in neither.
        let _still = image.room().hold_still()?;
        let mut usage = crate::gc::usage(&self.names)?;
        let grows = image.room().to_come()?;
        usage.free_bytes += grows;
        usage.total_bytes += grows;
        if let Some(free) = image.room().disk_free()? {
            let used = usage.total_bytes - usage.free_bytes;
            usage.free_bytes = usage.free_bytes.min(free.saturating_sub(DISK_RESERVE));
            usage.total_bytes = used + usage.free_bytes;
        }
        Ok(usage)
    }
}

/// What is there already need not be made.
fn if_there(errno: Errno) -> rustix::io::Result<()> {
    if errno == Errno::EXIST {
        Ok(())
    } else {
        Err(errno)
    }
}

fn as_fd(file: &File) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(file)
}

fn open_dir(path: &Path) -> Result<File> {
    File::open(path).map_err(Error::io("open", path))
}

/// Removes a subvolume with what hangs inside it. One that is not there: nothing.
fn remove_subvolume(dir: &Path, name: impl AsRef<OsStr>) -> Result<()> {
    let name = name.as_ref();
    let path = dir.join(name);
    let parent = match File::open(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(Error::io("open", dir))?,
    };
    let refused = |errno| Error::errno("remove the subvolume", &path, errno);
    match btrfs::destroy(as_fd(&parent), name) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        // Not a subvolume: the half of something that never became one.
        Err(Errno::INVAL | Errno::NOTDIR) => {
            return fs::remove_dir_all(&path).map_err(Error::io("remove", &path));
        }
        // Somebody wrote to the head past the overlay and made a subvolume in it.
        Err(Errno::NOTEMPTY) => destroy_children(&path, &open_dir(&path)?)?,
        Err(errno) => return Err(refused(errno)),
    }
    btrfs::destroy(as_fd(&parent), name).map_err(refused)
}

/// Removes the subvolumes that hang inside one: found by the directory that holds them, told by their root's inode number.
fn destroy_children(path: &Path, subvolume: &File) -> Result<()> {
    let refused = |errno| Error::errno("remove what hangs in", path, errno);
    for holder in btrfs::holders(as_fd(subvolume)).map_err(refused)? {
        let below = btrfs::path_of(as_fd(subvolume), holder).map_err(refused)?;
        let dir = path.join(OsString::from_vec(below));
        for entry in fs::read_dir(&dir).map_err(Error::io("list", &dir))? {
            let entry = entry.map_err(Error::io("list", &dir))?;
            let found = entry.metadata().map_err(Error::io("look at", &dir))?;
            if found.is_dir() && found.ino() == change::SUBVOLUME_ROOT {
                remove_subvolume(&dir, entry.file_name())?;
            }
        }
    }
    Ok(())
}
