//! What the pool tells of changes is what a push needs: with it, a push makes the same tree as one that looks at everything.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blob::{Hint, Options, PullOptions, PushReport, Snapshot, Store};
use protocol::{CutId, WorkspaceId};

use crate::picture::{assert_same, picture};
use crate::random::{Dice, Mapping, change};
use crate::world::{World, write};

const SEEDS: u64 = 12;
const ROUNDS: u64 = 16;

#[test]
fn a_push_of_what_the_pool_says_changed_is_a_push_of_everything() {
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
    let at = |name: &str| world.dir.path().join(format!("{name}-{seed}"));
    let options = Options {
        cache: Some(at("cache")),
        threads: 2,
    };
    let store = Store::open_with(&at("store").display().to_string(), None, options).unwrap();
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    let mut mapping = Mapping::new(&up.join("mapped"));
    for _ in 0..60 {
        change(&mut dice, &up, &mut mapping);
    }
    let mut cuts: Vec<CutId> = Vec::new();
    let mut told = 0;
    for round in 0..ROUNDS {
        let id: CutId = format!("c{round}").parse().unwrap();
        let changes = dice.below(4).min(dice.below(8));
        let what: Vec<_> = (0..changes)
            .map(|_| change(&mut dice, &up, &mut mapping))
            .collect();
        if world.pool.cut(&head, &id).unwrap().is_some() {
            cuts.push(id);
        }
        // The latest, or one that is older than the one pushed before.
        let cut = match dice.below(4) {
            0 => dice.choose(&cuts).clone(),
            _ => cuts.last().unwrap().clone(),
        };
        let context = format!("{} seed {seed} {cut} {what:?}", world.pool.kind());
        let (one, report) = push(world, &store, &head, &cut, Some(&at("pushed")));
        let (all, whole) = push(world, &store, &head, &cut, None);
        assert!(one.has_same_tree(&all), "{context}");
        assert_eq!(report.entries, whole.entries, "{context}");
        told += u64::from(report.looked_at < whole.looked_at);
        if dice.below(3) == 0 {
            let into = at(&format!("pulled-{round}"));
            fs::create_dir(&into).unwrap();
            let pulled = store.pull_tree(&one.id, &into, PullOptions::default());
            assert!(pulled.unwrap().is_exact(), "{context}");
            let tree = world.pool.cut_path(&head, &cut);
            assert_same(&picture(&tree), &picture(&into), &context);
        }
    }
    if world.pool.kind() == "btrfs" {
        // All but the first, and perhaps some of which everything changed.
        assert!(told > ROUNDS / 2, "{told} of {ROUNDS} were told");
    }
}

fn push(
    world: &World,
    store: &Store,
    head: &WorkspaceId,
    cut: &CutId,
    cache: Option<&Path>,
) -> (Snapshot, PushReport) {
    let pool = &world.pool;
    let mark = pool.mark(head, cut).unwrap();
    let changed = |earlier: &str| pool.changed_inodes(head, earlier, cut).unwrap();
    let hint = mark.as_deref().map(|token| Hint {
        token,
        changed: &changed,
    });
    let mut push = store.begin(None).unwrap();
    push.tree(&pool.cut_path(head, cut), cache, hint.as_ref())
        .unwrap();
    let (id, report) = push.commit(serde_json::Value::Null).unwrap();
    (store.snapshot(&id).unwrap(), report)
}

#[test]
fn the_changed_inodes_of_two_cuts_are_told_whichever_is_older() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    let ino = |path: &str| fs::symlink_metadata(up.join(path)).unwrap().ino();
    for dir in ["a", "b", "c"] {
        fs::create_dir(up.join(dir)).unwrap();
        write(up.join(dir).join("f"), dir);
        write(up.join(dir).join("g"), dir);
    }
    let one = world.cut(&head, "one");
    write(up.join("a/f"), "more");
    fs::remove_file(up.join("b/f")).unwrap();
    let two = world.cut(&head, "two");
    fs::hard_link(up.join("c/f"), up.join("c/h")).unwrap();
    let three = world.cut(&head, "three");
    let mark = |cut| world.pool.mark(&head, cut).unwrap().unwrap();
    let between = |a, b| {
        world
            .pool
            .changed_inodes(&head, &mark(a), b)
            .unwrap()
            .unwrap()
    };
    let has = |of: &BTreeSet<u64>| {
        ["a", "a/f", "a/g", "b", "b/g", "c", "c/f", "c/g"]
            .into_iter()
            .filter(|path| of.contains(&ino(path)))
            .collect::<Vec<_>>()
    };
    assert_eq!(has(&between(&one, &two)), ["a/f", "b"]);
    assert_eq!(has(&between(&two, &three)), ["c", "c/f"]);
    assert_eq!(has(&between(&one, &three)), ["a/f", "b", "c", "c/f"]);
    assert_eq!(between(&three, &one), between(&one, &three));
    assert!(between(&two, &two).is_empty());
    let world = world.reopened();
    let again = world
        .pool
        .changed_inodes(&head, &mark_of(&world, &head, &one), &two);
    assert_eq!(has(&again.unwrap().unwrap()), ["a/f", "b"]);
}

fn mark_of(world: &World, head: &WorkspaceId, cut: &CutId) -> String {
    world.pool.mark(head, cut).unwrap().unwrap()
}

#[test]
fn what_cannot_be_told_is_not_guessed() {
    let Some(world) = World::btrfs() else { return };
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    write(up.join("f"), "1");
    let one = world.cut(&head, "one");
    let mark = mark_of(&world, &head, &one);
    write(up.join("f"), "2");
    let two = world.cut(&head, "two");
    let tells = |of: &WorkspaceId, mark: &str, cut: &CutId| {
        world.pool.changed_inodes(of, mark, cut).unwrap().is_some()
    };
    assert!(tells(&head, &mark, &two));
    assert!(
        !tells(&head, "", &two) && !tells(&head, "one", &two) && !tells(&head, "no name", &two)
    );

    // In a fork the cut of that name is a copy, and was not taken of the fork's head.
    let fork = world.pool.fork(&head, &one).unwrap();
    write(world.upper(&fork).join("f"), "3");
    let forked = world.cut(&fork, "forked");
    assert!(!tells(&fork, &mark, &forked));
    assert!(!tells(&fork, &mark_of(&world, &fork, &one), &forked));
    // So is a head that was put back another head.
    let back = world.pool.restore(&head, Some(&one)).unwrap();
    write(world.upper(&back).join("f"), "4");
    let later = world.cut(&back, "later");
    assert!(!tells(&back, &mark, &later));

    // A cut that is gone, and one of its name that came after it.
    world.pool.drop_cut(&head, &one).unwrap();
    assert!(!tells(&head, &mark, &two));
    write(up.join("f"), "5");
    assert_eq!(world.cut(&head, "one"), one);
    assert!(!tells(&head, &mark, &two));
    assert!(tells(&head, &mark_of(&world, &head, &one), &two));
}
