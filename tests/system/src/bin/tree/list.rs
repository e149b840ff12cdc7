//! Everything that can be told of a tree, an entry a line. Two trees are equal where their lists are.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::FileType;

use crate::place::{Place, kind};

/// From this size on, it is told whether most of a file is a hole.
const SPARSE_FROM: i64 = 1 << 20;

/// Where the first name of a file with several was seen.
type Links = HashMap<(u64, u64), Vec<u8>>;

/// Appends what there is to tell of a tree.
pub(crate) fn list(root: &Path, out: &mut Vec<u8>) -> io::Result<()> {
    let mut links = Links::new();
    entry(
        &Place::top(root)?,
        root.as_os_str().as_bytes(),
        &mut links,
        out,
    )
}

fn entry(place: &Place, path: &[u8], links: &mut Links, out: &mut Vec<u8>) -> io::Result<()> {
    let stat = place.stat()?;
    let kind = kind(&stat);
    let mut line = format!(
        "{} {kind:?} {:o} {}:{} {}.{:09}",
        path.escape_ascii(),
        stat.st_mode & 0o7777,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtime,
        stat.st_mtime_nsec
    );
    if kind != FileType::Directory {
        line += &format!(" {} bytes", stat.st_size);
    }
    match kind {
        FileType::RegularFile => {
            let mut hash = blake3::Hasher::new();
            io::copy(&mut File::open(place.path())?, &mut hash)?;
            line += &format!(" {}", hash.finalize());
            if stat.st_size >= SPARSE_FROM && stat.st_blocks * 512 < stat.st_size / 2 {
                line += " sparse";
            }
        }
        FileType::Symlink => {
            let target = std::fs::read_link(place.path())?;
            line += &format!(" -> {}", target.as_os_str().as_bytes().escape_ascii());
        }
        _ => {}
    }
    for (name, value) in attributes(place)? {
        line += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
    }
    if kind != FileType::Directory && stat.st_nlink > 1 {
        let first = links
            .entry((stat.st_dev, stat.st_ino))
            .or_insert_with(|| path.to_vec());
        line += &format!(" {} links: {}", stat.st_nlink, first.escape_ascii());
    }
    out.extend(line.as_bytes());
    out.push(b'\n');
    if kind == FileType::Directory {
        for child in place.children()? {
            let path = [path, b"/", child.name().as_bytes()].concat();
            entry(&child, &path, links, out)?;
        }
    }
    Ok(())
}

/// The extended attributes by name.
fn attributes(place: &Place) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = place.path();
    let mut names = Vec::with_capacity(rustix::fs::llistxattr_query(&path)?);
    if names.capacity() == 0 {
        return Ok(Vec::new());
    }
    rustix::fs::llistxattr(&path, rustix::buffer::spare_capacity(&mut names))?;
    let mut all = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|n| !n.is_empty()) {
        let mut value = Vec::with_capacity(rustix::fs::lgetxattr_query(&path, name)?.max(1));
        rustix::fs::lgetxattr(&path, name, rustix::buffer::spare_capacity(&mut value))?;
        all.push((name.to_vec(), value));
    }
    all.sort();
    Ok(all)
}
