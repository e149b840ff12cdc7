//! Random trees, pushed and pulled, forked and rewound: what is seen inside is the same in every one of them.
//!
//! `TREES_SEED=n` runs one seed alone, `TREES_SEEDS=n` that many. The changes and the look are made inside, by the program `tree`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use system_tests::{Res, Rng, World, run, trouble};

/// Seeds that each run has.
const SEEDS: u64 = 24;
/// Worlds side by side.
const WORLDS: u64 = 2;
/// Where the image has the program.
const TREE: &str = "/bin/tree";
/// The sandbox's own trees, and one of the image's: what is changed in that is a layer over it.
const ROOTS: [&str; 3] = ["/workspace", "/root", "/base"];

fn seeds() -> Res<RangeInclusive<u64>> {
    let number = |name| match std::env::var(name) {
        Ok(text) => text
            .parse()
            .map(Some)
            .map_err(|_| trouble(format!("{name}={text} is no number"))),
        Err(_) => Ok(None),
    };
    Ok(match number("TREES_SEED")? {
        Some(seed) => seed..=seed,
        None => 1..=number("TREES_SEEDS")?.unwrap_or(SEEDS),
    })
}

#[test]
fn a_random_tree_is_the_same_wherever_it_is_pushed_pulled_forked_and_rewound() -> Res<()> {
    let next = Mutex::new(seeds()?);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORLDS)
            .map(|nth| {
                let next = &next;
                scope.spawn(move || {
                    let here = World::new(&format!("trees-{nth}"))?;
                    let there = World::new(&format!("trees-there-{nth}"))?;
                    here.must(&["store", "keygen", &key(&here)])?;
                    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    while let Some(seed) = take() {
                        one(&here, &there, seed)
                            .map_err(|e| trouble(format!("TREES_SEED={seed}: {e}")))?;
                    }
                    there.end_clean()?;
                    here.end_clean()
                })
            })
            .collect();
        for worker in workers {
            worker.join().map_err(|_| trouble("a worker panicked"))??;
        }
        Ok(())
    })
}

fn key(world: &World) -> String {
    world.root().join("key").display().to_string()
}

fn one(here: &World, there: &World, seed: u64) -> Res<()> {
    let mut rng = Rng::named(seed, "trees");
    let store = here.root().join(format!("store-{seed}"));
    let store = store.display().to_string();
    let key = key(here);
    let mut to_store = vec!["--store", &*store];
    if rng.chance(40) {
        to_store.extend(["--key", &*key]);
    }
    let root = image(here, &mut rng, seed)?;
    here.create("ada", &["--image", &format!("dir:{}", root.display())])?;
    change(here, &mut rng, 60)?;
    here.must(&["checkpoint", "ada", "--label", "early"])?;
    let early = list(here, "ada")?;
    if rng.chance(50) {
        // The next push builds on this one.
        here.must(&[&["push", "ada"], &to_store[..]].concat())?;
    }
    for _ in 0..rng.below(4) {
        change(here, &mut rng, 20)?;
    }
    let late = list(here, "ada")?;
    here.must(&[&["push", "ada"], &to_store[..]].concat())?;
    there.must(&[&["pull", "ada"], &to_store[..]].concat())?;
    same("pulled", &late, &list(there, "ada")?)?;
    let pulled_rewinds = rng.chance(50);
    if pulled_rewinds {
        there.must(&["rewind", "ada", "--to", "early"])?;
        same("pulled and rewound", &early, &list(there, "ada")?)?;
    }
    if rng.chance(50) {
        here.must(&["fork", "ada", "--name", "bob"])?;
        same("forked", &late, &list(here, "bob")?)?;
        here.must(&["fork", "ada", "--at", "early", "--name", "cid"])?;
        same("forked early", &early, &list(here, "cid")?)?;
        // A fork that is pushed has its source's files as its own.
        here.must(&[&["push", "bob"], &to_store[..]].concat())?;
        there.must(&[&["pull", "bob"], &to_store[..]].concat())?;
        same("forked and pulled", &late, &list(there, "bob")?)?;
    }
    if rng.chance(50) {
        here.must(&["rewind", "ada", "--to", "early"])?;
        same("rewound", &early, &list(here, "ada")?)?;
        if pulled_rewinds {
            // And on from there, in both.
            let (seed, changes) = (rng.draw().to_string(), "20");
            changed(here, &seed, changes)?;
            changed(there, &seed, changes)?;
        }
    }
    let whole = here.must(&[&["store", "verify"], &to_store[..]].concat())?;
    if !whole.out().contains(" 0 damaged") {
        return Err(trouble(format!("the store: {}", whole.out())));
    }
    for world in [here, there] {
        for name in ["ada", "bob", "cid"] {
            // Not every one was made.
            world.run(&["rm", name, "--force"])?;
        }
    }
    for dir in [root.as_path(), store.as_ref()] {
        std::fs::remove_dir_all(dir)?;
    }
    Ok(())
}

