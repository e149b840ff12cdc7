//! Little change, little work; and the same tree as without a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blob::{Hint, PushReport, SnapshotId, Store};

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

/// Pushes a tree of which it is known what changed since the one called `before`.
fn push_told(
    store: &Store,
    tree: &Path,
    cache: &Path,
    token: &str,
    (before, changed): (&str, &BTreeSet<u64>),
) -> (SnapshotId, PushReport) {
    let tell = |earlier: &str| (earlier == before).then(|| changed.clone());
    let hint = Hint {
        token,
        changed: &tell,
    };
    let mut push = store.begin(None).unwrap();
    push.tree(tree, Some(cache), Some(&hint)).unwrap();
    push.commit(serde_json::Value::Null).unwrap()
}

/// Every inode of a tree with all that a push must tell of it.
fn inodes(root: &Path) -> BTreeMap<u64, String> {
    let lines = tree::describe(root);
    let ino = |path: &Path| fs::symlink_metadata(root.join(path)).unwrap().ino();
    // Which group of names is which depends on the whole tree.
    let own = |line: &str| match (line.find(" of "), line.find(" bytes")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &line[..from], &line[to..]),
        _ => line.to_owned(),
    };
    let mut all: BTreeMap<u64, String> = BTreeMap::new();
    for (path, line) in &lines {
        all.insert(ino(path), own(line));
    }
    for path in lines.keys().filter(|path| !path.as_os_str().is_empty()) {
        let dir = ino(path.parent().unwrap());
        let name = format!(" {:?} is {}", path.file_name(), ino(path));
        *all.get_mut(&dir).unwrap() += &name;
    }
    all
}

#[test]
fn a_push_that_is_told_what_changed_makes_the_same_tree() {
    for seed in seeds() {
        let world = World::of(seed);
        let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
        let mut dice = Dice(seed + 2000);
        tree::make(&tree, &mut dice, 120);
        let store = world.store();
        let mut before = BTreeMap::new();
        for round in 0..8 {
            let now = inodes(&tree);
            let changed: BTreeSet<u64> = now
                .iter()
                .filter(|(ino, is)| before.get(*ino) != Some(*is))
                .map(|(ino, _)| *ino)
                .collect();
            let token = |round| format!("round {round}");
            let earlier = token(round - 1);
            let told = (earlier.as_str(), &changed);
            let (id, report) = push_told(&store, &tree, &cache, &token(round), told);
            let (whole, all) = push(&world.elsewhere(), &tree, None);
            let context = format!("seed {seed} round {round}");
            let (one, other) = (
                store.snapshot(&id).unwrap(),
                store.snapshot(&whole).unwrap(),
            );
            let pulled = world.pull(&id).unwrap();
            tree::assert_same(&tree, pulled.path(), &context);
            assert!(one.has_same_tree(&other), "{context}");
            assert_eq!(report.entries, all.entries, "{context}");
            assert_eq!(all.looked_at, all.entries, "{context}");
            if round > 0 && changed.is_empty() {
                assert_eq!(report.looked_at, 0, "{context}");
            }
            before = now;
            let changes = dice.below(9);
            tree::change(&tree, &mut dice, changes);
        }
    }
}

#[test]
fn what_is_told_to_be_unchanged_is_not_looked_at() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    let ino = |path: &str| fs::symlink_metadata(tree.join(path)).unwrap().ino();
    for dir in 0..20 {
        fs::create_dir_all(tree.join(format!("{dir}/below"))).unwrap();
        for file in 0..50 {
            fs::write(
                tree.join(format!("{dir}/below/{file}")),
                format!("{dir} {file}"),
            )
            .unwrap();
        }
    }
    let store = world.store();
    let push_it = |token: &str, before: &str, changed: &[u64]| {
        let changed = changed.iter().copied().collect();
        push_told(&store, &tree, &cache, token, (before, &changed))
    };
    let (_, all) = push_it("one", "", &[]);
    assert_eq!((all.looked_at, all.entries), (1040, 1040));
    let (_, none) = push_it("two", "one", &[]);
    assert_eq!((none.looked_at, none.entries, none.new_bytes), (0, 1040, 0));
    fs::write(tree.join("7/below/7"), "changed").unwrap();
    let (id, one) = push_it("three", "two", &[ino("7/below/7")]);
    assert_eq!((one.looked_at, one.read_files, one.entries), (1, 1, 1040));
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "one file");
    // A file that is gone is no inode; the directory is.
    fs::remove_file(tree.join("8/below/8")).unwrap();
    let (id, gone) = push_it("four", "three", &[ino("8/below")]);
    assert_eq!(
        (gone.looked_at, gone.read_files, gone.entries),
        (1, 0, 1039)
    );
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "a file less");
    fs::rename(tree.join("3/below"), tree.join("4/else")).unwrap();
    let (id, moved) = push_it("five", "four", &[ino("3"), ino("4"), ino("4/else")]);
    assert_eq!((moved.looked_at, moved.entries), (2 + 51, 1039));
    tree::assert_same(
        &tree,
        world.pull(&id).unwrap().path(),
        "a directory elsewhere",
    );
    fs::remove_dir_all(tree.join("5")).unwrap();
    let (id, less) = push_it("six", "five", &[ino(".")]);
    assert_eq!((less.looked_at, less.entries), (0, 1039 - 52));
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "a directory less");
    // A token that nobody can tell anything of, and a store that lacks what the cache says it has.
    let (_, all) = push_it("seven", "unknown", &[]);
    assert_eq!(all.looked_at, all.entries);
    for (pack, _) in world.objects("packs") {
        fs::remove_file(pack).unwrap();
    }
    let (id, anew) = push_it("eight", "seven", &[]);
    assert_eq!(anew.looked_at, anew.entries);
    assert!(anew.new_bytes > 0);
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "packs lost");
}

