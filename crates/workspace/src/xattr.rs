//! Extended attributes of a path.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::path::Path;

use rustix::io::Errno;

/// Lists the names. A file system that has none gives an empty list.
fn names(path: &Path, links: Links) -> Result<Vec<CString>, Errno> {
    let list = grow(|buffer| match links {
        Links::Themselves => rustix::fs::llistxattr(path, buffer),
        Links::Followed => rustix::fs::listxattr(path, buffer),
    });
    let list = match list {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| CString::new(name).ok())
        .collect())
}

/// Reads the value of one.
fn value(path: &Path, name: &CStr, links: Links) -> Result<Vec<u8>, Errno> {
    grow(|buffer| match links {
        Links::Themselves => rustix::fs::lgetxattr(path, name, buffer),
        Links::Followed => rustix::fs::getxattr(path, name, buffer),
    })
}

/// Names and values.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads all of an upper directory's own, but for the random id that an overlay writes there when first mounted.
pub(crate) fn lasting(path: &Path) -> Result<Xattrs, Errno> {
    let mut all = all(path, Links::Themselves)?;
    all.retain(|name, _| {
        !matches!(
            name.as_slice(),
            b"trusted.overlay.uuid" | b"user.overlay.uuid"
        )
    });
    Ok(all)
}

/// Whose attributes are meant where a path is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Its own.
    Themselves,
    /// Those of what it leads to; for the links in `/proc/self/fd`.
    Followed,
}

/// Reads all of a file.
pub(crate) fn all(path: &Path, links: Links) -> Result<Xattrs, Errno> {
    let mut all = Xattrs::new();
    for name in names(path, links)? {
        match value(path, &name, links) {
            Ok(value) => drop(all.insert(name.into_bytes(), value)),
            // Taken away since it was listed.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(all)
}

/// Calls with a larger buffer as long as the answer does not fit; somebody may be making it longer meanwhile.
fn grow(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    // The kernel allows no more than 64 KiB of either.
    const LARGEST: usize = 64 << 10;
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < LARGEST => buffer.resize(LARGEST, 0),
            Err(errno) => return Err(errno),
        }
    }
}
