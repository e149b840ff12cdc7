//! A merged read-only view of an overlay's directories, as a mount of them would show it.
//!
//! An entry of the upper directory hides the lower one's of the same name; two directories merge, unless the upper is
//! opaque. A character device 0:0, or an empty file with the attribute `overlay.whiteout`, hides and is not seen itself.
//! Redirected directories and metadata-only files are not read: our mounts make none.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use crate::layer::{self, Root};
use crate::{Entry, Error, Kind, Layer, Result};

/// A name in a directory, and what it stands for.
pub type Named = (Vec<u8>, Entry);

/// An upper directory over a lower one. Either may be missing: a plain directory is a view too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// What was written: a cut, or a workspace's own.
    pub upper: Option<PathBuf>,
    /// What it was written over: the image. Two views that name the same path here are compared by their uppers alone.
    pub lower: Option<PathBuf>,
}

impl View {
    /// Returns what is at `path`, which has no slash at its ends and is empty for the top. None: nothing is.
    ///
    /// # Errors
    /// What the kernel says about the directories on the way.
    pub fn lookup(&self, path: &[u8]) -> Result<Option<Entry>> {
        self.open()?.lookup(path)
    }

    /// Returns what is in the directory at `path`, sorted by name. None: there is no directory.
    ///
    /// # Errors
    /// What the kernel says about the directories on the way and the names in it.
    pub fn list(&self, path: &[u8]) -> Result<Option<Vec<Named>>> {
        let open = self.open()?;
        let Some(shape) = open.shape(path)? else {
            return Ok(None);
        };
        let merged = open.merged(path, shape)?;
        let mut list = Vec::new();
        for name in merged.names(path)? {
            let path = join(path, &name);
            if let Some(found) = merged.find(&name, &path)? {
                let entry = merged.complete(found.entry, &name, &path)?;
                list.push((name, entry));
            }
        }
        Ok(Some(list))
    }

    /// Opens the content of a regular file whose entry this view gave.
    ///
    /// # Errors
    /// [`Error::Unexpected`] where it is no regular file, else what the kernel says.
    pub fn content(&self, path: &[u8], entry: &Entry) -> Result<File> {
        self.open()?.content(path, entry)
    }

    pub(crate) fn open(&self) -> Result<Open> {
        let root = |path: &Option<PathBuf>| path.as_deref().map(Root::open).transpose();
        Ok(Open {
            upper: root(&self.upper)?,
            lower: root(&self.lower)?,
        })
    }

    /// Whether what neither upper touches is the same in both.
    pub(crate) fn shares_lower(&self, other: &Self) -> bool {
        self.lower.is_some() && self.lower == other.lower
    }
}

/// Joins a directory's path and a name in it.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend(dir);
    path.push(b'/');
    path.extend(name);
    path
}

/// Splits a path into the directory's and the name in it.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Whether each part of a path is a name, so that it can be in a tree.
fn is_inside(path: &[u8]) -> bool {
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    path.is_empty() || path.split(|&byte| byte == b'/').all(is_name)
}

/// Which directories of a view make up one directory of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The upper directory's inode; 0 where the upper has none.
    pub(crate) upper_ino: u64,
    pub(crate) lower: bool,
}

impl Shape {
    pub(crate) fn has_upper(self) -> bool {
        self.upper_ino != 0
    }
}

/// A view whose tops are open.
#[derive(Debug)]
pub(crate) struct Open {
    upper: Option<Root>,
    lower: Option<Root>,
}

impl Open {
    /// The shape of the top.
    pub(crate) fn top(&self) -> Result<Shape> {
        let upper = self.upper.as_ref();
        let opaque = match upper {
            Some(root) if self.lower.is_some() => is_opaque(root.dir(b"")?.as_fd(), b".", b"")?,
            _ => false,
        };
        let upper_ino = match upper {
            Some(root) => root.ino()?,
            None => 0,
        };
        Ok(Shape {
            upper_ino,
            lower: self.lower.is_some() && !opaque,
        })
    }

    /// Opens a directory of a known shape.
    pub(crate) fn merged(&self, path: &[u8], shape: Shape) -> Result<Merged> {
        let open = |root: &Option<Root>, wanted: bool| match root {
            Some(root) if wanted => root.dir(path).map(Some),
            _ => Ok(None),
        };
        Ok(Merged {
            upper: open(&self.upper, shape.has_upper())?,
            lower: open(&self.lower, shape.lower)?,
        })
    }

    /// Finds the shape of a directory. None: there is no directory.
    pub(crate) fn shape(&self, path: &[u8]) -> Result<Option<Shape>> {
        if !is_inside(path) {
            return Ok(None);
        }
        let mut shape = self.top()?;
        let mut done = 0;
        while done < path.len() {
            let at = path[..done].strip_suffix(b"/").unwrap_or(&path[..done]);
            let end = path[done..]
                .iter()
                .position(|&byte| byte == b'/')
                .map_or(path.len(), |len| done + len);
            match self
                .merged(at, shape)?
                .find(&path[done..end], &path[..end])?
            {
                Some(Found {
                    dir: Some(next), ..
                }) => shape = next,
                _ => return Ok(None),
            }
            done = end + 1;
        }
        Ok(Some(shape))
    }

