//! The directory in which a compose makes what it will put in place: beside all else, closed to others, gone afterwards.
//!
//! Its name is fixed, so that nobody takes it for somebody's file: the engine leaves it out of differences. Its lock tells
//! one that is in use from what a killed helper left.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::records::Meta;
use super::{Step, What};
use crate::boxed::ending::{self, Ending, Left};
use crate::boxed::{Error, failed};

const NAME: &str = ".durable-compose";
/// A directory that is copied up, or gets a block more, and what goes with it.
const A_CHANGE: usize = 4096;
const FEW_CHANGES: usize = 64 << 10;
const TRIES: usize = 10;

pub(super) struct Stage {
    path: PathBuf,
    /// Holds the lock.
    pub(super) fd: OwnedFd,
    next: u64,
    /// Under which name here a path of the tree is.
    names: HashMap<PathBuf, String>,
    reserve: Option<PathBuf>,
}

impl Stage {
    pub(super) fn new(dir: &Path, ending: &Ending) -> Result<Self, Error> {
        let path = dir.join(NAME);
        // A signal waits until it is clear whose the directory is.
        let mut left = ending.lock();
        let fd = locked(&path)?;
        let stage = Self {
            path: path.clone(),
            fd,
            next: 0,
            names: HashMap::new(),
            reserve: None,
        };
        stage.empty()?;
        *left = Left::Unfinished(path);
        Ok(stage)
    }

    fn empty(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.path).map_err(failed("list", &self.path))? {
            ending::remove(&entry.map_err(failed("list", &self.path))?.path());
        }
        Ok(())
    }

    fn add(&mut self, of: &Path) -> (String, PathBuf) {
        let name = self.next.to_string();
        self.next += 1;
        self.names.insert(of.to_owned(), name.clone());
        let path = self.path.join(&name);
        (name, path)
    }

    pub(super) fn directory(&mut self, of: &Path, meta: &Meta) -> Result<String, Error> {
        let (name, path) = self.add(of);
        fs::create_dir(&path).map_err(failed("create directory", of))?;
        // It is dressed again in its place; that it can be is known from now on.
        meta.dress(&path, false)
            .map_err(failed("set the attributes of", of))?;
        Ok(name)
    }

    pub(super) fn file(
        &mut self,
        of: &Path,
        content: &mut impl Read,
        size: u64,
        meta: &Meta,
    ) -> Result<String, Error> {
        let (name, path) = self.add(of);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("write", of))?;
        crate::boxed::tar_in::fill(&mut file, content, size, of)?;
        meta.dress(&path, false)
            .map_err(failed("set the attributes of", of))?;
        Ok(name)
    }

    /// Another name of a file that came before.
    pub(super) fn link(&mut self, of: &Path, to: &Path) -> Result<String, Error> {
        let Some(first) = self.names.get(to).cloned() else {
            return Err(failed("link to", to)(io::ErrorKind::NotFound.into()));
        };
        let (name, path) = self.add(of);
        fs::hard_link(self.path.join(first), path).map_err(failed("link", of))?;
        Ok(name)
    }

    pub(super) fn symlink(
        &mut self,
        of: &Path,
        target: &[u8],
        meta: &Meta,
    ) -> Result<String, Error> {
        let (name, path) = self.add(of);
        symlink(OsStr::from_bytes(target), &path).map_err(failed("link", of))?;
        meta.dress(&path, true)
            .map_err(failed("set the attributes of", of))?;
        Ok(name)
    }

    /// A pipe or a device.
    pub(super) fn node(
        &mut self,
        of: &Path,
        kind: FileType,
        device: u64,
        meta: &Meta,
    ) -> Result<String, Error> {
        let (name, path) = self.add(of);
        rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(0o600), device)
            .map_err(|e| failed("create", of)(e.into()))?;
        meta.dress(&path, false)
            .map_err(failed("set the attributes of", of))?;
        Ok(name)
    }

    /// Sees to it that the renames have room, which they need for the directories that they change. Who only removes may
    /// do so on a full disk.
    pub(super) fn reserve(&mut self, steps: &[Step]) -> Result<(), Error> {
        if self.next == 0 {
            return Ok(());
        }
        let changed: BTreeSet<&Path> = steps
            .iter()
            .flat_map(|step| match step.what {
                What::Directory(..) => [Some(step.path.as_path()), step.path.parent()],
                _ => [None, step.path.parent()],
            })
            .flatten()
            .collect();
        let path = self.path.join("room");
        self.reserve = Some(path.clone());
        let bytes = vec![0xa5; changed.len() * A_CHANGE + FEW_CHANGES];
        let mut file = fs::File::create(&path).map_err(failed("make room for", NAME))?;
        file.write_all(&bytes)
            .map_err(failed("make room for", NAME))
    }

    pub(super) fn release(&mut self) {
        if let Some(path) = self.reserve.take() {
            ending::remove(&path);
        }
    }

    pub(super) fn remove(&self) {
        ending::remove(&self.path);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Makes the directory, or takes over one that nobody uses.
fn locked(path: &Path) -> Result<OwnedFd, Error> {
    let failed = |errno: Errno| failed("make", path)(errno.into());
    for _ in 0..TRIES {
        match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
            Err(Errno::EXIST) => {}
            other => other.map_err(failed)?,
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            other => other.map_err(failed)?,
        };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => return Err(Error::Usage("another compose is writing here")),
            other => other.map_err(failed)?,
        }
        // Its last user may have removed it meanwhile.
        let held = rustix::fs::fstat(&fd).map_err(failed)?;
        match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                return Ok(fd);
            }
            _ => {}
        }
    }
    Err(Error::Usage("another compose is writing here"))
}
