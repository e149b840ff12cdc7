//! Applies the entries of layers to a tree.
//!
//! The union is that of the image specification: a later layer's entry replaces an earlier one's, directories are merged,
//! a whiteout takes away what *lower* layers put there and nothing of its own layer, wherever in the layer it stands.
//! Left out with a note: device nodes (a sandbox has its own `/dev`, and an overlay would take one of them for a
//! whiteout) and extended attributes other than `security.capability` and `user.*`. Refused: everything that no honest
//! layer does, such as `..` in a name. A symbolic link in an entry's parent leads where it would lead inside the image.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timestamps, chmodat, fchmod, futimens, linkat, mkdirat,
    mknodat, openat, symlinkat,
};
use rustix::io::Errno;

use super::error::LayerError;
use super::meta::{Meta, Notes, clear_xattrs};
use super::tar::{Entry, Kind};
use super::tree::{self, Keep, Missing, Place, Tree, kind_of, os};
use crate::limits::Limits;
use crate::text::shown;

const WHITEOUT: &[u8] = b".wh.";
/// Names of the union file system that the format comes from; one of them has a meaning.
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const COPY_BUFFER: usize = 256 << 10;

/// How a path of the present layer came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// It has an entry.
    Stated,
    /// Something below it has.
    Passed,
}

