//! One thing in a tree: its type, its metadata, and what of them two entries share.

use std::collections::BTreeMap;

use rustix::fs::{FileType, Stat};

/// Names and values of extended attributes, without those that overlayfs keeps for itself.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Returns the word for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }

    /// Whether git knows such a thing.
    pub(crate) fn is_blob(self) -> bool {
        matches!(self, Self::File | Self::Symlink)
    }
}

/// Which directory of a view an entry lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// The upper one.
    Upper,
    /// The lower one.
    Lower,
}

/// A moment on the file system's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub sec: i64,
    /// Nanoseconds of that second.
    pub nsec: u32,
}

/// One thing in a tree, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, with set-id and sticky bits: 0o7777 at most.
    pub mode: u32,
    /// Owner, as the file system of the tree says.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content, or of a link's target.
    pub size: u64,
    /// When the content was last written.
    pub mtime: Time,
    /// When anything of it was last written.
    pub ctime: Time,
    /// File system; with `ino` and `layer` the identity of a hard link group.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// How many names it has.
    pub nlink: u64,
    /// What a device stands for.
    pub rdev: u64,
    /// Where a symbolic link leads; empty for anything else.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// The directory of the view that it lies in.
    pub layer: Layer,
}

impl Entry {
    /// Makes one of what `stat` says, without target and attributes.
    pub(crate) fn of(stat: &Stat, layer: Layer) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            FileType::RegularFile | FileType::Unknown => Kind::File,
        };
        let time = |sec: i64, nsec: u64| Time {
            sec,
            nsec: u32::try_from(nsec).unwrap_or(0),
        };
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size.cast_unsigned(),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            dev: stat.st_dev,
            ino: stat.st_ino,
            nlink: stat.st_nlink,
            rdev: stat.st_rdev,
            target: Vec::new(),
            xattrs: Xattrs::new(),
            layer,
        }
    }

    /// Whether both are one inode of one file system, so that nothing can differ.
    pub(crate) fn is_same_inode(&self, other: &Self) -> bool {
        (self.dev, self.ino) == (other.dev, other.ino)
    }

    /// Whether both look like one file in two snapshots; see [`Trust::InodeAndTimes`](crate::Trust).
    pub(crate) fn is_same_stamp(&self, other: &Self) -> bool {
        self.layer == other.layer
            && self.kind == other.kind
            && self.ino == other.ino
            && self.size == other.size
            && self.mode == other.mode
            && self.mtime == other.mtime
            && self.ctime == other.ctime
    }

    /// The mode that git keeps. Only for files and symbolic links.
    pub(crate) fn git_mode(&self) -> u32 {
        match self.kind {
            Kind::Symlink => 0o120_000,
            _ if self.mode & 0o100 != 0 => 0o100_755,
            _ => 0o100_644,
        }
    }
}
