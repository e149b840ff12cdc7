//! Walking a tree that somebody else may be changing at the same time.
//!
//! Every open goes from the root's descriptor and follows no link, so a sandbox that swaps a directory for a link to the
//! host's `/etc` gets nothing copied from there. What vanishes under our hands is left out.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};
use rustix::io::Errno;

use crate::{Error, Result};

/// A point in a file system's time: seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Stamp {
    pub(super) sec: i64,
    pub(super) nsec: i64,
}

impl Stamp {
    pub(super) fn ctime(found: &Metadata) -> Self {
        Self {
            sec: found.ctime(),
            nsec: found.ctime_nsec(),
        }
    }
}

/// One file of a tree, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Below the root; empty for the root itself.
    pub(super) path: OsString,
    pub(super) ino: u64,
    /// Type and permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u64,
    pub(super) size: u64,
    pub(super) rdev: u64,
    pub(super) mtime: Stamp,
    pub(super) ctime: Stamp,
    /// Whether a change after it was copied could carry this same `ctime`.
    pub(super) racy: bool,
}

impl Entry {
    fn new(path: OsString, found: &rustix::fs::Stat) -> Self {
        Self {
            path,
            ino: found.st_ino,
            mode: found.st_mode,
            uid: found.st_uid,
            gid: found.st_gid,
            nlink: found.st_nlink,
            size: u64::try_from(found.st_size).unwrap_or(0),
            rdev: found.st_rdev,
            mtime: Stamp {
                sec: found.st_mtime,
                nsec: nanos(found.st_mtime_nsec),
            },
            ctime: Stamp {
                sec: found.st_ctime,
                nsec: nanos(found.st_ctime_nsec),
            },
            racy: false,
        }
    }

    pub(super) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Whether nothing of the file changed, its content included, as far as stamps tell.
    pub(super) fn same(&self, other: &Self) -> bool {
        // Mounting an overlay stamps the root; its attributes are compared one by one.
        let stamped = self.path.is_empty() || self.ctime == other.ctime;
        let own = (
            self.ino, self.mode, self.uid, self.gid, self.nlink, self.size, self.rdev, self.mtime,
        );
        stamped
            && self.path == other.path
            && own
                == (
                    other.ino,
                    other.mode,
                    other.uid,
                    other.gid,
                    other.nlink,
                    other.size,
                    other.rdev,
                    other.mtime,
                )
    }
}

/// The kernel's nanoseconds are below 10⁹, whatever the type.
fn nanos<T: TryInto<i64>>(value: T) -> i64 {
    value.try_into().unwrap_or(0)
}

/// Whether two walks saw the same.
pub(super) fn same(one: &[Entry], other: &[Entry]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.same(other))
}

/// An open tree.
#[derive(Debug)]
pub(super) struct Tree {
    path: PathBuf,
    root: OwnedFd,
}

impl Tree {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let root = File::open(&path).map_err(Error::io("open", &path))?;
        Ok(Self {
            path,
            root: root.into(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything on its file system to disk.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(self.root.as_fd()).map_err(|e| Error::errno("sync", &self.path, e))
    }

    /// Opens what is at `path` now, no link followed. None: it is not there any more, or the way to it is not.
    pub(super) fn find(&self, path: &OsStr, flags: OFlags) -> Result<Option<OwnedFd>> {
        let path = if path.is_empty() {
            OsStr::new(".")
        } else {
            path
        };
        let inside = ResolveFlags::BENEATH
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::NO_XDEV;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match openat2(&self.root, path, flags, Mode::empty(), inside) {
                Ok(fd) => return Ok(Some(fd)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
                // A rename elsewhere in the tree raced with the look-up.
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::ACCESS) => return Err(self.unreadable(path)),
                Err(errno) => return Err(Error::errno("open", self.path.join(path), errno)),
            }
        }
    }

    fn unreadable(&self, path: &OsStr) -> Error {
        let found = statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW);
        let (uid, mode) = found.map_or((0, 0), |found| (found.st_uid, found.st_mode & 0o7777));
        Error::Unreadable {
            path: self.path.join(path),
            uid,
            mode,
        }
    }

    /// Looks at every file, sorted by path: a directory comes before what is in it.
    pub(super) fn walk(&self) -> Result<Vec<Entry>> {
        let look = |path: &OsStr, errno| Error::errno("look at", self.path.join(path), errno);
        let top = rustix::fs::fstat(&self.root).map_err(|e| look(OsStr::new(""), e))?;
        let mut entries = vec![Entry::new(OsString::new(), &top)];
        let mut dirs = vec![OsString::new()];
        while let Some(dir) = dirs.pop() {
            let Some(fd) = self.find(&dir, OFlags::RDONLY | OFlags::DIRECTORY)? else {
                continue;
            };
            let mut list = Dir::read_from(&fd).map_err(|e| look(&dir, e))?;
            while let Some(entry) = list.read() {
                let entry = entry.map_err(|e| look(&dir, e))?;
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                let found = match statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    found => found.map_err(|e| look(&dir, e))?,
                };
                let path = join(&dir, name.to_bytes());
                if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                    dirs.push(path.clone());
                }
                entries.push(Entry::new(path, &found));
            }
        }
        entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(entries)
    }
}

fn join(dir: &OsStr, name: &[u8]) -> OsString {
    let mut path = dir.as_bytes().to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    OsString::from_vec(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sandbox that swaps a directory for a link, after it was looked at, must not get the host's files into a cut.
    #[test]
    fn no_link_is_followed_out_of_the_tree_or_inside_it() {
        let dir = tempfile::TempDir::with_prefix("workspace-test-").unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for made in [&root, &root.join("real"), &outside] {
            fs::create_dir(made).unwrap();
        }
        fs::write(outside.join("file"), "the host's").unwrap();
        fs::write(root.join("real/file"), "ours").unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("upwards")).unwrap();
        symlink("real", root.join("inside")).unwrap();
        let tree = Tree::open(root).unwrap();
        let find = |path: &str, flags| tree.find(OsStr::new(path), flags).unwrap();
        assert!(find("real/file", OFlags::PATH).is_some());
        for link in ["absolute", "upwards", "inside"] {
            assert!(
                find(&format!("{link}/file"), OFlags::PATH).is_none(),
                "{link}"
            );
            assert!(
                find(link, OFlags::RDONLY | OFlags::DIRECTORY).is_none(),
                "{link}"
            );
            let itself = rustix::fs::fstat(find(link, OFlags::PATH).unwrap()).unwrap();
            assert_eq!(FileType::from_raw_mode(itself.st_mode), FileType::Symlink);
        }
        assert!(find("../outside/file", OFlags::PATH).is_none());
    }
}
