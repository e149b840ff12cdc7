//! The root directory that layers are applied to, and every way in which its files are reached.
//!
//! No path of a layer is ever given to the system whole. Its parent is opened below the root with `openat2`, which
//! refuses symbolic links and `..`; a link on the way is resolved here, name by name, as it would resolve inside of the
//! image, and the path without links that comes of it is opened the same way. The last name is never followed.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, readlinkat,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::error::LayerError;
use crate::limits::Limits;

/// As many links on one path as the kernel allows.
const MAX_LINKS: usize = 40;

/// What to do about a directory that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Make,
    Leave,
}

/// A directory below the root.
#[derive(Clone)]
pub(crate) struct Place {
    /// Its path without links, `.`, or slashes at its ends; empty for the root itself.
    pub(crate) path: Rc<[u8]>,
    pub(crate) fd: Rc<OwnedFd>,
}

/// A root directory that nobody else writes to.
pub(crate) struct Tree {
    root: Place,
    limits: Limits,
    is_root: bool,
    /// The parent that was asked for last: entries come by directory. Its name as asked, and the place.
    last: Option<(Vec<u8>, Place)>,
    /// Directories made on the way, not yet asked about.
    made: u64,
}

/// Opens a directory below another without a link on the way.
fn open_below(fd: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() {
        b".".as_slice()
    } else {
        path
    };
    let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    rustix::io::retry_on_intr(|| {
        openat2(
            fd.as_fd(),
            Path::new(OsStr::from_bytes(path)),
            flags,
            Mode::empty(),
            resolve,
        )
    })
}

impl Tree {
    pub(crate) fn new(root: OwnedFd, limits: Limits) -> Self {
        let root = Place {
            path: Rc::from([]),
            fd: Rc::new(root),
        };
        Self {
            root,
            limits,
            is_root: rustix::process::geteuid().is_root(),
            last: None,
            made: 0,
        }
    }

    /// Tells whether owners can be given away.
    pub(crate) fn is_root(&self) -> bool {
        self.is_root
    }

    /// Returns how many directories were made on the way since this was last asked.
    pub(crate) fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }

    /// Opens a directory, given by its path without links, so that its metadata can be set.
    pub(crate) fn open_plain(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        open_below(&*self.root.fd, path, OFlags::RDONLY)
    }

    /// Returns the directory that `path` leads to within the root.
    ///
    /// With [`Missing::Make`] it is there afterwards: what is missing, or no directory, is replaced.
    pub(crate) fn place(
        &mut self,
        path: &[u8],
        missing: Missing,
    ) -> Result<Option<Place>, LayerError> {
        if path.is_empty() {
            return Ok(Some(self.root.clone()));
        }
        if let Some((asked, place)) = &self.last
            && asked == path
        {
            return Ok(Some(place.clone()));
        }
        let place = match open_below(&*self.root.fd, path, OFlags::PATH) {
            Ok(fd) => Place {
                path: Rc::from(path),
                fd: Rc::new(fd),
            },
            Err(Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => match self.walk(path, missing)? {
                Some(place) => place,
                None => return Ok(None),
            },
            Err(errno) => return Err(LayerError::io("open the directory", path)(errno)),
        };
        self.last = Some((path.to_vec(), place.clone()));
        Ok(Some(place))
    }

    /// Goes name by name, following links as they would be followed inside.
    fn walk(&mut self, path: &[u8], missing: Missing) -> Result<Option<Place>, LayerError> {
        let io = |doing: &'static str| LayerError::io(doing, path);
        let mut todo: VecDeque<Vec<u8>> = path.split(|&b| b == b'/').map(<[u8]>::to_vec).collect();
        let mut here: Vec<Vec<u8>> = Vec::new();
        let mut fd = Rc::clone(&self.root.fd);
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name.is_empty() || name == b"." {
                continue;
            }
            if name == b".." {
                // Above the root there is only the root.
                here.pop();
                let up = open_below(&*self.root.fd, &here.join(&b'/'), OFlags::PATH);
                fd = Rc::new(up.map_err(io("open the directory"))?);
                continue;
            }
            let kind = match kind_of(&*fd, &name) {
                Ok(kind) => kind,
                Err(errno) => return Err(io("look at")(errno)),
            };
            match kind {
                Some(FileType::Directory) => {}
                Some(FileType::Symlink) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(LayerError::refused(
                            path,
                            "its path leads through a loop of symbolic links",
                        ));
                    }
                    let target =
                        readlinkat(&*fd, os(&name), Vec::new()).map_err(io("read the link"))?;
                    let target = target.as_bytes();
                    if target.starts_with(b"/") {
                        here.clear();
                        fd = Rc::clone(&self.root.fd);
                    }
                    for part in target.split(|&b| b == b'/').rev() {
                        todo.push_front(part.to_vec());
                    }
                    continue;
                }
                _ if missing == Missing::Leave => return Ok(None),
                there => {
                    if there.is_some() {
                        unlinkat(&*fd, os(&name), AtFlags::empty()).map_err(io("replace"))?;
                    }
                    self.make(&fd, &name).map_err(io("make the directory"))?;
                }
            }
            here.push(name);
            self.check(path, &here)?;
            let name = here.last().map_or(b"".as_slice(), Vec::as_slice);
            fd = Rc::new(open_below(&*fd, name, OFlags::PATH).map_err(io("open the directory"))?);
        }
        Ok(Some(Place {
            path: here.join(&b'/').into(),
            fd,
        }))
    }

    /// A path that was short as it was written may be long where its links lead.
    fn check(&self, path: &[u8], here: &[Vec<u8>]) -> Result<(), LayerError> {
        let bytes: usize = here.iter().map(|name| name.len() + 1).sum();
        if here.len() > self.limits.max_depth {
            return Err(LayerError::limit(
                "max_depth",
                self.limits.max_depth as u64,
                path,
            ));
        }
        if bytes > self.limits.max_path_bytes {
            return Err(LayerError::limit(
                "max_path_bytes",
                self.limits.max_path_bytes as u64,
                path,
            ));
        }
        Ok(())
    }

    /// Makes a directory that no entry describes.
    fn make(&mut self, fd: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        self.made += 1;
        mkdirat(fd, os(name), Mode::from_raw_mode(0o755))?;
        plain_metadata(fd, name, self.is_root)
    }

    /// Removes whatever bears the name. Returns what it was.
    pub(crate) fn remove(&mut self, place: &Place, name: &[u8]) -> Result<Option<FileType>, Errno> {
        let kind = kind_of(&*place.fd, name)?;
        if matches!(kind, Some(FileType::Directory | FileType::Symlink)) {
            // The directory asked for last may be in there, or have been reached through it.
            self.last = None;
        }
        match kind {
            None => {}
            Some(FileType::Directory) => remove_dir(&place.fd, name)?,
            Some(_) => unlinkat(&*place.fd, os(name), AtFlags::empty())?,
        }
        Ok(kind)
    }

    /// Removes from a directory what `keep` does not want, given its path; directories kept are gone through too.
    pub(crate) fn prune(&mut self, place: &Place, keep: &mut Choose<'_>) -> Result<(), Errno> {
        let fd = open_below(&*place.fd, b"", OFlags::RDONLY)?;
        for (name, _) in list(&fd)? {
            let mut path = place.path.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&name);
            match keep(&path, place, &name)? {
                Keep::No => drop(self.remove(place, &name)?),
                Keep::Yes => {}
                Keep::Within => {
                    let fd = Rc::new(open_below(&*place.fd, &name, OFlags::PATH)?);
                    let path = path.into();
                    self.prune(&Place { path, fd }, keep)?;
                }
            }
        }
        Ok(())
    }
}

