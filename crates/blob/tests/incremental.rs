//! Little change, little work; and the same tree as without a cache.

use std::fs;
use std::path::PathBuf;

use crate::tree::{self, Dice};
use crate::world::{World, push, seeds};

#[test]
fn an_incremental_push_is_the_same_tree_as_a_full_one() {
    for seed in seeds() {
        let world = World::of(seed);
        let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
        let mut dice = Dice(seed + 1000);
        tree::make(&tree, &mut dice, 80);
        for round in 0..5 {
            let (id, _) = push(&world.store(), &tree, Some(&cache));
            let pulled = world.pull(&id).unwrap();
            tree::assert_same(&tree, pulled.path(), &format!("seed {seed} round {round}"));
            tree::change(&tree, &mut dice, 8);
        }
    }
}

#[test]
fn what_did_not_change_is_not_read() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    fs::create_dir(&tree).unwrap();
    for dir in 0..20 {
        fs::create_dir(tree.join(dir.to_string())).unwrap();
        for file in 0..50 {
            fs::write(
                tree.join(format!("{dir}/{file}")),
                format!("{dir} {file}").repeat(100),
            )
            .unwrap();
        }
    }
    age(&tree);
    let (_, first) = push(&world.store(), &tree, Some(&cache));
    assert_eq!(first.read_files, 1001);
    fs::write(tree.join("7/7"), "changed").unwrap();
    let (id, second) = push(&world.store(), &tree, Some(&cache));
    // The changed one, and the one that is as young as the tree.
    assert!(second.read_files <= 2, "{second:?}");
    assert!(second.new_bytes < 20_000, "{second:?}");
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "after one change");
}

#[test]
fn a_torn_or_foreign_cache_costs_time_only() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    tree::make(&tree, &mut Dice(5), 60);
    push(&world.store(), &tree, Some(&cache));
    let whole = fs::read(&cache).unwrap();
    for len in [0, 7, whole.len() / 2, whole.len() - 1] {
        fs::write(&cache, &whole[..len]).unwrap();
        let index: PathBuf = world.objects("../cache")[0].0.clone();
        let bytes = fs::read(&index).unwrap();
        fs::write(&index, &bytes[..bytes.len() * 2 / 3]).unwrap();
        let (id, report) = push(&world.store(), &tree, Some(&cache));
        assert!(report.read_files > 0);
        assert_eq!(report.new_bytes, 0);
        tree::assert_same(&tree, world.pull(&id).unwrap().path(), "torn");
    }
    // Another store knows none of what the cache remembers.
    let other = World::new();
    let (id, _) = push(&other.store(), &tree, Some(&cache));
    tree::assert_same(&tree, other.pull(&id).unwrap().path(), "another store");
}

#[test]
fn a_file_rewritten_within_a_tick_of_the_clock_is_read_again() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    fs::create_dir(&tree).unwrap();
    for round in 0..30 {
        fs::write(tree.join("file"), format!("{round:04}")).unwrap();
        let (id, _) = push(&world.store(), &tree, Some(&cache));
        let pulled = world.pull(&id).unwrap();
        assert_eq!(
            fs::read_to_string(pulled.path().join("file")).unwrap(),
            format!("{round:04}")
        );
    }
}

/// Makes one file younger than the rest by more than a tick.
fn age(tree: &std::path::Path) {
    let newest = fs::metadata(tree).unwrap();
    loop {
        fs::write(tree.join("young"), "y").unwrap();
        let young = fs::metadata(tree.join("young"))
            .unwrap()
            .modified()
            .unwrap();
        if young
            .duration_since(newest.modified().unwrap())
            .unwrap_or_default()
            > std::time::Duration::from_secs(1)
        {
            return;
        }
        std::thread::yield_now();
    }
}
