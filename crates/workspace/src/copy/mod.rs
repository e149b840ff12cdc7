//! The copying engine, for any file system and any user: a head is a pair of directories, a cut a copy of the upper.
//!
//! Finding out whether anything changed walks the head (O(files)); a cut copies what changed and shares the rest with the
//! cut before by hard links, never with the live head. A copy is no instant: what running processes write meanwhile may
//! be in it or not, file by file; what returned before the call is in it.

mod manifest;
mod transfer;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::{CutId, WorkspaceId};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use self::manifest::{Manifest, Origin};
use self::transfer::Transfer;
use self::tree::{Stamp, Tree};
use crate::names::{Names, ids_in, make_head, new_workspace};
use crate::{Cut, Error, Keep, Layout, Pool, Result, Swept, Usage, xattr};

const MANIFEST: &str = "manifest";

/// A pool of plain directories.
pub(crate) struct Copy {
    names: Names,
    /// One turn at a time for each head, and where the manifest of its base is, once it was looked up.
    heads: Mutex<HashMap<WorkspaceId, Arc<Mutex<Option<PathBuf>>>>>,
}

impl Copy {
    pub(crate) fn open(root: PathBuf) -> Result<Self> {
        let names = Names { root };
        names.prepare()?;
        Ok(Self {
            names,
            heads: Mutex::default(),
        })
    }

    fn head(&self, workspace: &WorkspaceId) -> Arc<Mutex<Option<PathBuf>>> {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.entry(workspace.clone()).or_default().clone()
    }

    fn forget(&self, workspace: &WorkspaceId) {
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.remove(workspace);
    }

    /// A new directory in `tmp`, gone again unless it is renamed away.
    fn scratch(&self) -> Result<Scratch> {
        let path = self.names.tmp().join(new_workspace()?.as_str());
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .map_err(Error::io("make the directory", &path))?;
        Ok(Scratch { path })
    }

    /// What time it is for this file system: no change that comes later gets an earlier stamp.
    fn tick(&self) -> Result<Stamp> {
        let path = self.names.tmp().join(format!("tick-{}", new_workspace()?));
        let io = |e| Error::io("make", &path)(e);
        let made = File::create(&path)
            .and_then(|file| file.metadata())
            .map_err(io)?;
        fs::remove_file(&path).map_err(io)?;
        Ok(Stamp::ctime(&made))
    }

    /// Finds the manifest of the last cut that is there, else that of the head as it was made.
    fn base(&self, workspace: &WorkspaceId, known: &mut Option<PathBuf>) -> Result<PathBuf> {
        if let Some(path) = known {
            return Ok(path.clone());
        }
        let mut youngest = (0, self.names.head(workspace).join(MANIFEST));
        for cut in ids_in::<CutId>(&self.names.cuts_of(workspace))? {
            let path = self.names.cut(workspace, &cut).join(MANIFEST);
            if let Some(number) = Manifest::number_of(&path)
                && number > youngest.0
            {
                youngest = (number, path);
            }
        }
        Ok(known.insert(youngest.1).clone())
    }

    /// Where the content that a manifest describes lies.
    fn content(&self, at: &Path, manifest: &Manifest) -> Option<PathBuf> {
        match &manifest.origin {
            Origin::Empty => None,
            Origin::Beside => Some(at.with_file_name("up")),
            Origin::Restored { workspace, cut, id } => {
                let source = self.names.cut(workspace, cut);
                let same = Manifest::id_of(&source.join(MANIFEST)) == Some(*id);
                same.then(|| source.join("up"))
            }
        }
    }

    /// Whether the tree is as its base says, and nothing can have slipped in behind the clock's back.
    fn unchanged(&self, upper: &Tree, at: &Path, base: &mut Manifest) -> Result<bool> {
        let top =
            xattr::lasting(upper.path()).map_err(|e| Error::errno("look at", upper.path(), e))?;
        if top != base.top || !tree::same(&upper.walk()?, &base.entries) {
            return Ok(false);
        }
        if !base.entries.iter().any(|entry| entry.racy) {
            return Ok(true);
        }
        // These were written about when they were copied; a later write may carry the same stamp, or none if it went through
        // a mapping that was dirty already. Writing everything out gives each mapping a new stamp for its next write.
        let now = self.tick()?;
        upper.sync()?;
        let content = self.content(at, base);
        if !tree::same(&upper.walk()?, &base.entries) {
            return Ok(false);
        }
        for entry in base.entries.iter_mut().filter(|entry| entry.racy) {
            let Some(content) = &content else {
                return Ok(false);
            };
            if !transfer::same_content(upper, entry, content)? {
                return Ok(false);
            }
            entry.racy = entry.ctime >= now;
        }
        base.write(at)?;
        Ok(true)
    }

