//! Random changes to trees. What is refused (a name taken, a move across mounts) is counted and changes nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat,
    mkdir, mknodat, setxattr, utimensat,
};
use system_tests::Rng;

use crate::place::{Place, kind};

/// A directory chain of this depth, with names as long as can be, is longer than any path that the kernel takes.
const DEEP: u64 = 20;
const LONGEST_NAME: usize = 255;
/// Largest file that is mostly a hole.
const SPARSE: u64 = 32 << 20;

/// Makes so many changes; returns how many were made and how many were refused.
pub(crate) fn change(seed: u64, changes: u64, roots: &[PathBuf]) -> io::Result<Vec<u8>> {
    let mut rng = Rng::named(seed, "tree");
    let (mut made, mut refused) = (0_u64, 0_u64);
    for _ in 0..changes {
        let root = rng.pick(roots).clone();
        let all = Entries::of(&root)?;
        match one(&mut rng, &all) {
            Ok(()) => made += 1,
            Err(_) => refused += 1,
        }
    }
    let mut out = Vec::new();
    writeln!(out, "{made} made {refused} refused")?;
    Ok(out)
}

/// What a tree holds.
struct Entries {
    all: Vec<(Place, FileType)>,
}

impl Entries {
    fn of(root: &std::path::Path) -> io::Result<Self> {
        let mut all = vec![(Place::top(root)?, FileType::Directory)];
        let mut next = 0;
        while let Some((place, kind_of)) = all.get(next).cloned() {
            next += 1;
            if kind_of == FileType::Directory {
                for child in place.children()? {
                    let kind = kind(&child.stat()?);
                    all.push((child, kind));
                }
            }
        }
        Ok(Self { all })
    }

    fn pick(&self, rng: &mut Rng, wanted: impl Fn(&Place, FileType) -> bool) -> io::Result<&Place> {
        let some: Vec<&Place> = self
            .all
            .iter()
            .filter(|(place, kind)| wanted(place, *kind))
            .map(|(place, _)| place)
            .collect();
        if some.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(some[rng.index(some.len())])
    }

    /// A file, not a link or anything else.
    fn file(&self, rng: &mut Rng) -> io::Result<&Place> {
        self.pick(rng, |_, kind| kind == FileType::RegularFile)
    }

    /// Anything but the tree's own top.
    fn entry(&self, rng: &mut Rng) -> io::Result<&Place> {
        self.pick(rng, |place, _| !place.is_top())
    }

    /// A name that most likely is not there yet, in any directory.
    fn fresh(&self, rng: &mut Rng) -> io::Result<Place> {
        let dir = self.pick(rng, |_, kind| kind == FileType::Directory)?;
        Ok(Place::below(&dir.enter()?, name(rng)))
    }
}

fn one(rng: &mut Rng, all: &Entries) -> io::Result<()> {
    match rng.below(21) {
        0..=2 => {
            let size = *rng.pick(&[0, 1, 100, 4096, 9000, 300_000]);
            create(&all.fresh(rng)?, &solid(rng, size))
        }
        3 => Ok(mkdir(all.fresh(rng)?.path(), mode(rng))?),
        4 => {
            let target = OsString::from_vec(rng.bytes(60).iter().map(|b| b | 1).collect());
            Ok(std::os::unix::fs::symlink(target, all.fresh(rng)?.path())?)
        }
        5 => {
            let kind = *rng.pick(&[FileType::Fifo, FileType::Socket]);
            Ok(mknodat(CWD, all.fresh(rng)?.path(), kind, mode(rng), 0)?)
        }
        6 => {
            let file = all.pick(rng, |_, kind| kind != FileType::Directory)?.path();
            std::fs::hard_link(file, all.fresh(rng)?.path())
        }
        7 => {
            let (size, at) = (rng.index(3000), rng.below(9000));
            let data = solid(rng, size);
            open(all.file(rng)?)?.write_all_at(&data, at)
        }
        8 => open(all.file(rng)?)?.set_len(rng.below(20_000)),
        9 => {
            let file = File::create_new(all.fresh(rng)?.path())?;
            file.set_len((1 << 20) + rng.below(SPARSE))?;
            for _ in 0..rng.below(4) {
                let data = solid(rng, 3000);
                file.write_all_at(&data, rng.below(SPARSE))?;
            }
            Ok(())
        }
        10 => {
            let any = all.pick(rng, |_, kind| kind != FileType::Symlink)?;
            Ok(chmod(any.path(), mode(rng))?)
        }
        11 => {
            let owner = [rng.below(60_000), rng.below(60_000)];
            let [uid, gid] = owner.map(|id| u32::try_from(id).unwrap_or(0));
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let any = all.pick(rng, |_, _| true)?.path();
            Ok(chownat(
                CWD,
                any,
                Some(uid),
                Some(gid),
                AtFlags::SYMLINK_NOFOLLOW,
            )?)
        }
        12 | 13 => {
            let any = all.pick(rng, |_, _| true)?;
            touch(rng, any)
        }
        14 => {
            let names = [
                "user.one",
                "user.overlay.opaque",
                "user.\u{e4} b",
                "user.DOSATTRIB",
            ];
            let (name, size) = (*rng.pick(&names), *rng.pick(&[0, 1, 60, 2000]));
            attribute(rng, all, name, size)
        }
        15 => {
            let any = all.pick(rng, |_, kind| kind != FileType::Symlink)?;
            let name = *rng.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
            Ok(setxattr(any.path(), name, &acl(rng), XattrFlags::empty())?)
        }
        16 => remove(all.entry(rng)?),
        17 => std::fs::rename(all.entry(rng)?.path(), all.fresh(rng)?.path()),
        18 => {
            // Over another one, where the kernel lets it.
            std::fs::rename(all.entry(rng)?.path(), all.entry(rng)?.path())
        }
        19 => {
            let any = all.entry(rng)?;
            replace(rng, any)
        }
        _ => deep(rng, all),
    }
}