/// A tree under construction.
pub(crate) struct Applier {
    tree: Tree,
    limits: Limits,
    notes: Notes,
    layer: usize,
    /// What the present layer has put there; the first one needs no memory of it, for nothing lies below.
    touched: HashMap<Vec<u8>, Touch>,
    /// Directories change their times as long as something is put into them, and must stay open to us.
    dirs: BTreeMap<Vec<u8>, (Mode, Timestamps)>,
    entries: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Applier {
    /// Begins with an empty directory.
    pub(crate) fn new(root: OwnedFd, limits: Limits) -> Self {
        Self {
            tree: Tree::new(root, limits),
            limits,
            notes: Notes::default(),
            layer: 0,
            touched: HashMap::new(),
            dirs: BTreeMap::new(),
            entries: 0,
            bytes: 0,
            buffer: vec![0; COPY_BUFFER],
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn begin_layer(&mut self) {
        self.layer += 1;
        self.touched.clear();
    }

    /// Applies one entry; its data is read from `data`.
    pub(crate) fn entry(
        &mut self,
        mut entry: Entry,
        data: &mut impl Read,
    ) -> Result<(), LayerError> {
        let names = self.names(&entry.path)?;
        let Some((name, parent)) = names.split_last() else {
            return self.root(entry);
        };
        let (name, parent) = (name.to_vec(), parent.join(&b'/'));
        if let Some(marked) = names.iter().position(|name| name.starts_with(WHITEOUT)) {
            return self.whiteout(&entry.path, &names, marked, &parent);
        }
        self.spend(1, &entry.path)?;
        let meta = Meta::of(&mut entry, &mut self.notes)?;
        let Some(place) = self.tree.place(&parent, Missing::Make)? else {
            return Err(LayerError::refused(
                &entry.path,
                "its directory cannot be made",
            ));
        };
        let made = self.tree.take_made();
        self.spend(made, &entry.path)?;
        let path = joined(&place.path, &name);
        // Links may have led deeper than the entry's own name.
        self.names(&path)?;
        let target = Target { place, name, path };
        match entry.kind {
            Kind::File => self.file(&entry, &target, &meta, data)?,
            Kind::Directory => self.directory(&target, meta)?,
            Kind::Symlink => self.symlink(&entry, &target, &meta)?,
            Kind::HardLink => self.hard_link(&entry, &target)?,
            Kind::Fifo => self.fifo(&target, &meta)?,
            Kind::Device => {
                self.clear(&target)?;
                self.notes
                    .add(|| format!("{}: device node left out", shown(&target.path)));
                return Ok(());
            }
        }
        self.touch(&target.path);
        Ok(())
    }

    /// Sets what had to wait, and returns the notes.
    pub(crate) fn finish(self) -> Result<Vec<String>, LayerError> {
        for (path, (mode, times)) in self.dirs.iter().rev() {
            let dir = self
                .tree
                .open_plain(path)
                .map_err(LayerError::io("open the directory", path))?;
            if !self.tree.is_root() {
                fchmod(&dir, *mode).map_err(LayerError::io("set the mode of", path))?;
            }
            futimens(&dir, times).map_err(LayerError::io("set the time of", path))?;
        }
        Ok(self.notes.into_lines())
    }

    fn root(&mut self, mut entry: Entry) -> Result<(), LayerError> {
        if entry.kind != Kind::Directory {
            return Err(LayerError::refused(
                &entry.path,
                "it would replace the root directory",
            ));
        }
        let meta = Meta::of(&mut entry, &mut self.notes)?;
        let fd = self
            .tree
            .open_plain(b"")
            .map_err(LayerError::io("open the directory", b"/"))?;
        self.describe(&fd, b"", meta)
    }

    fn file(
        &mut self,
        entry: &Entry,
        target: &Target,
        meta: &Meta,
        data: &mut impl Read,
    ) -> Result<(), LayerError> {
        let size = entry
            .sparse
            .as_ref()
            .map_or(entry.data, |map| map.real_size);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.max_unpacked_bytes {
            let allowed = self.limits.max_unpacked_bytes;
            return Err(LayerError::limit(
                "max_unpacked_bytes",
                allowed,
                &target.path,
            ));
        }
        let fd = self.make(target, "make the file", |place, name| {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&*place.fd, os(name), flags, Mode::RUSR | Mode::WUSR)
        })?;
        let mut file = File::from(fd);
        match &entry.sparse {
            None => self.copy(&mut file, data, entry.data, &target.path)?,
            Some(map) => {
                let io = |e| io_failed("write", &target.path, e);
                for &(offset, length) in &map.segments {
                    file.seek(SeekFrom::Start(offset)).map_err(io)?;
                    self.copy(&mut file, data, length, &target.path)?;
                }
                file.set_len(map.real_size).map_err(io)?;
            }
        }
        meta.set(
            &file.into(),
            &target.path,
            self.tree.is_root(),
            &mut self.notes,
        )
    }

    fn copy(
        &mut self,
        file: &mut File,
        data: &mut impl Read,
        length: u64,
        path: &[u8],
    ) -> Result<(), LayerError> {
        let mut left = length;
        while left > 0 {
            let wanted = usize::try_from(left)
                .unwrap_or(COPY_BUFFER)
                .min(COPY_BUFFER);
            let count = match data.read(&mut self.buffer[..wanted]) {
                Ok(0) => {
                    return Err(LayerError::malformed(
                        "a file's data is shorter than its map",
                    ));
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LayerError::from_reader(error)),
            };
            file.write_all(&self.buffer[..count])
                .map_err(|e| io_failed("write", path, e))?;
            left -= count as u64;
        }
        Ok(())
    }

    fn directory(&mut self, target: &Target, meta: Meta) -> Result<(), LayerError> {
        let Target { place, name, path } = target;
        let there = kind_of(&*place.fd, name).map_err(LayerError::io("look at", path))?;
        if there != Some(FileType::Directory) {
            self.make(target, "make the directory", |place, name| {
                mkdirat(&*place.fd, os(name), Mode::RWXU)
            })?;
        }
        let fd =
            tree::open_child(place, name).map_err(LayerError::io("open the directory", path))?;
        self.describe(&fd, path, meta)
    }

    /// Gives a directory the metadata of its entry in place of what it had.
    fn describe(&mut self, fd: &OwnedFd, path: &[u8], meta: Meta) -> Result<(), LayerError> {
        clear_xattrs(fd).map_err(LayerError::io("remove the attributes of", path))?;
        self.dirs.insert(path.to_vec(), (meta.mode(), meta.times()));
        let is_root = self.tree.is_root();
        let meta = if is_root {
            meta
        } else {
            meta.opened_for_owner()
        };
        meta.set(fd, path, is_root, &mut self.notes)
    }

    fn symlink(&mut self, entry: &Entry, target: &Target, meta: &Meta) -> Result<(), LayerError> {
        if entry.link.is_empty()
            || entry.link.contains(&0)
            || entry.link.len() > self.limits.max_path_bytes
        {
            return Err(LayerError::refused(
                &entry.path,
                "it is a symbolic link to no possible name",
            ));
        }
        self.make(target, "make the link", |place, name| {
            symlinkat(os(&entry.link), &*place.fd, os(name))
        })?;
        meta.set_by_name(
            &target.place,
            &target.name,
            &target.path,
            self.tree.is_root(),
            &mut self.notes,
        )
    }

    /// A hard link shares what the layers have put there; where its name leads is resolved as an entry's is.
    fn hard_link(&mut self, entry: &Entry, target: &Target) -> Result<(), LayerError> {
        let missing =
            || LayerError::refused(&entry.path, "it is a hard link to nothing in the image");
        let names = self.names(&entry.link)?;
        let (name, parent) = names.split_last().ok_or_else(missing)?;
        let from = self
            .tree
            .place(&parent.join(&b'/'), Missing::Leave)?
            .ok_or_else(missing)?;
        let from_path = joined(&from.path, name);
        match kind_of(&*from.fd, name).map_err(LayerError::io("look at", &from_path))? {
            None => return Err(missing()),
            Some(FileType::Directory) => {
                return Err(LayerError::refused(
                    &entry.path,
                    "it is a hard link to a directory",
                ));
            }
            Some(_) => {}
        }
        if from_path == target.path {
            return Ok(());
        }
        self.make(target, "make the link", |place, new| {
            linkat(&*from.fd, os(name), &*place.fd, os(new), AtFlags::empty())
        })
        .map_err(|error| match error {
            // It was inside of what it replaced.
            LayerError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => missing(),
            error => error,
        })
    }

    fn fifo(&mut self, target: &Target, meta: &Meta) -> Result<(), LayerError> {
        self.make(target, "make the pipe", |place, name| {
            mknodat(
                &*place.fd,
                os(name),
                FileType::Fifo,
                Mode::RUSR | Mode::WUSR,
                0,
            )
        })?;
        let Target { place, name, path } = target;
        meta.set_by_name(place, name, path, self.tree.is_root(), &mut self.notes)?;
        chmodat(&*place.fd, os(name), meta.mode(), AtFlags::empty())
            .map_err(LayerError::io("set the mode of", path))
    }

    /// Makes something new under a name; what bore it goes first. Nothing is ever written through a name.
    fn make<T>(
        &mut self,
        target: &Target,
        doing: &'static str,
        make: impl Fn(&Place, &[u8]) -> Result<T, Errno>,
    ) -> Result<T, LayerError> {
        match make(&target.place, &target.name) {
            Err(Errno::EXIST) => {
                self.clear(target)?;
                make(&target.place, &target.name)
            }
            made => made,
        }
        .map_err(LayerError::io(doing, &target.path))
    }

    fn clear(&mut self, target: &Target) -> Result<(), LayerError> {
        let removed = self.tree.remove(&target.place, &target.name);
        if removed.map_err(LayerError::io("replace", &target.path))? == Some(FileType::Directory) {
            self.forget(&target.path);
        }
        Ok(())
    }

    /// Forgets what was said of a directory and of all below it.
    fn forget(&mut self, path: &[u8]) {
        self.dirs.remove(path);
        let (from, to) = (joined(path, b""), [path, b"0"].concat());
        let below: Vec<_> = self
            .dirs
            .range(from..to)
            .map(|(path, _)| path.clone())
            .collect();
        for path in below {
            self.dirs.remove(&path);
        }
    }

    fn whiteout(
        &mut self,
        path: &[u8],
        names: &[&[u8]],
        marked: usize,
        parent: &[u8],
    ) -> Result<(), LayerError> {
        let is_last = marked + 1 == names.len();
        let name = names[marked];
        let hidden = &name[WHITEOUT.len()..];
        let opaque = is_last && name == OPAQUE;
        if name.starts_with(RESERVED) && !opaque {
            // Housekeeping of the file system that the format comes from.
            return Ok(());
        }
        if !is_last {
            return Err(LayerError::refused(path, "it lies in a whiteout"));
        }
        if !opaque && matches!(hidden, b"" | b"." | b"..") {
            return Err(LayerError::refused(
                path,
                "it is a whiteout of no possible name",
            ));
        }
        if self.layer <= 1 {
            return Ok(());
        }
        // Nothing is made for a whiteout: where there is no directory there is nothing to hide.
        let Some(place) = self.tree.place(parent, Missing::Leave)? else {
            return Ok(());
        };
        if opaque {
            return self.hide_below(&place, path);
        }
        let name = hidden.to_vec();
        let target = Target {
            path: joined(&place.path, &name),
            place,
            name,
        };
        let Some(touch) = self.touched.get(&target.path).copied() else {
            return self.clear(&target);
        };
        let there = kind_of(&*target.place.fd, &target.name)
            .map_err(LayerError::io("look at", &target.path))?;
        if there == Some(FileType::Directory) {
            // This layer's own directory of that name stays, without what it had from below.
            if touch == Touch::Passed {
                let (place, name) = (&target.place, &target.name);
                tree::plain_metadata(&place.fd, name, self.tree.is_root())
                    .map_err(LayerError::io("reset", &target.path))?;
                self.dirs.remove(&target.path);
            }
            if let Some(place) = self.tree.place(&target.path, Missing::Leave)? {
                self.hide_below(&place, path)?;
            }
        }
        Ok(())
    }

    /// Takes away what lower layers have put into a directory.
    fn hide_below(&mut self, place: &Place, path: &[u8]) -> Result<(), LayerError> {
        let is_root = self.tree.is_root();
        let (touched, mut gone) = (&self.touched, Vec::new());
        let pruned = self.tree.prune(place, &mut |path, place, name| {
            let is_dir = || Ok(kind_of(&*place.fd, name)? == Some(FileType::Directory));
            match touched.get(path) {
                None => {
                    gone.push(path.to_vec());
                    Ok(Keep::No)
                }
                Some(_) if !is_dir()? => Ok(Keep::Yes),
                Some(Touch::Stated) => Ok(Keep::Within),
                Some(Touch::Passed) => {
                    tree::plain_metadata(&place.fd, name, is_root)?;
                    gone.push(path.to_vec());
                    Ok(Keep::Within)
                }
            }
        });
        pruned.map_err(LayerError::io("hide what is below", path))?;
        for path in gone {
            // Of a directory that stays, what stays below it keeps what was said of it.
            match self.touched.get(&path) {
                Some(_) => drop(self.dirs.remove(&path)),
                None => self.forget(&path),
            }
        }
        Ok(())
    }

    fn touch(&mut self, path: &[u8]) {
        if self.layer <= 1 {
            return;
        }
        self.touched.insert(path.to_vec(), Touch::Stated);
        let mut path = path;
        while let Some(end) = path.iter().rposition(|&b| b == b'/') {
            path = &path[..end];
            if self.touched.contains_key(path) {
                break;
            }
            self.touched.insert(path.to_vec(), Touch::Passed);
        }
    }

    fn spend(&mut self, entries: u64, path: &[u8]) -> Result<(), LayerError> {
        self.entries += entries;
        if self.entries > self.limits.max_entries {
            return Err(LayerError::limit(
                "max_entries",
                self.limits.max_entries,
                path,
            ));
        }
        Ok(())
    }

    /// Splits a name as it stands in a layer. A leading slash and `.` mean nothing; `..` is refused.
    fn names<'p>(&self, path: &'p [u8]) -> Result<Vec<&'p [u8]>, LayerError> {
        if path.contains(&0) {
            return Err(LayerError::refused(
                path,
                "there is a zero byte in its name",
            ));
        }
        if path.len() > self.limits.max_path_bytes {
            // Counted first: a path of a hundred thousand names is refused by what is wrong with it.
            let depth = path
                .split(|&b| b == b'/')
                .filter(|name| !name.is_empty())
                .count();
            if depth > self.limits.max_depth {
                return Err(LayerError::limit(
                    "max_depth",
                    self.limits.max_depth as u64,
                    path,
                ));
            }
            return Err(LayerError::limit(
                "max_path_bytes",
                self.limits.max_path_bytes as u64,
                path,
            ));
        }
        let mut names = Vec::new();
        for name in path.split(|&b| b == b'/') {
            if name.is_empty() || name == b"." {
                continue;
            }
            if name == b".." {
                return Err(LayerError::refused(path, "its name leads upwards"));
            }
            if name.len() > self.limits.max_name_bytes {
                return Err(LayerError::limit(
                    "max_name_bytes",
                    self.limits.max_name_bytes as u64,
                    path,
                ));
            }
            names.push(name);
        }
        if names.len() > self.limits.max_depth {
            return Err(LayerError::limit(
                "max_depth",
                self.limits.max_depth as u64,
                path,
            ));
        }
        Ok(names)
    }
}

/// Where an entry goes: a directory without links on its way, and a name in it.
struct Target {
    place: Place,
    name: Vec<u8>,
    path: Vec<u8>,
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    [path, b"/", name].concat()
}

fn io_failed(doing: &'static str, path: &[u8], source: io::Error) -> LayerError {
    LayerError::Io {
        doing,
        path: shown(path),
        source,
    }
}