    /// Copies `upper` into `scratch/up`, sharing with `base` what is the same, and writes its manifest.
    fn copy(
        &self,
        upper: &Tree,
        base: &Manifest,
        content: Option<&Path>,
        scratch: &Scratch,
    ) -> Result<()> {
        let started = self.tick()?;
        upper.sync()?;
        let top =
            xattr::lasting(upper.path()).map_err(|e| Error::errno("look at", upper.path(), e))?;
        let share = content.map(|content| transfer::Share {
            content,
            entries: &base.entries,
        });
        let mut entries =
            Transfer::new(upper, &scratch.path.join("up"), share).run(upper.walk()?)?;
        for entry in &mut entries {
            entry.racy = entry.ctime >= started;
        }
        failpoint::hit("mid_copy");
        let manifest = Manifest {
            number: base.number + 1,
            id: random_id()?,
            origin: Origin::Beside,
            top,
            entries,
        };
        manifest.write(&scratch.path.join(MANIFEST))?;
        scratch.sync()
    }
}

impl Pool for Copy {
    fn kind(&self) -> &'static str {
        "copy"
    }

    fn create_as(&self, workspace: &WorkspaceId) -> Result<()> {
        let path = self.names.head(workspace);
        if path.is_dir() {
            return Ok(());
        }
        let scratch = self.scratch()?;
        make_head(&scratch.path)?;
        let upper = Tree::open(scratch.path.join("up"))?;
        let manifest = Manifest {
            number: 0,
            id: random_id()?,
            origin: Origin::Empty,
            top: xattr::Xattrs::new(),
            entries: upper.walk()?,
        };
        manifest.write(&scratch.path.join(MANIFEST))?;
        scratch.become_dir(&path)
    }

    fn layout(&self, workspace: &WorkspaceId) -> Result<Layout> {
        self.names.layout(workspace)
    }

    fn cut_still(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        _still: &dyn Fn() -> Box<dyn Send>,
    ) -> Result<Option<Cut>> {
        self.take(workspace, cut, When::Changed)
    }

    fn restore(&self, of: &WorkspaceId, cut: Option<&CutId>) -> Result<WorkspaceId> {
        let Some(cut) = cut else { return self.create() };
        let workspace = new_workspace()?;
        self.restore_as(of, cut, &workspace)?;
        Ok(workspace)
    }

    fn fork_as(&self, of: &WorkspaceId, cut: &CutId, workspace: &WorkspaceId) -> Result<()> {
        // Where both are there it is whole, whatever became of its source.
        if !self.names.head(workspace).is_dir() {
            // A cut of another head says nothing of this one.
            self.remove(workspace)?;
            self.restore_as(of, cut, workspace)?;
        }
        if self.names.cut(workspace, cut).is_dir() {
            return Ok(());
        }
        failpoint::hit("mid_fork");
        // Nothing is copied a second time: what is the same shares its files with the cut that it came from.
        if let Err(error) = self.take(workspace, cut, When::Always) {
            self.remove(workspace)?;
            return Err(error);
        }
        Ok(())
    }

    fn forks_at_once(&self) -> bool {
        false
    }

    fn cut_path(&self, workspace: &WorkspaceId, cut: &CutId) -> PathBuf {
        self.names.cut(workspace, cut).join("up")
    }

    fn retire(&self, workspace: &WorkspaceId) -> Result<()> {
        let head = self.head(workspace);
        let _turn = head.lock().unwrap_or_else(PoisonError::into_inner);
        let removed = self.discard(&self.names.head(workspace));
        self.forget(workspace);
        removed
    }

    fn remove(&self, workspace: &WorkspaceId) -> Result<()> {
        self.retire(workspace)?;
        self.discard(&self.names.cuts_of(workspace))
    }

    fn drop_cut(&self, workspace: &WorkspaceId, cut: &CutId) -> Result<()> {
        let head = self.head(workspace);
        let mut head = head.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.names.cut(workspace, cut);
        // "Changed since the last cut" must never mean a cut that is gone.
        if head.as_ref().is_some_and(|at| at.starts_with(&path)) {
            *head = None;
        }
        self.discard(&path)
    }

    fn gc(&self, keep: &[Keep]) -> Result<Swept> {
        let mut swept = crate::gc::sweep(self, &self.names, keep)?;
        let tmp = self.names.tmp();
        for entry in fs::read_dir(&tmp).map_err(Error::io("list", &tmp))? {
            remove_tree(&entry.map_err(Error::io("list", &tmp))?.path())?;
            swept.halves += 1;
        }
        for lost in std::mem::take(&mut swept.missing_heads) {
            if keep
                .iter()
                .any(|k| k.workspace == lost && !k.cuts.is_empty())
            {
                swept.missing_heads.push(lost);
            } else {
                self.create_as(&lost)?;
                swept.remade_heads.push(lost);
            }
        }
        Ok(swept)
    }

    fn can_limit(&self) -> Result<()> {
        Err(Error::NoLimits {
            path: self.names.root.clone(),
            why: "it copies, and the size of plain directories is nobody's to limit",
            hint: "leave the limit out, or take another data directory where btrfs can be had: `durable doctor` tells what is missing".into(),
        })
    }

    fn limit(&self, _workspace: &WorkspaceId, _bytes: u64) -> Result<()> {
        self.can_limit()
    }

    fn used(&self, _workspace: &WorkspaceId) -> Result<Option<u64>> {
        Ok(None)
    }

    fn cost(
        &self,
        workspace: &WorkspaceId,
        cut: &CutId,
        _before: Option<&CutId>,
    ) -> Result<Option<u64>> {
        let up = self.names.cut(workspace, cut).join("up");
        if !up.is_dir() {
            return Err(Error::NoCut {
                workspace: workspace.clone(),
                cut: cut.clone(),
            });
        }
        // What it shares, and with whom, is in the link counts of all other cuts.
        Ok(None)
    }

    // A copy's inodes are its own, and which of them were shared since says nothing about what changed.
    fn mark(&self, _workspace: &WorkspaceId, _cut: &CutId) -> Result<Option<String>> {
        Ok(None)
    }

    fn changed_inodes(
        &self,
        _workspace: &WorkspaceId,
        _mark: &str,
        _cut: &CutId,
    ) -> Result<Option<BTreeSet<u64>>> {
        Ok(None)
    }

    fn changed_places(
        &self,
        _workspace: &WorkspaceId,
        _one: &CutId,
        _other: &CutId,
    ) -> Result<Option<BTreeSet<Vec<u8>>>> {
        Ok(None)
    }

    fn usage(&self) -> Result<Usage> {
        crate::gc::usage(&self.names)
    }
}

