//! Random trees, cut again and again. A seed gives the same operations each time; `WORKSPACE_SEED=n` runs one alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::CutId;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::picture::{Picture, assert_same, picture};
use crate::world::{World, is_root};

const SEEDS: u64 = 12;
const ROUNDS: u64 = 14;

#[test]
fn a_cut_of_a_random_tree_is_that_tree_for_ever() {
    let seeds = match std::env::var("WORKSPACE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=SEEDS).collect(),
    };
    World::each(|world| {
        for &seed in &seeds {
            println!("{}: WORKSPACE_SEED={seed}", world.pool.kind());
            run(world, seed);
        }
    });
}

fn run(world: &World, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut head = world.pool.create().unwrap();
    let mut up = world.upper(&head);
    let mut mapping = Mapping::new(&up.join("mapped"));
    let mut taken: BTreeMap<CutId, (protocol::WorkspaceId, Picture)> = BTreeMap::new();
    for round in 0..ROUNDS {
        let id: CutId = format!("c{round}").parse().unwrap();
        // One change alone is the likeliest to be missed.
        let changes = dice.below(4).min(dice.below(8));
        let mut what = Vec::new();
        for _ in 0..changes {
            what.push(change(&mut dice, &up, &mut mapping));
        }
        let cut = world.pool.cut(&head, &id).unwrap();
        let kind = world.pool.kind();
        assert_eq!(
            cut.is_some(),
            changes > 0 || round == 0,
            "{kind} seed {seed} round {round}: {what:?}"
        );
        if cut.is_some() {
            let now = picture(&up);
            assert_same(
                &picture(&world.pool.cut_path(&head, &id)),
                &now,
                &format!("{kind} seed {seed} {id} {what:?}"),
            );
            taken.insert(id, (head.clone(), now));
        }
        if dice.below(5) == 0 {
            let nth = usize::try_from(dice.below(taken.len() as u64)).unwrap();
            let (id, (of, then)) = taken.iter().nth(nth).unwrap();
            drop(mapping);
            let back = world.pool.restore(of, Some(id)).unwrap();
            up = world.upper(&back);
            assert_same(
                &picture(&up),
                then,
                &format!("{kind} seed {seed} restored {id}"),
            );
            world.no_cut(&back);
            // Restoring empties nothing that was cut, and the head left behind goes.
            world.pool.retire(&head).unwrap();
            head = back;
            mapping = Mapping::new(&up.join("mapped"));
            let id: CutId = format!("r{round}").parse().unwrap();
            if world.pool.cut(&head, &id).unwrap().is_some() {
                taken.insert(id, (head.clone(), picture(&up)));
            }
        }
    }
    for (id, (of, then)) in &taken {
        let now = picture(&world.pool.cut_path(of, id));
        assert_same(
            &now,
            then,
            &format!("{} seed {seed}: {id} afterwards", world.pool.kind()),
        );
    }
}

/// Stores through a mapping show in no time of change while its page is dirty, and cuts come in between.
#[test]
fn a_store_through_a_mapping_is_never_missed() {
    World::each(|world| {
        let head = world.pool.create().unwrap();
        let path = world.upper(&head).join("mapped");
        let mut mapping = Mapping::new(&path);
        let mut last = None;
        for round in 0..30 {
            let stop = AtomicBool::new(false);
            let id: CutId = format!("c{round}").parse().unwrap();
            let cut = |id: &CutId| world.pool.cut(&head, id).unwrap().map(|cut| cut.path);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // A reference, so that the whole mapping is taken along and not its address.
                    let mapping = &mut mapping;
                    while !stop.load(Ordering::Relaxed) {
                        mapping.add_at(0);
                    }
                });
                last = cut(&id).or(last.take());
                stop.store(true, Ordering::Relaxed);
            });
            // All is quiet now: either the last cut has it all or there is another.
            let after: CutId = format!("a{round}").parse().unwrap();
            last = cut(&after).or(last.take());
            let copy = fs::read(last.as_ref().unwrap().join("mapped")).unwrap();
            assert!(
                copy == fs::read(&path).unwrap(),
                "{} round {round}",
                world.pool.kind()
            );
        }
    });
}

