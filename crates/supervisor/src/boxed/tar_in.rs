//! A tar stream into a directory, and not a step out of it.

use std::fs;
use std::io::Read;
use std::path::{Component, Path};

use tar::{Archive, EntryType};

use super::{Error, failed};
use crate::words::quoted;

/// Whose files it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owners {
    /// The caller's.
    Caller,
    /// Those that the stream names, extended attributes with them.
    Stream,
}

/// Unpacks `input` into `dir`, which is created if need be. Existing files are replaced. Owners are those of the caller.
pub(super) fn unpack(dir: &Path, input: impl Read) -> Result<(), Error> {
    unpack_as(dir, input, Owners::Caller)
}

/// Unpacks as `owners` says. What an entry marks as deleted is removed, with all below it.
pub(super) fn unpack_as(dir: &Path, mut input: impl Read, owners: Owners) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(failed("create directory", dir))?;
    let dir = fs::canonicalize(dir).map_err(failed("open directory", dir))?;
    let mut archive = Archive::new(&mut input);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_overwrite(true);
    archive.set_preserve_ownerships(owners == Owners::Stream);
    archive.set_unpack_xattrs(owners == Owners::Stream);
    let broken = |e| Error::Stream("read the archive", e);
    // Directories get their modes last: one that may not be written must still be filled.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        check(&path)?;
        if owners == Owners::Stream && super::apply::is_deletion(&mut entry).map_err(broken)? {
            super::apply::remove(&dir, &path)?;
            continue;
        }
        let kind = entry.header().entry_type();
        if kind == EntryType::Link {
            let target = entry.link_name().map_err(broken)?.unwrap_or_default();
            check(&target)?;
        }
        if kind == EntryType::Directory {
            let target = dir.join(&path);
            entry
                .unpack_in(&dir)
                .map_err(failed("create directory", &target))?;
            let mode = entry.header().mode().map_err(broken)?;
            open_up(&target, mode)?;
            directories.push((target, mode));
            continue;
        }
        let target = dir.join(&path);
        if !entry.unpack_in(&dir).map_err(failed("unpack", &target))? {
            return Err(refused(&path, "it does not lead into the directory"));
        }
    }
    for (path, mode) in directories.iter().rev() {
        set_mode(path, *mode)?;
    }
    // The archive ends before its padding; a writer must not meet a closed pipe.
    std::io::copy(&mut input, &mut std::io::sink())
        .map_err(|e| Error::Stream("read the archive", e))?;
    Ok(())
}

fn check(path: &Path) -> Result<(), Error> {
    for component in path.components() {
        match component {
            Component::Normal(_) | Component::CurDir => {}
            Component::ParentDir => return Err(refused(path, "it contains `..`")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(refused(path, "it is absolute"));
            }
        }
    }
    Ok(())
}

fn refused(path: &Path, why: &'static str) -> Error {
    Error::Refused(quoted(&path.to_string_lossy()), why)
}

fn open_up(path: &Path, mode: u32) -> Result<(), Error> {
    set_mode(path, mode | 0o700)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let permissions = fs::Permissions::from_mode(mode & 0o7777);
    fs::set_permissions(path, permissions).map_err(failed("set the mode of", path))
}
