//! Pushed and pulled is the same.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;

use blob::{Error, PullOptions};

use crate::tree::{self, Dice};
use crate::world::{World, push, seeds};

#[test]
fn a_pulled_tree_is_the_pushed_one() {
    for seed in seeds() {
        let world = World::of(seed);
        tree::make(&world.path("tree"), &mut Dice(seed), 120);
        let (id, report) = push(&world.store(), &world.path("tree"), None);
        assert_eq!(
            report.entries + 1,
            tree::describe(&world.path("tree")).len() as u64
        );
        let pulled = world.pull(&id).unwrap();
        tree::assert_same(&world.path("tree"), pulled.path(), &format!("seed {seed}"));
        let check = world.elsewhere().verify(&id).unwrap();
        assert!(check.is_clean(), "seed {seed}: {:?}", check.damage);
    }
}

#[test]
fn an_empty_tree_and_a_tree_of_nothing_but_holes_come_back() {
    let world = World::new();
    let tree = world.path("tree");
    fs::create_dir(&tree).unwrap();
    let (empty, _) = push(&world.store(), &tree, None);
    tree::assert_same(&tree, world.pull(&empty).unwrap().path(), "empty");
    fs::File::create(tree.join("holes"))
        .unwrap()
        .set_len(5 << 40)
        .unwrap();
    let (holes, report) = push(&world.store(), &tree, None);
    assert!(report.new_bytes < 10_000, "{report:?}");
    let pulled = world.pull(&holes).unwrap();
    assert_eq!(
        fs::metadata(pulled.path().join("holes")).unwrap().len(),
        5 << 40
    );
}

#[test]
fn a_file_of_many_chunks_comes_back() {
    // More than an entry can list: a chunk list of its own.
    let world = World::new();
    let tree = world.path("tree");
    fs::create_dir(&tree).unwrap();
    let mut bytes = Vec::new();
    let mut dice = Dice(7);
    while bytes.len() < 190 << 20 {
        bytes.extend_from_slice(&dice.next().to_le_bytes());
    }
    fs::write(tree.join("large"), &bytes).unwrap();
    let (id, _) = push(&world.store(), &tree, None);
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "large");
    // An insertion at the front moves the first boundaries only.
    bytes.splice(0..0, *b"some more");
    fs::write(tree.join("large"), &bytes).unwrap();
    let (id, report) = push(&world.store(), &tree, None);
    assert!(report.new_bytes < 8 << 20, "{report:?}");
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "large and more");
}

#[test]
fn a_very_deep_tree_comes_back() {
    let world = World::new();
    let tree = world.path("tree");
    fs::create_dir(&tree).unwrap();
    let mut at: std::os::fd::OwnedFd = fs::File::open(&tree).unwrap().into();
    // Far beyond PATH_MAX and the number of descriptors that a process has.
    for _ in 0..1500 {
        rustix::fs::mkdirat(&at, "deeper", rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(at.as_fd(), "deeper", flags, rustix::fs::Mode::empty()).unwrap();
    }
    rustix::fs::symlinkat("bottom", &at, "link").unwrap();
    let (id, report) = push(&world.store(), &tree, None);
    assert_eq!(report.entries, 1501);
    let pulled = world.pull(&id).unwrap();
    let (again, report) = push(&world.store(), pulled.path(), None);
    assert_eq!(report.entries, 1501);
    assert!(world.elsewhere().verify(&again).unwrap().is_clean());
}

#[test]
fn two_sandboxes_of_the_same_content_share_their_chunks() {
    let world = World::encrypted();
    for name in ["ada", "bob"] {
        tree::make(&world.path(name), &mut Dice(3), 0);
        for file in 0..50u64 {
            fs::write(
                world.path(name).join(file.to_string()),
                Dice(file).bytes(30_000),
            )
            .unwrap();
        }
    }
    let store = world.store();
    let (_, first) = push(&store, &world.path("ada"), Some(&world.path("ada.cache")));
    let (_, second) = push(&store, &world.path("bob"), Some(&world.path("bob.cache")));
    assert!(first.new_bytes >= 50 * 30_000);
    // Times differ, so the directory is another one.
    assert!(second.new_bytes < 10_000, "{second:?}");
}

#[test]
fn a_pull_goes_into_an_empty_directory_only_and_follows_no_link() {
    let world = World::new();
    tree::make(&world.path("tree"), &mut Dice(1), 20);
    let (id, _) = push(&world.store(), &world.path("tree"), None);
    fs::create_dir(world.path("into")).unwrap();
    symlink("/", world.path("into").join("plain1")).unwrap();
    let refused = world
        .store()
        .pull_tree(&id, &world.path("into"), PullOptions::default());
    assert!(matches!(refused, Err(Error::NotEmpty(_))), "{refused:?}");
}
