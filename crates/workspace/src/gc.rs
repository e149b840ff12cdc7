//! Comparing what is in a pool with what the journals name; the same for both engines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use protocol::{CutId, WorkspaceId};

use crate::names::{Names, ids_in};
use crate::{Error, Keep, Pool, Result, Swept, Usage};

/// Removes every head and cut that is not named and tells which named ones are missing.
pub(crate) fn sweep(pool: &dyn Pool, names: &Names, keep: &[Keep]) -> Result<Swept> {
    let mut swept = Swept::default();
    // The same workspace may be named twice: as the head of one branch and for the cuts of another.
    let mut wanted: BTreeMap<&WorkspaceId, (bool, BTreeSet<&CutId>)> = BTreeMap::new();
    for kept in keep {
        let (head, cuts) = wanted.entry(&kept.workspace).or_default();
        *head |= kept.head;
        cuts.extend(&kept.cuts);
    }
    let heads: BTreeSet<WorkspaceId> = ids_in(&names.heads())?.into_iter().collect();
    for head in &heads {
        if !wanted.get(head).is_some_and(|(wanted, _)| *wanted) {
            pool.retire(head)?;
            swept.heads.push(head.clone());
        }
    }
    for workspace in ids_in::<WorkspaceId>(&names.cuts())? {
        let dir = names.cuts_of(&workspace);
        for cut in ids_in::<CutId>(&dir)? {
            if !wanted
                .get(&workspace)
                .is_some_and(|(_, cuts)| cuts.contains(&cut))
            {
                pool.drop_cut(&workspace, &cut)?;
                swept.cuts.push((workspace.clone(), cut));
            }
        }
        if !wanted.contains_key(&workspace) {
            remove_empty(&dir)?;
        }
    }
    for (workspace, (head, cuts)) in wanted {
        if head && !heads.contains(workspace) {
            swept.missing_heads.push(workspace.clone());
        }
        for cut in cuts {
            if !names.cut(workspace, cut).is_dir() {
                swept.missing_cuts.push((workspace.clone(), cut.clone()));
            }
        }
    }
    swept.heads.sort();
    swept.cuts.sort();
    Ok(swept)
}

/// Counts what is there and asks the file system how full it is.
pub(crate) fn usage(names: &Names) -> Result<Usage> {
    let space =
        rustix::fs::statvfs(&names.root).map_err(|e| Error::errno("look at", &names.root, e))?;
    let mut cuts = 0;
    for workspace in ids_in::<WorkspaceId>(&names.cuts())? {
        cuts += ids_in::<CutId>(&names.cuts_of(&workspace))?.len() as u64;
    }
    Ok(Usage {
        total_bytes: space.f_blocks * space.f_frsize,
        free_bytes: space.f_bavail * space.f_frsize,
        heads: ids_in::<WorkspaceId>(&names.heads())?.len() as u64,
        cuts,
    })
}

/// Removes a directory. One that is not there, or holds what is not ours: nothing.
pub(crate) fn remove_empty(dir: &Path) -> Result<()> {
    use std::io::ErrorKind::{DirectoryNotEmpty, NotFound};
    match fs::remove_dir(dir) {
        Err(e) if !matches!(e.kind(), DirectoryNotEmpty | NotFound) => {
            Err(Error::io("remove", dir)(e))
        }
        _ => Ok(()),
    }
}
