//! Heads that may take so much and no more.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use rustix::io::Errno;
use workspace::Error;

use crate::world::{World, write};

const MIB: usize = 1 << 20;
const LIMIT: u64 = 48 << 20;

/// Writes so many MiB; how many there was room for.
fn fill(path: &Path, most: usize) -> (usize, Option<Errno>) {
    let mut file = File::create(path).unwrap();
    for written in 0..most {
        if let Err(error) = file.write_all(&vec![7; MIB]) {
            return (written, Errno::from_io_error(&error));
        }
    }
    (most, None)
}

/// Names and lengths: a picture of so much is nothing to look at.
fn sizes(dir: &Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut sizes: Vec<_> = entries
        .map(|entry| (entry.file_name(), entry.metadata().unwrap().len()))
        .collect();
    sizes.sort();
    sizes
}

#[test]
fn a_limited_head_is_told_that_it_is_full_and_goes_on_once_it_removed_something() {
    let Some(world) = World::btrfs() else { return };
    let (head, neighbour) = (world.pool.create().unwrap(), world.pool.create().unwrap());
    write(world.upper(&head).join("before"), "one");
    assert_eq!(world.pool.used(&head).unwrap(), None, "somebody counts");
    world.pool.can_limit().unwrap();
    world.pool.limit(&head, LIMIT).unwrap();
    let up = world.upper(&head);
    let (written, stopped) = fill(&up.join("big"), 100);
    assert_eq!(stopped, Some(Errno::DQUOT));
    assert!((40..=48).contains(&written), "{written} MiB");
    let c1 = world.cut(&head, "c1");
    let then = sizes(&up);
    let used = world.pool.used(&head).unwrap().unwrap();
    assert!((LIMIT - (8 << 20)..=LIMIT).contains(&used), "{used}");
    // Nobody else is held back by it.
    assert_eq!(fill(&world.upper(&neighbour).join("big"), 100), (100, None));
    world.cut(&neighbour, "c1");
    fs::remove_file(world.upper(&neighbour).join("big")).unwrap();
    // At once, though the cut keeps what was removed.
    fs::remove_file(up.join("big")).unwrap();
    assert_eq!(fill(&up.join("again"), 40), (40, None));
    world.cut(&head, "c2");
    assert_eq!(sizes(&world.pool.cut_path(&head, &c1)), then);
    let big = fs::read(world.pool.cut_path(&head, &c1).join("big")).unwrap();
    assert!(big.iter().all(|byte| *byte == 7), "the cut before");
}

#[test]
fn what_only_cuts_have_does_not_count() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    world.pool.limit(&head, LIMIT).unwrap();
    for round in 0..8 {
        assert_eq!(
            fill(&world.upper(&head).join("build"), 30),
            (30, None),
            "round {round}"
        );
        world.cut(&head, &format!("c{round}"));
        fs::remove_file(world.upper(&head).join("build")).unwrap();
    }
    assert!(world.pool.used(&head).unwrap().unwrap() < LIMIT);
}

#[test]
fn forks_and_restored_heads_are_held_to_the_same() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    world.pool.limit(&head, LIMIT).unwrap();
    assert_eq!(fill(&world.upper(&head).join("a"), 20), (20, None));
    let cut = world.cut(&head, "c1");
    let fork = world.pool.fork(&head, &cut).unwrap();
    let back = world.pool.restore(&head, Some(&cut)).unwrap();
    for other in [&fork, &back] {
        world.pool.limit(other, LIMIT).unwrap();
        let (written, stopped) = fill(&world.upper(other).join("b"), 100);
        assert_eq!(stopped, Some(Errno::DQUOT));
        assert!((14..=28).contains(&written), "{written} MiB beside 20");
    }
    // Each has its own.
    assert_eq!(fill(&world.upper(&head).join("b"), 20), (20, None));
    let world = world.reopened();
    let used = world.pool.used(&fork).unwrap().unwrap();
    assert!(used <= LIMIT, "{used}");
}

#[test]
fn a_pool_that_cannot_limit_says_so_and_what_to_do() {
    let world = World::copy();
    let head = world.pool.create().unwrap();
    for refused in [world.pool.can_limit(), world.pool.limit(&head, LIMIT)] {
        let Err(error @ Error::NoLimits { .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("durable doctor"))
        );
    }
    assert_eq!(world.pool.used(&head).unwrap(), None);
    // A file system that is not the pool's alone is not made to count without being asked.
    World::each_on_btrfs(|world| {
        if world.pool.kind() == "btrfs" {
            assert!(matches!(
                world.pool.can_limit(),
                Err(Error::NoLimits { .. })
            ));
        }
    });
}
