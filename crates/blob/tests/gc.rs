//! A collection takes what nobody needs, and nothing else, whoever pushes meanwhile.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use blob::{Error, GcOptions, Run};
use serde_json::json;

use crate::tree::{self, Dice};
use crate::world::{World, push, seeds};

/// Nothing is too young: the hardest case for whoever pushes meanwhile.
const AT_ONCE: GcOptions = GcOptions {
    grace: Duration::ZERO,
    run: Run::Wet,
    lock_age: Duration::from_secs(3600),
};

#[test]
fn what_no_kept_snapshot_needs_goes_and_the_rest_stays() {
    for seed in seeds() {
        let world = World::of(seed);
        let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
        let mut dice = Dice(seed + 500);
        tree::make(&tree, &mut dice, 60);
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(push(&world.store(), &tree, Some(&cache)).0);
            tree::change(&tree, &mut dice, 20);
        }
        let copy = world.pull(&ids[1]).unwrap();
        let before: u64 = world.objects("packs").iter().map(|(_, size)| size).sum();
        let dry = GcOptions {
            run: Run::Dry,
            ..AT_ONCE
        };
        let told = world.store().gc(&ids[1..2], &dry).unwrap();
        assert_eq!(
            world
                .objects("packs")
                .iter()
                .map(|(_, size)| size)
                .sum::<u64>(),
            before
        );
        let done = world.store().gc(&ids[1..2], &AT_ONCE).unwrap();
        assert_eq!(told.snapshots, done.snapshots);
        assert_eq!(done.snapshots.len(), 3);
        assert_eq!(world.store().list().unwrap(), [ids[1]]);
        let pulled = world.pull(&ids[1]).unwrap();
        tree::assert_same(copy.path(), pulled.path(), &format!("seed {seed}"));
        assert!(matches!(world.pull(&ids[0]), Err(Error::NoSnapshot(_))));
        // The cache remembers chunks that are gone: they are uploaded again.
        let (id, _) = push(&world.store(), &tree, Some(&cache));
        tree::assert_same(
            &tree,
            world.pull(&id).unwrap().path(),
            &format!("seed {seed}, after"),
        );
    }
}

#[test]
fn everything_goes_when_nothing_is_kept_and_refs_and_youth_keep() {
    let world = World::new();
    tree::make(&world.path("tree"), &mut Dice(8), 40);
    let store = world.store();
    let (id, _) = push(&store, &world.path("tree"), None);
    assert_eq!(store.gc(&[], &GcOptions::default()).unwrap().snapshots, []);
    let generation = store.set_ref("head", None, &id).unwrap();
    assert_eq!(store.gc(&[], &AT_ONCE).unwrap().snapshots, []);
    assert!(store.verify(&id).unwrap().is_clean());
    let (other, _) = store.begin(None).unwrap().commit(json!(null)).unwrap();
    store.set_ref("head", Some(generation), &other).unwrap();
    assert_eq!(store.gc(&[], &AT_ONCE).unwrap().snapshots, [id]);
    assert_eq!(world.objects("packs"), []);
    assert_eq!(world.objects("index"), []);
    assert_eq!(world.objects("gc"), []);
}

#[test]
fn two_collections_at_once_are_refused_and_a_dead_ones_lock_is_taken() {
    let world = World::new();
    let store = world.store();
    fs::create_dir_all(world.path("store/gc-lock")).unwrap();
    fs::write(world.path("store/gc-lock/lock"), "somebody").unwrap();
    assert!(matches!(store.gc(&[], &AT_ONCE), Err(Error::Locked { .. })));
    let old = GcOptions {
        lock_age: Duration::ZERO,
        ..AT_ONCE
    };
    store.gc(&[], &old).unwrap();
    assert_eq!(world.objects("gc-lock"), []);
}

/// A power cut between the two would leave a ref to nothing, if a collection could take the snapshot in that moment.
#[test]
fn a_snapshot_stays_until_the_ref_that_it_was_pushed_for_has_moved() {
    let world = World::new();
    let tree = world.path("tree");
    tree::make(&tree, &mut Dice(3), 10);
    let store = world.store();
    let pushed = |was| {
        let mut push = store.begin(None).unwrap();
        push.tree(&tree, None, None).unwrap();
        push.commit_for(json!(0), "main", was).unwrap()
    };
    let (first, _, moving) = pushed(None);
    let other = world.elsewhere();
    assert_eq!(other.gc(&[], &AT_ONCE).unwrap().snapshots, []);
    assert!(store.snapshot(&first).is_ok());
    let at = store.move_ref(moving).unwrap();
    assert_eq!(world.objects("pending"), []);

    // Overtaken: of the two that were pushed for the same move, one is nobody's.
    let ((second, _, won), (third, _, lost)) = (pushed(Some(at)), pushed(Some(at)));
    store.move_ref(won).unwrap();
    assert!(matches!(store.move_ref(lost), Err(Error::Moved { .. })));
    let mut gone = other.gc(&[], &AT_ONCE).unwrap().snapshots;
    gone.sort_unstable();
    let mut expected = vec![first, third];
    expected.sort_unstable();
    assert_eq!(gone, expected);
    assert!(store.verify(&second).unwrap().is_clean());
}

