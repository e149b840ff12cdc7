//! The changes of a compose into a directory: all of them or none.
//!
//! Whatever the stream brings is first made in a directory of our own ([`Stage`]). Only when the stream has come to its
//! marked end, and each path is still as the merge saw it, are things removed and renamed; a signal waits for that. What
//! can be known to fail is known before. A `kill -9` in the midst of the renames still leaves some of them done.

mod records;
mod stage;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tar::{Archive, EntryType};

use self::records::{Meta, Records};
use self::stage::Stage;
use super::ending::{Ending, Left};
use super::{Error, failed};

/// Something to do to one path.
struct Step {
    path: PathBuf,
    /// What the merge saw there.
    was: String,
    what: What,
}

enum What {
    Remove,
    /// A directory, under this name in the stage. One that is there only gets the attributes.
    Directory(String, Meta),
    /// Anything else.
    Put(String),
}

/// Applies `input` to `dir`.
pub(super) fn apply(dir: &Path, input: impl Read) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(|e| failed("open directory", dir)(e.into()))?;
    let ending = Ending::watch()?;
    let mut stage = Stage::new(dir, &ending)?;
    let steps = staged(&mut stage, input)?;
    let tree = Tree { dir, root };
    tree.check(&steps)?;
    stage.reserve(&steps)?;
    let mut left = ending.lock();
    tree.check(&steps)?;
    stage.release();
    let done = tree.commit(&steps, &stage);
    stage.remove();
    if done.is_ok() {
        *left = Left::Done;
    }
    done.map_err(|error| Error::Midway(Box::new(error)))
}

/// Makes all that the stream brings in the stage.
fn staged(stage: &mut Stage, mut input: impl Read) -> Result<Vec<Step>, Error> {
    let broken = |e| Error::Stream("read the changes", e);
    let mut archive = Archive::new(&mut input);
    let mut steps = Vec::new();
    let mut records = Records::default();
    let mut is_whole = false;
    // Raw: the library takes a record to end with its line, and values may hold several.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::XHeader => {
                records = Records::read(&mut entry).map_err(broken)?;
                continue;
            }
            EntryType::XGlobalHeader => {
                let global = Records::read(&mut entry).map_err(broken)?;
                is_whole = global.get(b"DURABLE.end").is_some();
                continue;
            }
            _ => {}
        }
        let records = std::mem::take(&mut records);
        let path = match records.get(b"path") {
            Some(path) => path.to_vec(),
            None => entry.path_bytes().into_owned(),
        };
        let path = inside(&path)?;
        let was = records.get(b"DURABLE.was").map(String::from_utf8_lossy);
        let was = was.unwrap_or_default().into_owned();
        let what = if records.get(b"DURABLE.delete").is_some() {
            What::Remove
        } else {
            let meta = Meta::of(entry.header(), &records).map_err(broken)?;
            let link = match records.get(b"linkpath") {
                Some(link) => link.to_vec(),
                None => entry.link_name_bytes().unwrap_or_default().into_owned(),
            };
            match kind {
                EntryType::Directory => What::Directory(stage.directory(&path, &meta)?, meta),
                EntryType::Link => What::Put(stage.link(&path, &inside(&link)?)?),
                EntryType::Symlink => What::Put(stage.symlink(&path, &link, &meta)?),
                EntryType::Fifo => What::Put(stage.node(&path, FileType::Fifo, 0, &meta)?),
                EntryType::Char | EntryType::Block => {
                    let header = entry.header();
                    let major = header.device_major().map_err(broken)?.unwrap_or(0);
                    let minor = header.device_minor().map_err(broken)?.unwrap_or(0);
                    let device = rustix::fs::makedev(major, minor);
                    let kind = match kind {
                        EntryType::Char => FileType::CharacterDevice,
                        _ => FileType::BlockDevice,
                    };
                    What::Put(stage.node(&path, kind, device, &meta)?)
                }
                _ => {
                    let size = entry.size();
                    What::Put(stage.file(&path, &mut entry, size, &meta)?)
                }
            }
        };
        steps.push(Step { path, was, what });
    }
    if !is_whole {
        return Err(broken(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "they were cut off; nothing was changed",
        )));
    }
    // The archive ends before its padding; a writer must not meet a closed pipe.
    io::copy(&mut input, &mut io::sink()).map_err(broken)?;
    Ok(steps)
}

/// Returns a path of the stream as one below the directory; empty for that itself.
fn inside(path: &[u8]) -> Result<PathBuf, Error> {
    let path = Path::new(OsStr::from_bytes(path));
    super::tar_in::check(path)?;
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    Ok(names.collect())
}

/// What is to be changed.
struct Tree<'a> {
    dir: &'a Path,
    root: OwnedFd,
}

