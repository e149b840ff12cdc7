//! A place in a tree that stays reachable however deep it is.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};

const DIRECTORY: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A name in an open directory.
#[derive(Clone)]
pub(crate) struct Place {
    dir: Rc<OwnedFd>,
    name: OsString,
}

impl Place {
    /// The top of a tree.
    pub(crate) fn top(path: &Path) -> io::Result<Self> {
        Ok(Self {
            dir: Rc::new(rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?),
            name: ".".into(),
        })
    }

    /// A name in this directory.
    pub(crate) fn enter(&self) -> io::Result<Rc<OwnedFd>> {
        let open = rustix::fs::openat(&*self.dir, &self.name, DIRECTORY, Mode::empty())?;
        Ok(Rc::new(open))
    }

    pub(crate) fn below(dir: &Rc<OwnedFd>, name: OsString) -> Self {
        Self {
            dir: Rc::clone(dir),
            name,
        }
    }

    /// Another name beside this one.
    pub(crate) fn beside(&self, name: &OsStr) -> Self {
        Self::below(&self.dir, name.to_owned())
    }

    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    pub(crate) fn is_top(&self) -> bool {
        self.name == "."
    }

    /// A path that the kernel takes, whatever lies above the directory.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd())).join(&self.name)
    }

    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::statat(
            &*self.dir,
            &self.name,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// The names in this directory, in order.
    pub(crate) fn children(&self) -> io::Result<Vec<Self>> {
        let dir = self.enter()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rustix::fs::openat(&*dir, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(listing)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names
            .into_iter()
            .map(|name| Self::below(&dir, name))
            .collect())
    }
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
