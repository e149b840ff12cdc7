//! Which directories of a cached tree have to do with inodes that changed: one pass over what the cache has in memory, and
//! no look at the tree.

use std::collections::BTreeSet;

use crate::cache::Old;

/// What a directory has to do with the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Nothing in it or below it changed.
    Same,
    /// Something below it did.
    Below,
    /// It did itself, or one of its entries.
    Here,
}

/// For each record of a cache its directory's way; `None` if the records are no tree.
pub(crate) fn find(old: &Old, changed: &BTreeSet<u64>) -> Option<Vec<Way>> {
    let root = old.root();
    let top = root.record? as usize;
    let mut ways = vec![Way::Same; old.len()];
    let mut parents: Vec<Option<u32>> = vec![None; old.len()];
    if changed.contains(&root.ino) {
        *ways.get_mut(top)? = Way::Here;
    }
    for record in 0..u32::try_from(old.len()).ok()? {
        let mut is_tree = true;
        let mut here = false;
        old.keys(record, |ino, child| {
            let is_changed = changed.contains(&ino);
            here |= is_changed;
            let Some(child) = child else { return };
            match parents.get_mut(child as usize) {
                Some(parent @ None) if child as usize != top && old.is_used(child) => {
                    *parent = Some(record);
                }
                // It is in two directories, or is none.
                _ => is_tree = false,
            }
            if is_changed && let Some(way) = ways.get_mut(child as usize) {
                *way = Way::Here;
            }
        })
        .ok()?;
        if !is_tree {
            return None;
        }
        if here {
            ways[record as usize] = Way::Here;
        }
    }
    for record in 0..old.len() {
        let number = u32::try_from(record).ok()?;
        if record != top && old.is_used(number) && parents[record].is_none() {
            return None;
        }
        if ways[record] != Way::Here {
            continue;
        }
        let mut at = parents[record];
        while let Some(parent) = at {
            let way = &mut ways[parent as usize];
            // What is above it is marked already.
            if *way != Way::Same {
                break;
            }
            *way = Way::Below;
            at = parents[parent as usize];
        }
    }
    Some(ways)
}