    /// Opens the directory that `path` lies in, and returns the name in it.
    pub(crate) fn parent<'p>(&self, path: &'p [u8]) -> Result<Option<(Merged, &'p [u8])>> {
        let (dir, name) = split(path);
        let inside = is_inside(path).then(|| self.shape(dir)).transpose()?;
        let Some(shape) = inside.flatten() else {
            return Ok(None);
        };
        let name = if path.is_empty() { b"." } else { name };
        Ok(Some((self.merged(dir, shape)?, name)))
    }

    /// Returns what is at a path, with target and attributes.
    pub(crate) fn lookup(&self, path: &[u8]) -> Result<Option<Entry>> {
        let Some((merged, name)) = self.parent(path)? else {
            return Ok(None);
        };
        let Some(found) = merged.find(name, path)? else {
            return Ok(None);
        };
        merged.complete(found.entry, name, path).map(Some)
    }

    /// Opens a regular file in the layer that its entry says.
    pub(crate) fn content(&self, path: &[u8], entry: &Entry) -> Result<File> {
        let root = match entry.layer {
            Layer::Upper => &self.upper,
            Layer::Lower => &self.lower,
        };
        match root {
            Some(root) => root.file(path),
            None => Err(Error::Unexpected {
                path: path.to_vec(),
                expected: "in this view",
            }),
        }
    }
}

/// A directory of a view, open in each layer that it has.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) upper: Option<OwnedFd>,
    pub(crate) lower: Option<OwnedFd>,
}

/// What a name in a directory stands for.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    /// Of a directory: what makes it up.
    pub(crate) dir: Option<Shape>,
}

impl Merged {
    /// Lists the names in either layer, whiteouts among them.
    pub(crate) fn names(&self, path: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = self.upper_names(path)?;
        if let Some(lower) = &self.lower {
            names.extend(layer::names_in(lower.as_fd(), path)?);
        }
        Ok(names)
    }

    /// Lists the names in the upper layer, whiteouts among them.
    pub(crate) fn upper_names(&self, path: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
        match &self.upper {
            Some(upper) => Ok(layer::names_in(upper.as_fd(), path)?.into_iter().collect()),
            None => Ok(BTreeSet::new()),
        }
    }

    /// Finds a name, without its target and attributes. `path` is for messages.
    pub(crate) fn find(&self, name: &[u8], path: &[u8]) -> Result<Option<Found>> {
        if let Some(upper) = &self.upper
            && let Some(stat) = layer::stat_in(upper.as_fd(), name, path)?
        {
            let entry = Entry::of(&stat, Layer::Upper);
            if is_whiteout(upper.as_fd(), name, &entry, path)? {
                return Ok(None);
            }
            let dir = match entry.kind {
                Kind::Dir => Some(Shape {
                    upper_ino: entry.ino,
                    lower: self.merges(upper.as_fd(), name, path)?,
                }),
                _ => None,
            };
            return Ok(Some(Found { entry, dir }));
        }
        let Some(lower) = &self.lower else {
            return Ok(None);
        };
        let Some(stat) = layer::stat_in(lower.as_fd(), name, path)? else {
            return Ok(None);
        };
        let entry = Entry::of(&stat, Layer::Lower);
        if is_whiteout(lower.as_fd(), name, &entry, path)? {
            return Ok(None);
        }
        let dir = (entry.kind == Kind::Dir).then_some(Shape {
            upper_ino: 0,
            lower: true,
        });
        Ok(Some(Found { entry, dir }))
    }

    /// Whether a directory of the upper layer has one of the lower below it.
    fn merges(&self, upper: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<bool> {
        let Some(lower) = &self.lower else {
            return Ok(false);
        };
        let below = layer::stat_in(lower.as_fd(), name, path)?
            .is_some_and(|stat| Entry::of(&stat, Layer::Lower).kind == Kind::Dir);
        Ok(below && !is_opaque(upper, name, path)?)
    }

    /// The open directory that an entry of it lies in.
    pub(crate) fn home(&self, layer: Layer, path: &[u8]) -> Result<BorrowedFd<'_>> {
        let home = match layer {
            Layer::Upper => &self.upper,
            Layer::Lower => &self.lower,
        };
        home.as_ref()
            .map(AsFd::as_fd)
            .ok_or_else(|| Error::Unexpected {
                path: path.to_vec(),
                expected: "in this directory",
            })
    }

    /// Adds target and attributes.
    pub(crate) fn complete(&self, mut entry: Entry, name: &[u8], path: &[u8]) -> Result<Entry> {
        let home = self.home(entry.layer, path)?;
        if entry.kind == Kind::Symlink {
            entry.target = layer::target_in(home, name, path)?;
        }
        entry.xattrs = layer::xattrs_in(home, name, path)?;
        Ok(entry)
    }
}

/// Overlays that users mount keep their marks in `user.`, others in `trusted.`, which only root can read.
fn mark(
    dir: BorrowedFd<'_>,
    name: &[u8],
    marks: [&str; 2],
    path: &[u8],
) -> Result<Option<Vec<u8>>> {
    match layer::xattr_in(dir, name, marks[0], path)? {
        Some(value) => Ok(Some(value)),
        None => layer::xattr_in(dir, name, marks[1], path),
    }
}

fn is_opaque(dir: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> Result<bool> {
    let marks = ["user.overlay.opaque", "trusted.overlay.opaque"];
    // Another value, "x", says that there may be whiteouts that are attributes.
    Ok(mark(dir, name, marks, path)?.is_some_and(|value| value == b"y"))
}

fn is_whiteout(dir: BorrowedFd<'_>, name: &[u8], entry: &Entry, path: &[u8]) -> Result<bool> {
    match entry.kind {
        Kind::CharDevice => Ok(entry.rdev == 0),
        Kind::File if entry.size == 0 => {
            let marks = ["user.overlay.whiteout", "trusted.overlay.whiteout"];
            Ok(mark(dir, name, marks, path)?.is_some())
        }
        _ => Ok(false),
    }
}
