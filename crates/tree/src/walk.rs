//! Walks two views side by side and tells every path at which they differ.
//!
//! Where both have the same lower directory below a path, only names of the two uppers are looked at: the cost is that of
//! what was written, not of the image. Where it is known which places of the uppers can differ, it is that of what changed. Directories wait as paths and are opened one at a time, so a tree may be deeper
//! than there are file descriptors.

use std::collections::BTreeSet;

use crate::changes::Options;
use crate::compare::{self, Side, What};
use crate::error::MOST_PATHS;
use crate::view::{Found, Merged, Open, Shape, View, join};
use crate::{Entry, Error, Result};

/// A path at which two views differ.
pub(crate) struct Difference {
    pub(crate) path: Vec<u8>,
    pub(crate) what: What,
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

/// A directory in at least one of the views that has not been looked into.
struct Waiting {
    path: Vec<u8>,
    a: Option<Shape>,
    b: Option<Shape>,
    /// The uppers are known to differ at touched places only.
    is_known: bool,
}

/// Walks both views and returns the differences, sorted by path.
pub(crate) fn differences(a: &View, b: &View, options: &Options) -> Result<Vec<Difference>> {
    let walk = Walk {
        shared: a.shares_lower(b),
        a: a.open()?,
        b: b.open()?,
        ignored: options.ignore.iter().map(Vec::as_slice).collect(),
        options,
    };
    let mut found = Vec::new();
    walk.top(&mut found)?;
    let (a, b) = (Some(walk.a.top()?), Some(walk.b.top()?));
    let mut waiting = vec![Waiting {
        path: Vec::new(),
        a,
        b,
        is_known: walk.shared && is_the_same(a, b),
    }];
    let (mut told, mut bytes) = (0, 0);
    while let Some(next) = waiting.pop() {
        walk.directory(&next, &mut waiting, &mut found)?;
        bytes += found[told..]
            .iter()
            .map(|one| one.path.len())
            .sum::<usize>();
        told = found.len();
        if bytes > MOST_PATHS {
            return Err(Error::TooMuch { path: next.path });
        }
    }
    found.sort_by(|one, two| one.path.cmp(&two.path));
    Ok(found)
}

/// Whether a directory is made up of the same ones in both: the one inode in two snapshots, over the same lower one.
fn is_the_same(a: Option<Shape>, b: Option<Shape>) -> bool {
    a.is_some_and(Shape::has_upper) && a == b
}

struct Walk<'a> {
    a: Open,
    b: Open,
    shared: bool,
    ignored: BTreeSet<&'a [u8]>,
    options: &'a Options,
}

impl Walk<'_> {
    /// Compares the tops themselves. Their path is empty.
    fn top(&self, found: &mut Vec<Difference>) -> Result<()> {
        let (a, b) = (
            self.a.merged(b"", self.a.top()?)?,
            self.b.merged(b"", self.b.top()?)?,
        );
        self.name(b".", b"", (Some(&a), Some(&b)), found).map(drop)
    }

    fn directory(
        &self,
        at: &Waiting,
        waiting: &mut Vec<Waiting>,
        found: &mut Vec<Difference>,
    ) -> Result<()> {
        let open = |view: &Open, shape: Option<Shape>| {
            shape.map(|shape| view.merged(&at.path, shape)).transpose()
        };
        let (a, b) = (open(&self.a, at.a)?, open(&self.b, at.b)?);
        let both_lower = at.a.is_some_and(|a| a.lower) && at.b.is_some_and(|b| b.lower);
        let touched = self.options.touched.as_ref().filter(|_| at.is_known);
        let names = match touched {
            Some(touched) if !touched.is_place(&at.path) => touched.ways(&at.path),
            _ => {
                let mut names = BTreeSet::new();
                for dir in [&a, &b].into_iter().flatten() {
                    names.append(&mut match self.shared && both_lower {
                        true => dir.upper_names(&at.path)?,
                        false => dir.names(&at.path)?,
                    });
                }
                names
            }
        };
        for name in names {
            let path = join(&at.path, &name);
            if self.ignored.contains(path.as_slice()) {
                continue;
            }
            let (a, b) = self.name(&name, &path, (a.as_ref(), b.as_ref()), found)?;
            let is_known = at.is_known && is_the_same(a, b);
            let is_untouched = is_known && touched.is_some_and(|touched| !touched.reaches(&path));
            if (a.is_some() || b.is_some()) && !self.is_one(a, b) && !is_untouched {
                waiting.push(Waiting {
                    path,
                    a,
                    b,
                    is_known,
                });
            }
        }
        Ok(())
    }

    /// Whether a directory in both is the lower one's and nothing else.
    fn is_one(&self, a: Option<Shape>, b: Option<Shape>) -> bool {
        let untouched = |shape: Option<Shape>| shape.is_some_and(|shape| !shape.has_upper());
        self.shared && untouched(a) && untouched(b)
    }

    /// Compares one name, and returns the shapes of the directories that it stands for.
    fn name(
        &self,
        name: &[u8],
        path: &[u8],
        (a, b): (Option<&Merged>, Option<&Merged>),
        found: &mut Vec<Difference>,
    ) -> Result<(Option<Shape>, Option<Shape>)> {
        let find = |dir: Option<&Merged>| match dir {
            Some(dir) => dir.find(name, path),
            None => Ok(None),
        };
        let shape = |found: &Option<Found>| found.as_ref().and_then(|found| found.dir);
        let (before, after) = (find(a)?, find(b)?);
        let shapes = (shape(&before), shape(&after));
        let difference = match (a.zip(before), b.zip(after)) {
            (None, None) => None,
            (Some((dir, gone)), None) => Some((
                What::default(),
                Some(dir.complete(gone.entry, name, path)?),
                None,
            )),
            (None, Some((dir, new))) => Some((
                What::default(),
                None,
                Some(dir.complete(new.entry, name, path)?),
            )),
            (Some((a, before)), Some((b, after))) => {
                let a = Side {
                    dir: a,
                    found: before,
                };
                let b = Side {
                    dir: b,
                    found: after,
                };
                compare::entries(a, b, name, path, self.options.trust)?
                    .map(|(what, before, after)| (what, Some(before), Some(after)))
            }
        };
        found.extend(difference.map(|(what, before, after)| Difference {
            path: path.to_vec(),
            what,
            before,
            after,
        }));
        Ok(shapes)
    }
}
