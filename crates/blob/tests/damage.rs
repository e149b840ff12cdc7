//! Whatever happens to an object is noticed, and named.

use std::fs;

use blob::{Error, PullOptions, Store};
use tempfile::TempDir;

use crate::tree::{self, Dice};
use crate::world::{World, push, seeds};

/// Pulls and verifies. Gives what was complained of, and checks that a pull without complaint gave the right tree.
fn complaint(world: &World, id: &blob::SnapshotId, seed: u64) -> Option<String> {
    let store = match Store::open(&world.url(), world.key.as_ref()) {
        Ok(store) => store,
        Err(why) => return Some(why.to_string()),
    };
    let into = TempDir::new_in(world.dir.path()).unwrap();
    let pulled = store.pull_tree(id, into.path(), PullOptions::default());
    if pulled.is_ok() {
        tree::assert_same(
            &world.path("tree"),
            into.path(),
            &format!("a wrong tree, seed {seed}"),
        );
    }
    let verified = store.verify(id).map(|report| {
        let mut all: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
        all.extend(report.damaged_indexes);
        all.join("; ")
    });
    match (pulled, verified) {
        (Err(why), Ok(told)) => Some(format!("{why}; {told}")),
        (Err(why), Err(told)) => Some(format!("{why}; {told}")),
        (Ok(_), Ok(told)) => (!told.is_empty()).then_some(told),
        (Ok(_), Err(told)) => Some(told.to_string()),
    }
}

#[test]
fn a_flipped_bit_a_lost_tail_and_a_lost_object_are_noticed_and_named() {
    for seed in seeds() {
        let world = World::of(seed);
        let mut dice = Dice(seed + 77);
        tree::make(&world.path("tree"), &mut dice, 60);
        let (id, _) = push(&world.store(), &world.path("tree"), None);
        assert_eq!(complaint(&world, &id, seed), None);
        for (path, size) in world.objects("") {
            let whole = fs::read(&path).unwrap();
            for how in 0..3 {
                let mut bytes = whole.clone();
                match how {
                    0 => bytes[usize::try_from(dice.below(size)).unwrap()] ^= 1 << dice.below(8),
                    1 => bytes.truncate(usize::try_from(dice.below(size)).unwrap()),
                    // Without its config, a directory is no store: it would be made anew.
                    _ if path.ends_with("config") => continue,
                    _ => bytes.clear(),
                }
                if how == 2 {
                    fs::remove_file(&path).unwrap();
                } else {
                    fs::write(&path, &bytes).unwrap();
                }
                let told = complaint(&world, &id, seed).unwrap_or_else(|| {
                    panic!(
                        "seed {seed}: nobody noticed damage {how} of {}",
                        path.display()
                    )
                });
                let name = path.file_name().unwrap().to_str().unwrap();
                // What an index held is missing; that names the chunk, since no index is left to name the pack.
                let named = told.contains(name)
                    || how == 2
                        && (told.contains("which no pack has") || told.contains("does not open"));
                assert!(
                    named,
                    "seed {seed}, damage {how} of {}: {told}",
                    path.display()
                );
                fs::write(&path, &whole).unwrap();
            }
        }
        assert_eq!(complaint(&world, &id, seed), None);
    }
}

#[test]
fn one_object_in_anothers_place_is_noticed() {
    let world = World::encrypted();
    fs::create_dir(world.path("tree")).unwrap();
    let ids: Vec<_> = (0..2)
        .map(|round| {
            fs::write(world.path("tree/file"), format!("{round}")).unwrap();
            push(&world.store(), &world.path("tree"), None).0
        })
        .collect();
    for dir in ["snapshots", "packs", "index"] {
        let objects = world.objects(dir);
        let (one, other) = (
            fs::read(&objects[0].0).unwrap(),
            fs::read(&objects[1].0).unwrap(),
        );
        fs::write(&objects[0].0, &other).unwrap();
        fs::write(&objects[1].0, &one).unwrap();
        for id in &ids {
            let into = TempDir::new_in(world.dir.path()).unwrap();
            let pulled = world
                .elsewhere()
                .pull_tree(id, into.path(), PullOptions::default());
            assert!(
                matches!(pulled, Err(Error::Damaged { .. } | Error::Chunk(_))),
                "{dir}: {pulled:?}"
            );
        }
        fs::write(&objects[0].0, one).unwrap();
        fs::write(&objects[1].0, other).unwrap();
    }
}

#[test]
fn a_push_heals_what_a_lost_index_took_along() {
    let world = World::new();
    let cache = world.path("tree.cache");
    tree::make(&world.path("tree"), &mut Dice(4), 60);
    let (first, _) = push(&world.store(), &world.path("tree"), Some(&cache));
    for (index, _) in world.objects("index") {
        fs::write(index, "nonsense").unwrap();
    }
    assert!(world.pull(&first).is_err());
    // By a machine that has no copy of the index.
    let (second, _) = push(&world.elsewhere(), &world.path("tree"), Some(&cache));
    for id in [first, second] {
        tree::assert_same(
            &world.path("tree"),
            world.pull(&id).unwrap().path(),
            "healed",
        );
    }
}
