//! The changes of a compose into a directory: a tar stream that can also say that something is gone.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path};

use tar::Entry;

use super::tar_in::{Owners, unpack_as};
use super::{Error, failed};

/// The pax record of an entry that stands for a deletion.
const DELETE: &str = "DURABLE.delete";

/// Applies `input` to `dir`.
pub(super) fn apply(dir: &Path, input: impl Read) -> Result<(), Error> {
    unpack_as(dir, input, Owners::Stream)
}

pub(super) fn is_deletion(entry: &mut Entry<'_, impl Read>) -> io::Result<bool> {
    let Some(records) = entry.pax_extensions()? else {
        return Ok(false);
    };
    for record in records {
        if record?.key() == Ok(DELETE) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what is at `path` below `dir`; what is not there is removed already. A link on the way is not followed.
pub(super) fn remove(dir: &Path, path: &Path) -> Result<(), Error> {
    let mut at = dir.to_owned();
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            continue;
        };
        at.push(name);
        let found = match fs::symlink_metadata(&at) {
            Ok(found) => found,
            Err(absent) if absent.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(other) => return Err(failed("look at", &at)(other)),
        };
        if parts.peek().is_some() {
            if !found.is_dir() {
                return Ok(());
            }
            continue;
        }
        let removed = if found.is_dir() {
            fs::remove_dir_all(&at)
        } else {
            fs::remove_file(&at)
        };
        return removed.map_err(failed("remove", &at));
    }
    Ok(())
}
