//! A tree as data: everything that a cut must keep.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    rdev: u64,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first of its names in this tree.
    same_as: OsString,
}

pub(crate) type Picture = BTreeMap<OsString, Look>;

pub(crate) fn picture(root: &Path) -> Picture {
    let mut all = Picture::new();
    let mut firsts = HashMap::new();
    look(root, OsString::new(), &mut all, &mut firsts);
    all
}

/// Fails with the paths that differ, not with two whole trees.
#[track_caller]
pub(crate) fn assert_same(one: &Picture, other: &Picture, what: &str) {
    let differ: Vec<_> = one
        .keys()
        .chain(other.keys())
        .filter(|path| one.get(*path) != other.get(*path))
        .map(|path| format!("{path:?}: {:?} and {:?}", one.get(path), other.get(path)))
        .collect();
    assert!(differ.is_empty(), "{what}: {}", differ.join("\n"));
}

fn look(path: &Path, name: OsString, all: &mut Picture, firsts: &mut HashMap<u64, OsString>) {
    let found = fs::symlink_metadata(path).unwrap();
    let kind = found.file_type();
    let content = if kind.is_file() {
        fs::read(path).unwrap()
    } else if kind.is_symlink() {
        fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec()
    } else {
        Vec::new()
    };
    let same_as = if kind.is_dir() {
        name.clone()
    } else {
        firsts.entry(found.ino()).or_insert(name.clone()).clone()
    };
    let look_now = Look {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        mtime: (found.mtime(), found.mtime_nsec()),
        rdev: found.rdev(),
        content,
        xattrs: xattrs(path),
        same_as,
    };
    all.insert(name.clone(), look_now);
    if kind.is_dir() {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        for entry in names {
            let mut below = name.clone();
            below.push("/");
            below.push(&entry);
            look(&path.join(&entry), below, all, firsts);
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}
