//! Finding and making mount points in a root that somebody else may have filled with links.
//!
//! Every look-up starts at the new root, takes `/` and `..` as that root's, and refuses the links of procfs. What a
//! hostile image can reach with a link is therefore only another place in itself.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MoveMountFlags;

use crate::Error;

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Attaches a detached mount on top of the mount or directory that `point` refers to.
pub(super) fn attach(mount: BorrowedFd<'_>, point: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, c"", point, c"", flags)?)
}

/// Attaches a detached mount at `path` below the directory `at`, which must be ours: no link is expected there.
pub(super) fn attach_at(mount: BorrowedFd<'_>, at: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let point = rustix::fs::openat2(
        at,
        path,
        OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )?;
    attach(mount, point.as_fd())
}

/// The root that is being furnished.
#[derive(Debug)]
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// Opens the directory at `path`, making what is missing with `mode`.
    pub(super) fn directory(&self, path: &Path, mode: u32) -> Result<OwnedFd, Error> {
        self.make(path, mode, MAX_LINKS).map_err(|e| {
            Error::step(
                format!("have a directory {} in the image", path.display()),
                e,
            )
        })
    }

    /// Attaches a detached mount at `path`, making the directory if it is missing.
    pub(super) fn mount(&self, mount: BorrowedFd<'_>, path: &Path) -> Result<(), Error> {
        let point = self.directory(path, 0o755)?;
        attach(mount, point.as_fd())
            .map_err(|e| Error::step(format!("mount {}", path.display()), e))
    }

    /// Opens what is at `path`, of whatever kind; `None` where nothing is.
    pub(super) fn existing(&self, path: &Path) -> Result<Option<OwnedFd>, Error> {
        let found = rustix::fs::openat2(
            &self.0,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(Error::step(format!("look for {}", path.display()), error)),
        }
    }

    /// Reads the regular file at `path`; `None` where there is none that can be read, or one of more than `most` bytes.
    pub(super) fn read(&self, path: &Path, most: u64) -> Option<Vec<u8>> {
        let file = rustix::fs::openat2(
            &self.0,
            path,
            // It may be a pipe, or a terminal.
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
        .ok()?;
        let found = File::from(file);
        let is_fit = |m: &Metadata| m.is_file() && m.len() <= most;
        found.metadata().ok().filter(is_fit)?;
        let mut bytes = Vec::new();
        found.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns the names in the directory at `path`, of `most` at most; none where there is no such directory.
    pub(super) fn entries(&self, path: &Path, most: usize) -> Vec<PathBuf> {
        let directory = rustix::fs::openat2(
            &self.0,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        let Ok(entries) = directory.and_then(rustix::fs::Dir::new) else {
            return Vec::new();
        };
        let names = entries.map_while(Result::ok);
        let names =
            names.map(|entry| PathBuf::from(OsStr::from_bytes(entry.file_name().to_bytes())));
        let names = names.filter(|name| !matches!(name.as_os_str().as_bytes(), b"." | b".."));
        names.take(most).collect()
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        rustix::fs::openat2(
            &self.0,
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    }

    fn make(&self, path: &Path, mode: u32, links: u32) -> io::Result<OwnedFd> {
        match self.open(path) {
            Err(Errno::NOENT) => {}
            done => return Ok(done?),
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let directory = self.make(parent, 0o755, links)?;
        match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(mode)) {
            Ok(()) => Ok(self.open(path)?),
            // There is a link that leads nowhere yet (images of ostree systems have them): make what it names.
            Err(Errno::EXIST) if links > 0 => {
                let target = rustix::fs::readlinkat(&directory, name, Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                self.make(&join(parent, target), mode, links - 1)
            }
            Err(Errno::EXIST) => Err(Errno::LOOP.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Joins a link's text to the directory that it is in.
fn join(parent: &Path, target: &Path) -> PathBuf {
    if target.is_absolute() {
        target.to_owned()
    } else {
        parent.join(target)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("root");
        std::fs::create_dir(&inside).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&inside, flags, Mode::empty()).unwrap();
        (dir, Root::new(fd))
    }

    #[test]
    fn links_never_lead_out_of_the_root() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        symlink("../../../outside", inside.join("up")).unwrap();
        symlink(dir.path().join("absolute"), inside.join("abs")).unwrap();
        root.directory(Path::new("/up/x"), 0o755).unwrap();
        root.directory(Path::new("/abs"), 0o755).unwrap();
        assert!(inside.join("outside/x").is_dir());
        let names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["root"]);
    }

    #[test]
    fn only_regular_files_of_some_length_are_read_and_none_of_outside() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        std::fs::write(dir.path().join("file"), "outside").unwrap();
        std::fs::write(inside.join("file"), "inside").unwrap();
        symlink("../file", inside.join("up")).unwrap();
        symlink(dir.path().join("file"), inside.join("abs")).unwrap();
        let pipe = inside.join("pipe");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let read = |path: &str, most| root.read(Path::new(path), most);
        assert_eq!(read("/file", 6), Some(b"inside".to_vec()));
        assert_eq!(read("/up", 6), Some(b"inside".to_vec()));
        for (path, most) in [("/file", 5), ("/abs", 9), ("/pipe", 9), ("/", 9), ("/x", 9)] {
            assert_eq!(read(path, most), None, "{path}");
        }
    }

    #[test]
    fn a_link_of_procfs_is_refused() {
        let (dir, root) = root();
        let proc = rustix::mount::open_tree(
            rustix::fs::CWD,
            "/proc/self",
            rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC,
        )
        .unwrap();
        drop(root);
        let root = Root::new(proc);
        assert!(root.directory(Path::new("/cwd"), 0o755).is_err());
        assert!(root.directory(Path::new("/root/tmp"), 0o755).is_err());
        drop(dir);
    }

    #[test]
    fn a_loop_of_links_and_a_file_in_the_way_are_errors() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        symlink("b", inside.join("a")).unwrap();
        symlink("a", inside.join("b")).unwrap();
        std::fs::write(inside.join("file"), "").unwrap();
        assert!(root.directory(Path::new("/a"), 0o755).is_err());
        assert!(root.directory(Path::new("/file"), 0o755).is_err());
        assert!(root.directory(Path::new("/file/x"), 0o755).is_err());
    }
}