/// Makes the root of an image: the program, and a random tree.
fn image(world: &World, rng: &mut Rng, seed: u64) -> Res<PathBuf> {
    let root = world.root().join(format!("image-{seed}"));
    let base = root.join("base");
    for dir in ["bin", "base", "root", "workspace"] {
        std::fs::create_dir_all(root.join(dir))?;
    }
    std::fs::copy(env!("CARGO_BIN_EXE_tree"), root.join("bin/tree"))?;
    let mut tree = Command::new(env!("CARGO_BIN_EXE_tree"));
    tree.args(["change", &rng.draw().to_string(), "120"]);
    tree.arg(&base);
    run::run(tree)?.ok()?;
    Ok(root)
}

/// Makes random changes in `ada`.
fn change(world: &World, rng: &mut Rng, changes: u64) -> Res<()> {
    changed(world, &rng.draw().to_string(), &changes.to_string())
}

fn changed(world: &World, seed: &str, changes: &str) -> Res<()> {
    let args = ["exec", "ada", "--", TREE, "change", seed, changes];
    let done = world.must(&[&args[..], &ROOTS].concat())?;
    let said = done.out();
    let made: u64 = said
        .split(' ')
        .next()
        .and_then(|made| made.parse().ok())
        .ok_or_else(|| trouble(format!("tree says {said:?}")))?;
    let asked: u64 = changes.parse()?;
    if made * 2 < asked {
        return Err(trouble(format!("hardly anything can be changed: {said}")));
    }
    Ok(())
}

/// Everything that can be told of the trees of a sandbox, from inside, once it was started anew.
///
/// An overlay that is mounted may give two names of one file different numbers, where one was looked up before it was linked
/// (kernel 6.18), so which names are one file is only told then. All else must be the same before.
fn list(world: &World, name: &str) -> Res<String> {
    let look = || world.must(&[&["exec", name, "--", TREE, "list"], &ROOTS[..]].concat());
    let before = look()?.out();
    world.must(&["stop", name])?;
    let after = look()?.out();
    let unlinked = |list: &str| {
        let lines = list.lines().map(|line| line.split(" links: ").next());
        lines.flatten().collect::<Vec<_>>().join("\n")
    };
    same("started anew", &unlinked(&before), &unlinked(&after))?;
    Ok(after)
}

/// Says which lines differ.
fn same(what: &str, was: &str, is: &str) -> Res<()> {
    if was == is {
        return Ok(());
    }
    let gone = was.lines().filter(|line| !is.lines().any(|l| l == *line));
    let new = is.lines().filter(|line| !was.lines().any(|l| l == *line));
    let lines: Vec<String> = gone
        .map(|line| format!("- {line}"))
        .take(10)
        .chain(new.map(|line| format!("+ {line}")).take(10))
        .collect();
    Err(trouble(format!("{what}:\n{}", lines.join("\n"))))
}