/// Changes one thing for certain and says what.
pub(crate) fn change(dice: &mut Dice, up: &Path, mapping: &mut Mapping) -> String {
    let all = all_paths(up);
    // What is mapped is not cut shorter under the mapping, by this name or another.
    let plain = |path: &&PathBuf| path.is_file() && !path.is_symlink() && !path.ends_with("mapped");
    let mut files: Vec<_> = all.iter().filter(plain).cloned().collect();
    if files.is_empty() {
        files.push(up.join("first"));
        fs::write(&files[0], b"1").unwrap();
    }
    let dirs: Vec<_> = all
        .iter()
        .filter(|path| path.is_dir() && !path.is_symlink())
        .cloned()
        .collect();
    let spare: Vec<_> = all
        .iter()
        .filter(|path| *path != up && !path.ends_with("mapped"))
        .cloned()
        .collect();
    let file = dice.pick(&files);
    let fresh = dice.pick(&dirs).join(name(dice));
    let any = dice.pick(&all);
    match dice.below(17) {
        0..=2 => fs::write(&fresh, dice.bytes(9000)).unwrap(),
        3 => File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .write_all_at(&dice.bytes(300), dice.below(5000))
            .unwrap(),
        4 => File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(dice.below(20_000))
            .unwrap(),
        5 => fs::create_dir(&fresh).unwrap(),
        6 if !spare.is_empty() => {
            let from = dice.pick(&spare);
            // Into itself is refused; then it changes in its place.
            if fs::rename(&from, &fresh).is_err() {
                touch(&from, dice);
            }
        }
        7 => fs::hard_link(&file, &fresh).unwrap(),
        8 => symlink(
            OsString::from_vec(dice.bytes(40).iter().map(|b| b | 1).collect()),
            &fresh,
        )
        .unwrap(),
        9 if !any.is_symlink() => {
            // Readable to its owner: without root there is no copy of the rest.
            let mode = u32::try_from(dice.below(0o10000)).unwrap() | 0o700;
            rustix::fs::chmod(&any, Mode::from_raw_mode(mode)).unwrap();
        }
        10 if is_root() => {
            let (uid, gid) = (dice.below(70_000), dice.below(70_000));
            let (uid, gid) = (u32::try_from(uid).unwrap(), u32::try_from(gid).unwrap());
            rustix::fs::chownat(
                CWD,
                &any,
                Some(Uid::from_raw(uid)),
                Some(Gid::from_raw(gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .unwrap();
        }
        11 if !any.is_symlink() && (any.is_file() || any.is_dir()) => {
            let attribute = *dice.choose(&["user.one", "user.overlay.opaque", "user.two"]);
            rustix::fs::setxattr(&any, attribute, &dice.bytes(60), XattrFlags::empty()).unwrap();
        }
        12 => mapping.store(dice),
        13 if !spare.is_empty() => {
            let gone = dice.pick(&spare);
            if gone.is_dir() && !gone.is_symlink() {
                fs::remove_dir_all(gone)
            } else {
                fs::remove_file(gone)
            }
            .unwrap();
        }
        14 => touch(&any, dice),
        15 => {
            // A whiteout, or a pipe.
            let kind = *dice.choose(&[FileType::CharacterDevice, FileType::Fifo]);
            rustix::fs::mknodat(CWD, &fresh, kind, Mode::from_raw_mode(0o600), 0).unwrap();
        }
        _ => {
            // A hole with something behind it.
            File::create(&fresh)
                .unwrap()
                .write_all_at(&dice.bytes(50), 1 << 20)
                .unwrap();
        }
    }
    format!("{fresh:?} {file:?} {any:?}")
}

fn touch(path: &Path, dice: &mut Dice) {
    let time = Timespec {
        tv_sec: i64::try_from(dice.below(1 << 32)).unwrap(),
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Names that are no text, and names that sort around a slash.
fn name(dice: &mut Dice) -> OsString {
    let mut name = vec![*dice.choose(b"ab-.\xff\n ")];
    name.extend(format!("{:x}", dice.below(1 << 30)).bytes());
    OsString::from_vec(name)
}

fn all_paths(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    for path in names {
        if path.is_dir() && !path.is_symlink() {
            all.extend(all_paths(&path));
        } else {
            all.push(path);
        }
    }
    all
}

/// A file that stays mapped, so that its pages are dirty at any time, also between a flush and a cut.
pub(crate) struct Mapping {
    address: *mut u8,
}

// SAFETY: it owns its mapping alone, and memory may be used from any thread.
unsafe impl Send for Mapping {}

const MAPPED: usize = 16 << 10;

impl Mapping {
    pub(crate) fn new(path: &Path) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        file.set_len(MAPPED as u64).unwrap();
        // SAFETY: a new shared mapping of a file that is as long as the mapping; the kernel chooses where.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                MAPPED,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
        };
        Self {
            address: address.unwrap().cast(),
        }
    }

    fn store(&mut self, dice: &mut Dice) {
        self.add_at(usize::try_from(dice.below(MAPPED as u64)).unwrap());
    }

    pub(crate) fn add_at(&mut self, at: usize) {
        assert!(at < MAPPED);
        // SAFETY: `at` is inside the mapping, which only this structure uses, and nothing cuts the file shorter.
        unsafe {
            let byte = self.address.add(at);
            byte.write_volatile(byte.read_volatile().wrapping_add(1));
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody holds a reference into it.
        unsafe { rustix::mm::munmap(self.address.cast(), MAPPED) }.unwrap();
    }
}

/// xorshift64*: the same sequence for ever, whatever a library does.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    pub(crate) fn choose<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    fn pick(&mut self, from: &[PathBuf]) -> PathBuf {
        self.choose(from).clone()
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let len = self.below(most) + 1;
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