fn open(place: &Place) -> io::Result<File> {
    File::options().write(true).open(place.path())
}

fn create(place: &Place, data: &[u8]) -> io::Result<()> {
    File::create_new(place.path())?.write_all(data)
}

/// Bytes without a zero, so that only what was left out is a hole. Half of them compress.
fn solid(rng: &mut Rng, size: usize) -> Vec<u8> {
    let bytes = rng.bytes(size).into_iter();
    if rng.chance(50) {
        bytes
            .map(|byte| b"etaoin s"[usize::from(byte & 7)])
            .collect()
    } else {
        bytes.map(|byte| byte.max(1)).collect()
    }
}

fn mode(rng: &mut Rng) -> Mode {
    Mode::from_raw_mode(u32::try_from(rng.below(0o10000)).unwrap_or(0))
}

fn touch(rng: &mut Rng, place: &Place) -> io::Result<()> {
    // Before there was a clock, now, and after 32 bits.
    let begin = *rng.pick(&[-2_000_000_000, 0, 1_700_000_000, 5_000_000_000]);
    let seconds = begin + rng.below(1_000_000_000).cast_signed();
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: rng.below(1_000_000_000).cast_signed(),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(
        CWD,
        place.path(),
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn attribute(rng: &mut Rng, all: &Entries, name: &str, size: usize) -> io::Result<()> {
    let any = all.pick(rng, |_, kind| {
        matches!(kind, FileType::RegularFile | FileType::Directory)
    })?;
    if rng.chance(20) {
        return Ok(rustix::fs::removexattr(any.path(), name)?);
    }
    let value = rng.bytes(size);
    Ok(setxattr(any.path(), name, &value, XattrFlags::empty())?)
}

/// An access list with one user of its own: version 2, entries of tag, rights and id.
fn acl(rng: &mut Rng) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let user = u32::try_from(rng.below(60_000)).unwrap_or(0);
    let entries = [
        (1, NOBODY),
        (2, user),
        (4, NOBODY),
        (16, NOBODY),
        (32, NOBODY),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, id) in entries {
        let rights = u16::try_from(rng.below(8)).unwrap_or(0);
        list.extend(u16::to_le_bytes(tag));
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

fn remove(place: &Place) -> io::Result<()> {
    let path = place.path();
    if kind(&place.stat()?) != FileType::Directory {
        return std::fs::remove_file(path);
    }
    for child in place.children()? {
        remove(&child)?;
    }
    std::fs::remove_dir(path)
}

/// Puts another kind of thing in its place: a directory that hides what the image has there, a file where one was.
fn replace(rng: &mut Rng, place: &Place) -> io::Result<()> {
    let was = kind(&place.stat()?);
    remove(place)?;
    if was == FileType::Directory || rng.chance(50) {
        mkdir(place.path(), mode(rng))?;
        let data = solid(rng, 50);
        return create(&Place::below(&place.enter()?, name(rng)), &data);
    }
    create(&place.beside(place.name()), b"in its place")
}

/// A chain of directories with a file at its end.
fn deep(rng: &mut Rng, all: &Entries) -> io::Result<()> {
    let mut at = all.fresh(rng)?;
    let long = rng.chance(50);
    for _ in 0..rng.below(DEEP) {
        mkdir(at.path(), Mode::from_raw_mode(0o755))?;
        let next = if long { long_name(rng) } else { name(rng) };
        at = Place::below(&at.enter()?, next);
    }
    create(&at, b"deep")
}

/// Names that are no text, that mean something to somebody, or that sort around a slash.
fn name(rng: &mut Rng) -> OsString {
    let serial = format!("{:x}", rng.below(1 << 20)).into_bytes();
    let begins: [&[u8]; 14] = [
        b"a",
        b"b",
        b".",
        b"-",
        b" ",
        b"\n",
        b"\xff\xfe",
        b"\\",
        b".wh.",
        b".wh..wh.",
        b"%2f",
        b"n\xc3\xa4me",
        b"name:",
        b"#",
    ];
    let begin = *rng.pick(&begins);
    if rng.chance(5) {
        return long_name(rng);
    }
    OsString::from_vec([begin, &serial].concat())
}

fn long_name(rng: &mut Rng) -> OsString {
    let begin = rng.bytes(8).into_iter();
    let mut name: Vec<u8> = begin
        .map(|byte| if matches!(byte, 0 | b'/') { b'x' } else { byte })
        .collect();
    name.resize(LONGEST_NAME, b'l');
    OsString::from_vec(name)
}