/// Whether a cut is taken of a head that its base already describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Changed,
    Always,
}

impl Copy {
    fn restore_as(&self, of: &WorkspaceId, cut: &CutId, workspace: &WorkspaceId) -> Result<()> {
        let source = self.names.cut(of, cut);
        if !source.join("up").is_dir() {
            return Err(Error::NoCut {
                workspace: of.clone(),
                cut: cut.clone(),
            });
        }
        let tree = Tree::open(source.join("up"))?;
        let scratch = self.scratch()?;
        Transfer::new(&tree, &scratch.path.join("up"), None).run(tree.walk()?)?;
        let work = scratch.path.join("work");
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&work)
            .map_err(Error::io("make the directory", &work))?;
        let upper = Tree::open(scratch.path.join("up"))?;
        upper.sync()?;
        let now = self.tick()?;
        let mut entries = upper.walk()?;
        for entry in &mut entries {
            entry.racy = entry.ctime >= now;
        }
        let origin = match Manifest::id_of(&source.join(MANIFEST)) {
            Some(id) => Origin::Restored {
                workspace: of.clone(),
                cut: cut.clone(),
                id,
            },
            None => Origin::Empty,
        };
        let top =
            xattr::lasting(upper.path()).map_err(|e| Error::errno("look at", upper.path(), e))?;
        Manifest {
            number: 0,
            id: random_id()?,
            origin,
            top,
            entries,
        }
        .write(&scratch.path.join(MANIFEST))?;
        scratch.sync()?;
        scratch.become_dir(&self.names.head(workspace))?;
        let heads = self.names.heads();
        File::open(&heads)
            .and_then(|dir| dir.sync_all())
            .map_err(Error::io("sync", &heads))
    }

    fn take(&self, workspace: &WorkspaceId, cut: &CutId, when: When) -> Result<Option<Cut>> {
        let head = self.head(workspace);
        let mut head = head.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = self
            .names
            .layout(workspace)
            .inspect_err(|_| self.forget(workspace))?;
        let upper = Tree::open(layout.upper)?;
        let at = self.base(workspace, &mut head)?;
        // Without a readable manifest everything counts as changed.
        let mut base = Manifest::read(&at)?.unwrap_or_default();
        if when == When::Changed && self.unchanged(&upper, &at, &mut base)? {
            return Ok(None);
        }
        let made = self.names.cut(workspace, cut);
        let taken = || Error::CutExists {
            workspace: workspace.clone(),
            cut: cut.clone(),
        };
        if made.exists() {
            return Err(taken());
        }
        let cuts = self.names.cuts_of(workspace);
        fs::create_dir_all(&cuts).map_err(Error::io("make the directory", &cuts))?;
        let scratch = self.scratch()?;
        let content = self.content(&at, &base);
        self.copy(&upper, &base, content.as_deref(), &scratch)?;
        match scratch.become_dir(&made) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(taken());
            }
            renamed => renamed?,
        }
        for dir in [&cuts, &self.names.cuts()] {
            File::open(dir)
                .and_then(|dir| dir.sync_all())
                .map_err(Error::io("sync", dir))?;
        }
        failpoint::hit("mid_cut");
        *head = Some(made.join(MANIFEST));
        Ok(Some(Cut {
            id: cut.clone(),
            path: made.join("up"),
        }))
    }

    /// Takes something out of the pool in one step, then removes it.
    fn discard(&self, path: &Path) -> Result<()> {
        let gone = self.names.tmp().join(new_workspace()?.as_str());
        match fs::rename(path, &gone) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            renamed => {
                renamed.map_err(Error::io("remove", path))?;
                remove_tree(&gone)
            }
        }
    }
}