/// What is added to a cache is as good as a cache written anew, and what is torn off its end is known to be missing.
#[test]
fn a_cache_that_was_added_to_is_one_and_two_pushes_at_once_do_not_mix() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    let ino = |path: &str| fs::symlink_metadata(tree.join(path)).unwrap().ino();
    for file in 0..2000 {
        fs::create_dir_all(tree.join(format!("{}", file % 50))).unwrap();
        fs::write(
            tree.join(format!("{}/{file}", file % 50)),
            format!("{file}"),
        )
        .unwrap();
    }
    let store = world.store();
    let push_it = |token: &str, before: &str, changed: &[u64]| {
        let changed = changed.iter().copied().collect();
        push_told(&store, &tree, &cache, token, (before, &changed))
    };
    let size = || fs::metadata(&cache).unwrap().len();
    push_it("0", "", &[]);
    let (whole, mut grown) = (size(), 0);
    for round in 0..200 {
        fs::write(tree.join("7/7"), format!("round {round}")).unwrap();
        let before = size();
        let (_, report) = push_it(
            &format!("{}", round + 1),
            &format!("{round}"),
            &[ino("7/7")],
        );
        assert_eq!(
            (report.looked_at, report.entries),
            (1, 2050),
            "round {round}"
        );
        grown += u32::from(size() > before && size() < before + whole / 10);
        assert!(
            size() < whole * 2 + (100 << 10),
            "round {round}: {}",
            size()
        );
    }
    assert!(grown > 150, "{grown} of 200 were added");

    fs::remove_file(&cache).unwrap();
    push_it("200", "", &[]);
    let earlier = fs::read(&cache).unwrap();
    fs::write(tree.join("8/8"), "eight").unwrap();
    push_it("a", "200", &[ino("8/8")]);
    let added = fs::read(&cache).unwrap();
    assert!(added.starts_with(&earlier));
    // Without its last byte, it is what it was before.
    fs::write(&cache, &added[..added.len() - 1]).unwrap();
    let (id, report) = push_it("b", "200", &[ino("8/8")]);
    assert_eq!(report.looked_at, 1);
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "a torn end");
    // Of two that were added to one, the second counts for nothing.
    fs::write(tree.join("9/9"), "nine").unwrap();
    fs::write(&cache, &earlier).unwrap();
    push_it("c", "200", &[ino("8/8"), ino("9/9")]);
    let other = fs::read(&cache).unwrap();
    assert!(other.starts_with(&earlier));
    let both = [&added[..], &other[earlier.len()..]].concat();
    fs::write(&cache, both).unwrap();
    let (id, report) = push_it("d", "a", &[ino("9/9")]);
    assert_eq!(report.looked_at, 1);
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "two at once");
    fs::write(tree.join("10/10"), "ten").unwrap();
    let (id, report) = push_it("e", "d", &[ino("10/10")]);
    assert_eq!(report.looked_at, 1);
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "and after it");
}

#[test]
fn a_store_that_stays_open_sees_what_others_write() {
    let world = World::new();
    let tree = world.path("tree");
    tree::make(&tree, &mut Dice(77), 60);
    let open = world.store();
    open.begin(None)
        .unwrap()
        .commit(serde_json::Value::Null)
        .unwrap();
    let (_, theirs) = push(&world.elsewhere(), &tree, None);
    assert!(theirs.new_bytes > 0);
    let (_, ours) = push(&open, &tree, None);
    assert_eq!(ours.new_bytes, 0, "what another pushed is known");
    let (_, again) = push(&open, &tree, None);
    assert_eq!(again.new_bytes, 0);
    let at_once = blob::GcOptions {
        grace: std::time::Duration::ZERO,
        ..blob::GcOptions::default()
    };
    world.elsewhere().gc(&[], &at_once).unwrap();
    assert_eq!(world.objects("packs"), []);
    let (id, anew) = push(&open, &tree, None);
    assert_eq!(
        anew.new_bytes, theirs.new_bytes,
        "what another took is not relied on"
    );
    tree::assert_same(&tree, world.pull(&id).unwrap().path(), "after a collection");
}

/// Makes one file younger than the rest by more than a tick.
fn age(tree: &Path) {
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
