//! Questions about one path, or one number about a whole view.

use std::collections::HashSet;

use crate::changes::Trust;
use crate::compare::{self, Side};
use crate::view::{View, join};
use crate::{Kind, Result};

/// Whether one path differs between two views, for who asks of a long line of cuts which one changed it. Looks at that
/// path alone; of a directory at itself, not at what is in it.
///
/// # Errors
/// What the kernel says about the directories on the way.
pub fn entry_changed(prev: &View, next: &View, path: &[u8], trust: Trust) -> Result<bool> {
    let (prev, next) = (prev.open()?, next.open()?);
    let (before, after) = (prev.parent(path)?, next.parent(path)?);
    let found = |at: &Option<(_, &[u8])>| match at {
        Some((dir, name)) => crate::view::Merged::find(dir, name, path),
        None => Ok(None),
    };
    let (old, new) = (found(&before)?, found(&after)?);
    match (before.zip(old), after.zip(new)) {
        (None, None) => Ok(false),
        (None, Some(_)) | (Some(_), None) => Ok(true),
        (Some(((a, name), old)), Some(((b, _), new))) => {
            let a = Side {
                dir: &a,
                found: old,
            };
            let b = Side {
                dir: &b,
                found: new,
            };
            Ok(compare::entries(a, b, name, path, trust)?.is_some())
        }
    }
}

/// How much a view holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Names of anything but directories.
    pub files: u64,
    /// Bytes of content of regular files, those of several names counted once.
    pub bytes: u64,
}

/// Counts what a view holds. Walks all of it, the lower directory too.
///
/// # Errors
/// What the kernel says about a path of it.
pub fn usage(view: &View) -> Result<Usage> {
    let open = view.open()?;
    let mut usage = Usage::default();
    let mut linked = HashSet::new();
    let mut waiting = vec![(Vec::new(), open.top()?)];
    while let Some((at, shape)) = waiting.pop() {
        let dir = open.merged(&at, shape)?;
        for name in dir.names(&at)? {
            let path = join(&at, &name);
            let Some(found) = dir.find(&name, &path)? else {
                continue;
            };
            if let Some(shape) = found.dir {
                waiting.push((path, shape));
                continue;
            }
            usage.files += 1;
            let entry = found.entry;
            let first = entry.nlink < 2 || linked.insert((entry.dev, entry.ino));
            if entry.kind == Kind::File && first {
                usage.bytes += entry.size;
            }
        }
    }
    Ok(usage)
}
