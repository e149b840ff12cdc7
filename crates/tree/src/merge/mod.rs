//! Three trees made one: what `theirs` did since `base` is done to `ours`, as a list of actions.
//!
//! Both sides are compared with the base, and only paths that theirs changed are decided ([`decide`]); then the decisions
//! are fitted together so that they make a tree ([`fit`]). A rename is a deletion and an addition here. Nothing is applied:
//! this says what would have to be done.

mod decide;
mod fit;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use crate::changes::{Options, Renames, Trust};
use crate::view::{Open, View};
use crate::walk::{self, Difference};
use crate::weave::{self, Labels, OnConflict, Woven};
use crate::{Entry, Error, Kind, Result, TEXT_BYTES, glob, lines};

/// The three views of a merge.
#[derive(Debug, Clone, Copy)]
pub struct Sides<'a> {
    /// What both began with.
    pub base: &'a View,
    /// What is to be changed.
    pub ours: &'a View,
    /// Whose changes are taken over.
    pub theirs: &'a View,
}

/// What is done about a conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// It is reported, and the path is left as it is in ours.
    #[default]
    Merge,
    /// Ours is kept; of a text only the lines in conflict, as `git merge -X ours` does.
    Ours,
    /// Theirs is taken, likewise.
    Theirs,
}

/// How a merge is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MergeOptions {
    /// Paths (with all below them) or patterns of paths that are taken over; none means all.
    pub paths: Vec<Vec<u8>>,
    /// What is done about conflicts.
    pub strategy: Strategy,
    /// What counts as the same without reading it.
    pub trust: Trust,
    /// Paths that are left out, with all below them.
    pub ignore: Vec<Vec<u8>>,
}

/// Where the bytes of a regular file come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// There are none: it is a link, a pipe or a device.
    Nothing,
    /// From ours; only metadata changes.
    Ours,
    /// From theirs.
    Theirs,
    /// From all three, by lines: [`Merge::merged`].
    Merged,
}

/// Something to do to ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Take away what is there; directories are empty by then.
    Delete {
        /// What.
        path: Vec<u8>,
    },
    /// Make a directory, or give one that is there these attributes.
    MakeDir {
        /// Where.
        path: Vec<u8>,
        /// Its mode, owner and attributes.
        entry: Entry,
    },
    /// Put something there, in place of anything of the same type.
    Put {
        /// Where.
        path: Vec<u8>,
        /// What it is, with mode, owner and attributes. The size of merged content is not known here.
        entry: Entry,
        /// Its bytes.
        content: Content,
    },
}

impl Action {
    /// Returns the path that it is about.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::Delete { path } | Self::MakeDir { path, .. } | Self::Put { path, .. } => path,
        }
    }
}

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// What is to be changed.
    Ours,
    /// Whose changes are taken over.
    Theirs,
}

/// Why the changes of both sides do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictKind {
    /// Both changed the same lines of a text, or where a link leads, or what a device is.
    BothModified,
    /// Both changed a file that is no text.
    BinaryBothModified,
    /// One changed what the other deleted.
    ModifiedDeleted {
        /// Who deleted it.
        deleted: By,
    },
    /// Both made something of another type of it.
    TypeChange,
    /// A directory on one side, something else on the other.
    DirectoryFile,
    /// Both changed the permission bits.
    ModeBothChanged,
    /// Both changed user or group.
    OwnerBothChanged,
    /// Both changed the same extended attribute.
    XattrBothChanged,
}

/// A path at which the changes of both sides do not go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Where.
    pub path: Vec<u8>,
    /// Why.
    pub kind: ConflictKind,
    /// What both began with.
    pub base: Option<Entry>,
    /// What is there.
    pub ours: Option<Entry>,
    /// What was to be taken over.
    pub theirs: Option<Entry>,
}

impl Conflict {
    /// Returns the merged text with conflict marks in the style of diff3. None: this conflict is not one of lines.
    ///
    /// # Errors
    /// What the kernel says about the content.
    pub fn marked(&self, sides: Sides<'_>, labels: Labels<'_>) -> Result<Option<Vec<u8>>> {
        let (ConflictKind::BothModified, Some(ours), Some(theirs)) =
            (self.kind, &self.ours, &self.theirs)
        else {
            return Ok(None);
        };
        let texts = Texts {
            base: &sides.base.open()?,
            ours: &sides.ours.open()?,
            theirs: &sides.theirs.open()?,
        };
        let entries = (self.base.as_ref(), ours, theirs);
        let woven = texts.weave(&self.path, entries, OnConflict::Mark(labels))?;
        Ok(woven.map(|woven| woven.text))
    }
}

/// What a merge comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merge {
    /// What is to be done to ours, in this order: deletions from the deepest up, then the rest from the top down.
    pub actions: Vec<Action>,
    /// What could not be decided; sorted by path.
    pub conflicts: Vec<Conflict>,
    /// What the strategy decided; sorted by path.
    pub resolved: Vec<Conflict>,
    strategy: Strategy,
}