/// Without any grace, a sweep may take what a push relies on: then the push must say so. A push that succeeded is whole.
#[test]
fn a_collection_beside_pushes_loses_nothing_of_what_they_committed() {
    for seed in seeds() {
        let world = World::of(seed);
        for name in 0..2 {
            tree::make(
                &world.path(&format!("tree{name}")),
                &mut Dice(seed * 2 + name),
                50,
            );
        }
        drop(world.store());
        let over = AtomicBool::new(false);
        let (committed, swept) = std::thread::scope(|scope| {
            let collector = scope.spawn(|| {
                let mut taken = 0;
                while !over.load(SeqCst) {
                    // All are to be forgotten, at once: dedupe against what is just being taken is what is tried here.
                    match world.elsewhere().gc(&[], &AT_ONCE) {
                        Ok(report) => taken += report.packs,
                        Err(why) => panic!("seed {seed}: {why}"),
                    }
                }
                taken
            });
            let pushers: Vec<_> = (0..2u64)
                .map(|name| {
                    let world = &world;
                    scope.spawn(move || {
                        let store = world.elsewhere();
                        let tree = world.path(&format!("tree{name}"));
                        let cache = world.path(&format!("cache{name}"));
                        let mut dice = Dice(seed + 31 * name);
                        let (mut good, mut swept) = (0, 0);
                        for round in 0..15 {
                            let mut push = store.begin(None).unwrap();
                            push.tree(&tree, Some(&cache), None).unwrap();
                            let reference = format!("held{name}-{round}");
                            match push.commit_for(json!(round), &reference, None) {
                                // Held by a ref, as an engine holds it.
                                Ok((id, _, moving)) => {
                                    store.move_ref(moving).unwrap();
                                    store.snapshot(&id).unwrap();
                                    good += 1;
                                }
                                Err(Error::Swept) => swept += 1,
                                Err(why) => panic!("seed {seed}: {why}"),
                            }
                            tree::change(&tree, &mut dice, 4);
                        }
                        (good, swept)
                    })
                })
                .collect();
            let done: Vec<(usize, usize)> =
                pushers.into_iter().map(|one| one.join().unwrap()).collect();
            over.store(true, SeqCst);
            collector.join().unwrap();
            (
                done.iter().map(|one| one.0).sum::<usize>(),
                done.iter().map(|one| one.1).sum::<usize>(),
            )
        });
        // Whatever snapshot there still is, is whole.
        let store = world.elsewhere();
        let left = store.list().unwrap();
        for id in &left {
            let report = store.verify(id).unwrap();
            assert!(report.is_clean(), "seed {seed}: {:?}", &report.damage[..1]);
        }
        println!(
            "seed {seed}: {} snapshots left, {committed} held in time, {swept} swept and told",
            left.len()
        );
    }
}

#[test]
fn what_killed_writers_left_in_a_directory_goes_once_it_is_old() {
    let world = World::new();
    let (tree, cache) = (world.path("tree"), world.path("tree.cache"));
    tree::make(&tree, &mut Dice(9), 10);
    let store = world.store();
    push(&store, &tree, Some(&cache));
    let packs = world.path("store/packs");
    let (old, young) = (packs.join("a#1"), packs.join("b#1"));
    let deep = world.path("store/refs/gone/00000000000000000000#12");
    fs::create_dir_all(deep.parent().unwrap()).unwrap();
    let day_old = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    for path in [&old, &young, &deep] {
        fs::write(path, "half").unwrap();
    }
    for path in [&old, &deep] {
        let file = fs::File::options().append(true).open(path).unwrap();
        file.set_modified(day_old).unwrap();
    }
    let before = world.objects("packs");
    let keep = store.list().unwrap();
    store.gc(&keep, &GcOptions::default()).unwrap();
    assert!(!old.exists() && !deep.exists());
    assert!(young.exists(), "its writer may live");
    assert_eq!(world.objects("packs").len() + 1, before.len());
}