impl Tree<'_> {
    /// Whether all is as the merge saw it, and each step can be taken.
    fn check(&self, steps: &[Step]) -> Result<(), Error> {
        let removed: BTreeSet<&Path> = steps
            .iter()
            .filter(|step| matches!(step.what, What::Remove))
            .map(|step| step.path.as_path())
            .collect();
        let made: BTreeSet<&Path> = steps
            .iter()
            .filter(|step| matches!(step.what, What::Directory(..)) && step.was != "d")
            .map(|step| step.path.as_path())
            .collect();
        for step in steps {
            let Some(parent) = step.path.parent() else {
                continue;
            };
            if made.contains(parent) {
                if step.was != "absent" {
                    return Err(self.changed(&step.path));
                }
                continue;
            }
            let home = match self.open(parent) {
                Ok(home) => home,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    return Err(self.changed(&step.path));
                }
                Err(errno) => return Err(self.failed("reach", &step.path)(errno)),
            };
            let now =
                present(&home, base(&step.path)).map_err(self.failed("look at", &step.path))?;
            if now != step.was {
                return Err(self.changed(&step.path));
            }
            let is_dir = step.was == "d";
            match &step.what {
                What::Remove if is_dir => self.check_empties(&home, &step.path, &removed)?,
                What::Put(_) if is_dir && !removed.contains(step.path.as_path()) => {
                    return Err(self.failed("replace", &step.path)(Errno::ISDIR));
                }
                What::Directory(..)
                    if !is_dir && now != "absent" && !removed.contains(step.path.as_path()) =>
                {
                    return Err(self.failed("create directory", &step.path)(Errno::NOTDIR));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether all that is in a directory is to be removed too.
    fn check_empties(
        &self,
        home: &OwnedFd,
        path: &Path,
        removed: &BTreeSet<&Path>,
    ) -> Result<(), Error> {
        let failed = || self.failed("list", path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(home, base(path), flags, Mode::empty()).map_err(failed())?;
        for entry in Dir::new(dir).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let name = entry.file_name().to_bytes();
            let child = path.join(OsStr::from_bytes(name));
            if !matches!(name, b"." | b"..") && !removed.contains(child.as_path()) {
                return Err(self.changed(&child));
            }
        }
        Ok(())
    }

    fn commit(&self, steps: &[Step], stage: &Stage) -> Result<(), Error> {
        for step in steps {
            let Some(parent) = step.path.parent() else {
                continue;
            };
            let home = self
                .open(parent)
                .map_err(self.failed("reach", &step.path))?;
            let name = base(&step.path);
            match &step.what {
                What::Remove => {
                    let flags = if step.was == "d" {
                        AtFlags::REMOVEDIR
                    } else {
                        AtFlags::empty()
                    };
                    match rustix::fs::unlinkat(&home, name, flags) {
                        Err(Errno::NOENT) => {}
                        other => other.map_err(self.failed("remove", &step.path))?,
                    }
                }
                What::Directory(..) if step.was == "d" => {}
                What::Directory(staged, _) | What::Put(staged) => {
                    let flags = match step.what {
                        What::Directory(..) => RenameFlags::NOREPLACE,
                        _ => RenameFlags::empty(),
                    };
                    rustix::fs::renameat_with(&stage.fd, staged, &home, name, flags)
                        .map_err(self.failed("replace", &step.path))?;
                }
            }
        }
        // Times last: what is put into a directory is a write to it.
        for step in steps.iter().rev() {
            if let What::Directory(_, meta) = &step.what {
                let dir = self
                    .open_to_change(&step.path)
                    .map_err(self.failed("open directory", &step.path))?;
                meta.dress_directory(&dir)
                    .map_err(failed("set the attributes of", self.dir.join(&step.path)))?;
            }
        }
        Ok(())
    }

    /// Opens a directory on the way to which no link lies and no other file system.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_as(path, OFlags::PATH)
    }

    fn open_to_change(&self, path: &Path) -> Result<File, Errno> {
        self.open_as(path, OFlags::RDONLY).map(File::from)
    }

    fn open_as(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    fn changed(&self, path: &Path) -> Error {
        Error::Meanwhile(self.dir.join(path))
    }

    fn failed(&self, verb: &'static str, path: &Path) -> impl FnOnce(Errno) -> Error {
        let path = self.dir.join(path);
        move |errno| failed(verb, path)(errno.into())
    }
}

fn base(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(OsStr::new("."))
}

/// Says what is at a name in the words of the stream.
fn present(home: &OwnedFd, name: &OsStr) -> Result<String, Errno> {
    match rustix::fs::statat(home, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(words(&stat)),
        Err(Errno::NOENT) => Ok("absent".to_owned()),
        Err(errno) => Err(errno),
    }
}

fn words(stat: &Stat) -> String {
    let letter = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => return "d".to_owned(),
        FileType::RegularFile => 'f',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Unknown => '?',
    };
    let (mode, size) = (stat.st_mode & 0o7777, stat.st_size);
    format!(
        "{letter} {mode:o} {size} {}.{:09}",
        stat.st_mtime, stat.st_mtime_nsec
    )
}

#[cfg(test)]
mod tests;
