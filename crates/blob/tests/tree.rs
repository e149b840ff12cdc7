//! Random trees of every kind of entry, changes to them, and a description that two equal trees share.
//! The description is made with other calls than the crate's, so that one mistake is not made twice.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Numbers from a seed (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        // Half of the files compress.
        if self.below(2) == 0 {
            bytes
                .iter_mut()
                .for_each(|byte| *byte = b"etaoin s"[usize::from(*byte & 7)]);
        }
        bytes
    }
}

pub(crate) fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a tree of about so many entries.
pub(crate) fn make(dir: &Path, dice: &mut Dice, entries: u64) {
    fs::create_dir_all(dir).unwrap();
    let mut dirs = vec![dir.to_owned()];
    let mut files = Vec::new();
    for number in 0..entries {
        let at = dirs[usize::try_from(dice.below(dirs.len() as u64)).unwrap()].clone();
        let path = at.join(name(dice, number));
        let kind = dice.below(20);
        match kind {
            0..=3 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            4 => symlink(OsStr::from_bytes(&[b'.', b'.', b'/', 0xff, b'x']), &path).unwrap(),
            5 => node(&path, FileType::Fifo, 0),
            6 => node(&path, FileType::Socket, 0),
            // What an overlay leaves where a file of the base was removed.
            7 if root() => node(&path, FileType::CharacterDevice, 0),
            8 if root() => node(&path, FileType::BlockDevice, rustix::fs::makedev(7, 200)),
            9 => sparse(&path, dice),
            10 | 11 if !files.is_empty() => {
                let to: &PathBuf = &files[usize::try_from(dice.below(files.len() as u64)).unwrap()];
                fs::hard_link(to, &path).unwrap();
                continue;
            }
            12 => {
                let len = usize::try_from(dice.below(6 << 20)).unwrap();
                fs::write(&path, dice.bytes(len)).unwrap();
                files.push(path.clone());
            }
            13 => fs::write(&path, b"").unwrap(),
            _ => {
                let len = usize::try_from(dice.below(40_000)).unwrap();
                fs::write(&path, dice.bytes(len)).unwrap();
                files.push(path.clone());
            }
        }
        dress(&path, dice);
    }
    // Times of directories come last, as long as nothing more is made in them.
    for dir in dirs.iter().rev() {
        dress(dir, dice);
    }
}

fn name(dice: &mut Dice, number: u64) -> std::ffi::OsString {
    let odd: &[u8] = match dice.below(12) {
        0 => "ünï-日本".as_bytes(),
        1 => b"\xff\xfe",
        2 => b"new\nline",
        3 => b" -rf",
        4 => b"e\xcc\x81",
        5 => &[b'l'; 230],
        6 => b"\x1b[31m",
        _ => b"plain",
    };
    OsStr::from_bytes(&[odd, number.to_string().as_bytes()].concat()).to_owned()
}

fn node(path: &Path, kind: FileType, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::RUSR | Mode::WUSR, device).unwrap();
}

fn sparse(path: &Path, dice: &mut Dice) {
    let mut file = File::create(path).unwrap();
    file.set_len(dice.below(64 << 20)).unwrap();
    for _ in 0..dice.below(5) {
        file.seek(SeekFrom::Start(dice.below(64 << 20))).unwrap();
        let len = usize::try_from(dice.below(200_000)).unwrap();
        file.write_all(&dice.bytes(len)).unwrap();
    }
    // Where the holes are is settled once the data is on disk.
    file.sync_all().unwrap();
}

fn dress(path: &Path, dice: &mut Dice) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    if root() {
        let id = |dice: &mut Dice| Some(u32::try_from(dice.below(3) * 70_001).unwrap());
        std::os::unix::fs::lchown(path, id(dice), id(dice)).unwrap();
    }
    if kind.is_file() || kind.is_dir() {
        for number in 0..dice.below(3) {
            let len = usize::try_from(dice.below(300)).unwrap();
            xattr(path, &format!("user.note{number}"), &dice.bytes(len));
        }
        if dice.below(8) == 0 {
            xattr(path, "user.overlay.opaque", b"y");
        }
    }
    if root() && dice.below(6) == 0 {
        xattr(path, "trusted.overlay.redirect", b"/else\xffwhere");
    }
    if root() && kind.is_file() && dice.below(8) == 0 {
        // cap_net_raw=ep
        xattr(
            path,
            "security.capability",
            &[
                1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ],
        );
    }
    if !kind.is_symlink() {
        // Root reads everything; others must be able to.
        let least = if root() { 0 } else { 0o700 };
        let mode = u32::try_from(dice.below(0o10000)).unwrap() | least;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let seconds = i64::try_from(dice.below(4_000_000_000)).unwrap() - 1_000_000_000;
    let stamp = |dice: &mut Dice| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(dice.below(1_000_000_000)).unwrap(),
    };
    let times = Timestamps {
        last_access: stamp(dice),
        last_modification: stamp(dice),
    };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Changes some of a tree: writes, appends, renames, removes, makes, and changes attributes only.