impl Merge {
    /// Returns the bytes of a [`Content::Merged`]. They are made anew each time, so that they need not all be kept.
    ///
    /// # Errors
    /// [`Error::Unexpected`] where the views are not those of the merge, else what the kernel says.
    pub fn merged(&self, path: &[u8], sides: Sides<'_>) -> Result<Vec<u8>> {
        let (base, ours, theirs) = (sides.base.open()?, sides.ours.open()?, sides.theirs.open()?);
        let unexpected = || Error::Unexpected {
            path: path.to_vec(),
            expected: "a text on both sides",
        };
        let old = base.lookup(path)?;
        let one = ours.lookup(path)?.ok_or_else(unexpected)?;
        let two = theirs.lookup(path)?.ok_or_else(unexpected)?;
        let texts = Texts {
            base: &base,
            ours: &ours,
            theirs: &theirs,
        };
        let on = on_conflict(self.strategy);
        let woven = texts.weave(path, (old.as_ref(), &one, &two), on)?;
        woven.map(|woven| woven.text).ok_or_else(unexpected)
    }
}

/// Decides what must be done to `ours` so that it has what `theirs` did since `base`.
///
/// # Errors
/// What the kernel says about a path of one of them; nothing is decided then.
pub fn merge(sides: Sides<'_>, options: &MergeOptions) -> Result<Merge> {
    let compared = Options {
        trust: options.trust,
        renames: Renames::Apart,
        ignore: options.ignore.clone(),
        touched: None,
    };
    let ours = walk::differences(sides.base, sides.ours, &compared)?;
    let mut theirs = walk::differences(sides.base, sides.theirs, &compared)?;
    theirs.retain(|change| glob::selects(&options.paths, &change.path));
    let by_path: BTreeMap<Vec<u8>, Difference> = ours
        .into_iter()
        .map(|change| (change.path.clone(), change))
        .collect();
    let mut plan = Plan {
        strategy: options.strategy,
        base: sides.base.open()?,
        ours: sides.ours.open()?,
        theirs: sides.theirs.open()?,
        steps: BTreeMap::new(),
        conflicts: Vec::new(),
        disputed: BTreeSet::new(),
    };
    for change in theirs {
        plan.decide(by_path.get(&change.path), change)?;
    }
    plan.fit()?;
    Ok(plan.finish())
}

/// What is decided of one path.
#[derive(Debug, Default)]
struct Step {
    delete: bool,
    put: Option<(Entry, Content)>,
}

/// A merge in the making.
struct Plan {
    strategy: Strategy,
    base: Open,
    ours: Open,
    theirs: Open,
    steps: BTreeMap<Vec<u8>, Step>,
    conflicts: Vec<Conflict>,
    /// Paths of conflicts that are not decided for theirs: nothing of theirs is put there or below.
    disputed: BTreeSet<Vec<u8>>,
}

impl Plan {
    /// Notes a conflict, and returns whether theirs wins it.
    fn conflict(&mut self, conflict: Conflict) -> bool {
        let wins = self.strategy == Strategy::Theirs;
        if !wins {
            self.disputed.insert(conflict.path.clone());
        }
        self.conflicts.push(conflict);
        wins
    }

    fn finish(mut self) -> Merge {
        let mut actions = Vec::new();
        let deletes = self.steps.iter().rev().filter(|(_, step)| step.delete);
        actions.extend(deletes.map(|(path, _)| Action::Delete { path: path.clone() }));
        for (path, step) in self.steps {
            actions.extend(step.put.map(|(entry, content)| match entry.kind {
                Kind::Dir => Action::MakeDir { path, entry },
                _ => Action::Put {
                    path,
                    entry,
                    content,
                },
            }));
        }
        self.conflicts.sort_by(|one, two| one.path.cmp(&two.path));
        let (conflicts, resolved) = match self.strategy {
            Strategy::Merge => (self.conflicts, Vec::new()),
            Strategy::Ours | Strategy::Theirs => (Vec::new(), self.conflicts),
        };
        Merge {
            actions,
            conflicts,
            resolved,
            strategy: self.strategy,
        }
    }
}

fn on_conflict(strategy: Strategy) -> OnConflict<'static> {
    match strategy {
        Strategy::Ours => OnConflict::Ours,
        Strategy::Theirs => OnConflict::Theirs,
        Strategy::Merge => OnConflict::Mark(Labels {
            ours: "ours",
            base: "base",
            theirs: "theirs",
        }),
    }
}

/// The three views, open, to read the texts of one path.
struct Texts<'a> {
    base: &'a Open,
    ours: &'a Open,
    theirs: &'a Open,
}

impl Texts<'_> {
    /// Merges one path. None: one of them is no text. A base of another type counts as empty.
    fn weave(
        &self,
        path: &[u8],
        (base, ours, theirs): (Option<&Entry>, &Entry, &Entry),
        on: OnConflict<'_>,
    ) -> Result<Option<Woven>> {
        let base = match base {
            Some(entry) if entry.kind == Kind::File => text(self.base, path, entry)?,
            _ => Some(Vec::new()),
        };
        let (Some(base), Some(ours), Some(theirs)) = (
            base,
            text(self.ours, path, ours)?,
            text(self.theirs, path, theirs)?,
        ) else {
            return Ok(None);
        };
        Ok(Some(weave::weave(&base, &ours, &theirs, on)))
    }
}

/// Reads a text. None: it is binary, too large, or no file.
fn text(view: &Open, path: &[u8], entry: &Entry) -> Result<Option<Vec<u8>>> {
    if entry.kind != Kind::File || entry.size > TEXT_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    view.content(path, entry)?
        .take(TEXT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", path))?;
    let is_text = bytes.len() as u64 <= TEXT_BYTES && !lines::is_binary(&bytes);
    Ok(is_text.then_some(bytes))
}
