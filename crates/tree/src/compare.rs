//! In what two entries differ. The cheap is asked first; content is read last and only if nothing else settles it.

use std::io::Read;

use crate::changes::Trust;
use crate::layer;
use crate::view::{Found, Merged};
use crate::{Entry, Error, Kind, Result};

/// In what the two sides of a [`Change`](crate::Change) differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct What {
    /// The bytes of a regular file.
    pub content: bool,
    /// What it is; then nothing else but mode, owner and attributes is told.
    pub kind: bool,
    /// Permission, set-id and sticky bits. Those of symbolic links are none.
    pub mode: bool,
    /// User or group.
    pub owner: bool,
    /// Where a symbolic link leads.
    pub target: bool,
    /// What a device stands for.
    pub device: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

impl What {
    /// Whether anything differs.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Compares the metadata of two complete entries; content is left out.
pub(crate) fn metadata(a: &Entry, b: &Entry) -> What {
    let kind = a.kind != b.kind;
    let devices = matches!(a.kind, Kind::CharDevice | Kind::BlockDevice);
    What {
        content: false,
        kind,
        mode: a.mode != b.mode && a.kind != Kind::Symlink && b.kind != Kind::Symlink,
        owner: (a.uid, a.gid) != (b.uid, b.gid),
        target: !kind && a.target != b.target,
        device: !kind && devices && a.rdev != b.rdev,
        xattrs: a.xattrs != b.xattrs,
    }
}

/// One side of a comparison: an entry, and the open directory that it was found in.
pub(crate) struct Side<'a> {
    pub(crate) dir: &'a Merged,
    pub(crate) found: Found,
}

/// Compares two entries of one path. None: they are the same. Else both come back complete.
pub(crate) fn entries(
    a: Side<'_>,
    b: Side<'_>,
    name: &[u8],
    path: &[u8],
    trust: Trust,
) -> Result<Option<(What, Entry, Entry)>> {
    let (one, two) = (&a.found.entry, &b.found.entry);
    if one.is_same_inode(two) || trust == Trust::InodeAndTimes && one.is_same_stamp(two) {
        return Ok(None);
    }
    let differs = if one.kind != Kind::File || two.kind != Kind::File {
        false
    } else if one.size != two.size {
        true
    } else {
        let one = layer::file_in(a.dir.home(one.layer, path)?, name, path)?;
        let two = layer::file_in(b.dir.home(two.layer, path)?, name, path)?;
        !same_bytes(one, two, a.found.entry.size).map_err(Error::io("read", path))?
    };
    let one = a.dir.complete(a.found.entry, name, path)?;
    let two = b.dir.complete(b.found.entry, name, path)?;
    let what = What {
        content: differs,
        ..metadata(&one, &two)
    };
    Ok(what.any().then_some((what, one, two)))
}

/// Reads both, of about `size` bytes, to the first difference or the end.
pub(crate) fn same_bytes(mut a: impl Read, mut b: impl Read, size: u64) -> std::io::Result<bool> {
    // Most files are small, and a buffer that is cleared costs as much as one that is read.
    let piece = usize::try_from(size).map_or(64 << 10, |size| size.saturating_add(1).min(64 << 10));
    let (mut one, mut two) = (vec![0; piece], vec![0; piece]);
    loop {
        let (first, second) = (fill(&mut a, &mut one)?, fill(&mut b, &mut two)?);
        if one[..first] != two[..second] {
            return Ok(false);
        }
        if first < piece {
            return Ok(true);
        }
    }
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match from.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(len)
}