pub(crate) fn change(dir: &Path, dice: &mut Dice, times: u64) {
    for number in 0..times {
        let all = paths(dir);
        let Some(path) = (!all.is_empty())
            .then(|| all[usize::try_from(dice.below(all.len() as u64)).unwrap()].clone())
        else {
            return;
        };
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        match dice.below(7) {
            0 if kind.is_file() => {
                let len = usize::try_from(dice.below(9_000)).unwrap();
                fs::write(&path, dice.bytes(len)).unwrap();
            }
            1 if kind.is_file() => {
                let mut file = File::options().append(true).open(&path).unwrap();
                file.write_all(&dice.bytes(777)).unwrap();
            }
            2 => fs::rename(
                &path,
                path.with_file_name(format!("renamed{number}-{}", dice.next())),
            )
            .unwrap(),
            3 if kind.is_dir() => fs::remove_dir_all(&path).unwrap(),
            3 => fs::remove_file(&path).unwrap(),
            4 if kind.is_dir() => {
                make(&path.join(format!("made{number}-{}", dice.next())), dice, 6)
            }
            _ => dress(&path, dice),
        }
    }
}

fn paths(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut stack = vec![dir.to_owned()];
    while let Some(at) = stack.pop() {
        let mut below: Vec<_> = fs::read_dir(&at)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        below.sort();
        for path in below {
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                stack.push(path.clone());
            }
            all.push(path);
        }
    }
    all
}

/// Describes a tree, one line a path.
pub(crate) fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut links: BTreeMap<u64, usize> = BTreeMap::new();
    let mut all = BTreeMap::new();
    let mut every = paths(root);
    every.push(root.to_owned());
    every.sort();
    for path in every {
        let meta = fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        let mut line = format!(
            "{:o} {}:{} {}.{:09}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        if !kind.is_dir() {
            let count = links.len();
            let group = links.entry(meta.ino()).or_insert(count);
            line += &format!(" links {} of {group}, {} bytes", meta.nlink(), meta.size());
        }
        if kind.is_char_device() || kind.is_block_device() {
            line += &format!(" device {:x}", meta.rdev());
        }
        if kind.is_symlink() {
            line += &format!(" -> {:?}", fs::read_link(&path).unwrap());
        }
        if kind.is_file() {
            let mut file = File::open(&path).unwrap();
            let mut hasher = blake3::Hasher::new();
            let mut bytes = vec![0; 1 << 20];
            loop {
                let len = file.read(&mut bytes).unwrap();
                if len == 0 {
                    break;
                }
                hasher.update(&bytes[..len]);
            }
            line += &format!(" {} {:?}", hasher.finalize(), data(&file));
        }
        line += &format!(" {:?}", xattrs(&path));
        all.insert(path.strip_prefix(root).unwrap().to_owned(), line);
    }
    all
}

/// Where a file has data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Ok(from) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(from)).unwrap();
        all.push((from, at));
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list).unwrap();
    let mut all = BTreeMap::new();
    for name in list[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0; 65536];
        let name = CString::new(name).unwrap();
        let len = rustix::fs::lgetxattr(path, &name, &mut value).unwrap();
        all.insert(name.into_string().unwrap(), value[..len].to_vec());
    }
    all
}

/// Compares two trees and says where they differ.
pub(crate) fn assert_same(one: &Path, other: &Path, context: &str) {
    let (one, other) = (describe(one), describe(other));
    let differ: Vec<_> = one
        .iter()
        .filter(|(path, line)| other.get(*path) != Some(line))
        .map(|(path, line)| format!("{path:?}\n  {line}\n  {:?}", other.get(path)))
        .chain(
            other
                .keys()
                .filter(|path| !one.contains_key(*path))
                .map(|path| format!("{path:?} is new")),
        )
        .take(5)
        .collect();
    assert!(differ.is_empty(), "{context}: {}", differ.join("\n"));
}
