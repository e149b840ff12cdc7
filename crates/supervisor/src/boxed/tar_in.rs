//! A tar stream into a directory, and not a step out of it.
//!
//! Each regular file is written beside its place and renamed, so that a stream that breaks off, or a full disk, leaves the
//! old one.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use tar::{Archive, Entry, EntryType};

use super::ending::{self, Ending, Left};
use super::{Error, failed, stale};
use crate::words::quoted;

/// Unpacks `input` into `dir`, which is created if need be. Existing files are replaced. Owners are those of the caller.
pub(super) fn unpack(dir: &Path, mut input: impl Read) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(failed("create directory", dir))?;
    let dir = fs::canonicalize(dir).map_err(failed("open directory", dir))?;
    let mut files = Files {
        dir: &dir,
        parent: None,
        ending: Ending::watch()?,
    };
    let mut archive = Archive::new(&mut input);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(true);
    archive.set_overwrite(true);
    let broken = |e| Error::Stream("read the archive", e);
    // Directories get their modes last: one that may not be written must still be filled.
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = entry.path().map_err(broken)?.into_owned();
        check(&path)?;
        let target = dir.join(&path);
        match entry.header().entry_type() {
            EntryType::Link => {
                let to = entry.link_name().map_err(broken)?.unwrap_or_default();
                check(&to)?;
            }
            EntryType::Directory => {
                entry
                    .unpack_in(&dir)
                    .map_err(failed("create directory", &target))?;
                let mode = entry.header().mode().map_err(broken)?;
                open_up(&target, mode)?;
                directories.push((target, mode));
                continue;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse
                if !entry.path_bytes().ends_with(b"/") =>
            {
                files.replace(&path, &mut entry)?;
                continue;
            }
            _ => {}
        }
        if !entry.unpack_in(&dir).map_err(failed("unpack", &target))? {
            return Err(refused(&path, "it does not lead into the directory"));
        }
        // It may be a link in the way of what comes.
        files.parent = None;
    }
    for (path, mode) in directories.iter().rev() {
        set_mode(path, *mode)?;
    }
    // The archive ends before its padding; a writer must not meet a closed pipe.
    io::copy(&mut input, &mut io::sink()).map_err(broken)?;
    *files.ending.lock() = Left::Done;
    Ok(())
}

/// Regular files of an archive, each in one step.
struct Files<'a> {
    dir: &'a Path,
    /// The last one that was made and seen to be inside.
    parent: Option<PathBuf>,
    ending: Ending,
}

impl Files<'_> {
    fn replace(&mut self, path: &Path, entry: &mut Entry<'_, impl Read>) -> Result<(), Error> {
        let target = self.dir.join(path);
        let Some(name) = target.file_name().filter(|_| target != self.dir) else {
            return Err(refused(path, "it does not lead into the directory"));
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_deref() != Some(parent) {
            self.enter(parent)?;
        }
        let beside = OsString::from_vec(stale::beside(name.as_bytes()));
        let beside = target.with_file_name(beside);
        let mut file = {
            let mut left = self.ending.lock();
            let file = create(&beside).map_err(failed("write", &target))?;
            *left = Left::Unfinished(beside.clone());
            file
        };
        let filled = filled(&mut file, entry, &target)
            .and_then(|()| fs::rename(&beside, &target).map_err(failed("replace", &target)));
        let mut left = self.ending.lock();
        if filled.is_err() {
            ending::remove(&beside);
        }
        *left = Left::Nothing;
        filled
    }

    /// Makes the directory that a file lies in, with none of it outside.
    fn enter(&mut self, parent: &Path) -> Result<(), Error> {
        let mut at = self.dir.to_owned();
        for part in parent.components() {
            let Component::Normal(name) = part else {
                continue;
            };
            at.push(name);
            match fs::create_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(failed("create directory", &at)(error));
                }
                _ => {}
            }
            if at.is_symlink() {
                let to = fs::canonicalize(&at).map_err(failed("open directory", &at))?;
                if !to.starts_with(self.dir) {
                    return Err(refused(parent, "it does not lead into the directory"));
                }
            }
        }
        // Who may write in a directory and not list it leaves what a killed copy left.
        if let Ok(dir) = File::open(&at) {
            stale::remove(&dir);
        }
        self.parent = Some(parent.to_owned());
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Left by one that was killed: the numbers of processes come again.
            fs::remove_file(path)?;
            options.open(path)
        }
        other => other,
    }
}

fn filled(file: &mut File, entry: &mut Entry<'_, impl Read>, target: &Path) -> Result<(), Error> {
    let broken = |e| Error::Stream("read the archive", e);
    let (mode, seconds) = {
        let header = entry.header();
        (
            header.mode().map_err(broken)?,
            header.mtime().map_err(broken)?,
        )
    };
    let size = entry.size();
    fill(file, entry, size, target)?;
    file.set_permissions(mode_of(mode))
        .map_err(failed("set the mode of", target))?;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.max(1));
    file.set_modified(time)
        .map_err(failed("set the time of", target))
}

/// Writes `size` bytes; fewer are a failure.
pub(super) fn fill(
    file: &mut File,
    content: &mut impl Read,
    size: u64,
    target: &Path,
) -> Result<(), Error> {
    let mut buffer = vec![0; 256 << 10];
    let mut done = 0;
    let broken = |e| Error::Stream("read the archive", e);
    loop {
        let length = match content.read(&mut buffer) {
            Ok(0) if done == size => return Ok(()),
            Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error)),
        };
        file.write_all(&buffer[..length])
            .map_err(failed("write", target))?;
        done += length as u64;
    }
}

pub(super) fn check(path: &Path) -> Result<(), Error> {
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
    fs::set_permissions(path, mode_of(mode)).map_err(failed("set the mode of", path))
}

fn mode_of(mode: u32) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(mode & 0o7777)
}