fn random_id() -> Result<u64> {
    let mut bytes = [0; 8];
    crate::sys::random(&mut bytes).map_err(|e| Error::errno("read", "/dev/urandom", e))?;
    Ok(u64::from_le_bytes(bytes))
}

/// A directory in the making.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Writes everything in it to disk.
    fn sync(&self) -> Result<()> {
        let dir = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        rustix::fs::syncfs(dir).map_err(|e| Error::errno("sync", &self.path, e))
    }

    /// Gives it its name, which must be free.
    fn become_dir(self, path: &Path) -> Result<()> {
        match rustix::fs::renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE) {
            // A file system without the flag; a directory never replaces one that is not empty.
            Err(Errno::INVAL) => rustix::fs::rename(&self.path, path),
            renamed => renamed,
        }
        .map_err(|e| Error::errno("rename to", path, e))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.path.exists()
            && let Err(error) = remove_tree(&self.path)
        {
            tracing::warn!(%error, "half a copy is left until the next start");
        }
    }
}

/// Removes a tree, also directories whose owner took the right to write from himself.
fn remove_tree(path: &Path) -> Result<()> {
    let is_dir = fs::symlink_metadata(path)
        .map_err(Error::io("look at", path))?
        .is_dir();
    if !is_dir {
        return fs::remove_file(path).map_err(Error::io("remove", path));
    }
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path).map_err(Error::io("remove", path))
        }
        removed => removed.map_err(Error::io("remove", path)),
    }
}

/// Gives ourselves every right on the directories of a tree that nobody else can reach any more.
fn open_up(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let found = fs::symlink_metadata(dir).map_err(Error::io("look at", dir))?;
    if found.mode() & 0o700 != 0o700 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(Error::io("open up", dir))?;
    }
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        if entry
            .file_type()
            .map_err(Error::io("look at", dir))?
            .is_dir()
        {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}