/// Decides what becomes of something, given its path, the directory that it is in, and its name there.
type Choose<'c> = dyn FnMut(&[u8], &Place, &[u8]) -> Result<Keep, Errno> + 'c;

/// What becomes of something that is pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    No,
    Yes,
    /// A directory that stays; what is in it is asked about.
    Within,
}

/// Gives a directory what one without an entry has: owned by root, mode 0755.
pub(crate) fn plain_metadata(fd: &OwnedFd, name: &[u8], is_root: bool) -> Result<(), Errno> {
    let dir = open_below(fd, name, OFlags::RDONLY)?;
    if is_root {
        rustix::fs::fchown(
            &dir,
            Some(rustix::fs::Uid::ROOT),
            Some(rustix::fs::Gid::ROOT),
        )?;
    }
    super::meta::clear_xattrs(&dir)?;
    rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o755))
}

/// Opens a directory by its name, so that its metadata can be set.
pub(crate) fn open_child(place: &Place, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_below(&*place.fd, name, OFlags::RDONLY)
}

/// Returns a name as the system takes it.
pub(crate) fn os(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

/// Returns what bears the name, itself and not where it leads.
pub(crate) fn kind_of(fd: impl AsFd, name: &[u8]) -> Result<Option<FileType>, Errno> {
    match statat(fd, os(name), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Lists the names in a directory, and what the directory says that they are.
pub(crate) fn list(fd: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(names)
}

/// Removes a directory and all below it. Follows nothing, and stays on its file system.
pub(crate) fn remove_dir(parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    let dir = match open_below(parent, name, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            // Its owner may have been denied: images hold such directories.
            rustix::fs::chmodat(parent, os(name), Mode::RWXU, AtFlags::empty())?;
            open_below(parent, name, OFlags::RDONLY)?
        }
        opened => opened?,
    };
    if !rustix::process::geteuid().is_root() {
        rustix::fs::fchmod(&dir, Mode::RWXU)?;
    }
    for (name, kind) in list(&dir)? {
        let is_dir = match kind {
            FileType::Unknown => kind_of(&dir, &name)? == Some(FileType::Directory),
            kind => kind == FileType::Directory,
        };
        if is_dir {
            remove_dir(&dir, &name)?;
        } else {
            unlinkat(&dir, os(&name), AtFlags::empty())?;
        }
    }
    unlinkat(parent, os(name), AtFlags::REMOVEDIR)
}

/// Opens a directory of our own by its path.
pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, path, flags, Mode::empty())
}
