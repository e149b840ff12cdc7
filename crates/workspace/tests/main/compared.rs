//! What the pool tells of places is what a comparison needs: with it, two cuts differ in the same as where all is looked at.

use std::fs;

use protocol::CutId;
use tree::{Options, Renames, Touched, Trust, View, changes};

use crate::random::{Dice, Mapping, change};
use crate::world::World;

const SEEDS: u64 = 12;
const ROUNDS: u64 = 10;

#[test]
fn places_that_the_pool_names_are_all_that_a_comparison_finds() {
    let Some(world) = World::btrfs() else { return };
    let seeds = match std::env::var("WORKSPACE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=SEEDS).collect(),
    };
    let mut told = 0;
    for seed in seeds {
        println!("WORKSPACE_SEED={seed}");
        told += run(&world, seed);
    }
    assert!(told > 0, "the pool told nothing");
}

/// Returns how many differences were found.
fn run(world: &World, seed: u64) -> usize {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let lower = world.dir.path().join(format!("lower-{seed}"));
    fs::create_dir(&lower).unwrap();
    let head = world.pool.create().unwrap();
    let up = world.upper(&head);
    let mut mapping = Mapping::new(&up.join("mapped"));
    for _ in 0..60 {
        change(&mut dice, &up, &mut mapping);
    }
    let mut cuts: Vec<CutId> = Vec::new();
    let mut told = 0;
    for round in 0..ROUNDS {
        for _ in 0..dice.below(6) {
            change(&mut dice, &up, &mut mapping);
        }
        let id: CutId = format!("c{round}").parse().unwrap();
        if world.pool.cut(&head, &id).unwrap().is_some() {
            cuts.push(id);
        }
        let (one, other) = (dice.choose(&cuts).clone(), dice.choose(&cuts).clone());
        let view = |cut: &CutId| View {
            upper: Some(world.pool.cut_path(&head, cut)),
            lower: Some(lower.clone()),
        };
        let compare = |touched: Option<Touched>| {
            let options = Options {
                trust: Trust::Nothing,
                renames: Renames::Apart,
                ignore: Vec::new(),
                touched,
            };
            changes(&view(&one), &view(&other), &options).unwrap()
        };
        let places = world.pool.changed_places(&head, &one, &other).unwrap();
        let places = places.expect("both are of one head");
        let (all, near) = (compare(None), compare(Some(Touched::new(places))));
        assert_eq!(near, all, "seed {seed}: {one} and {other}");
        told += near.len();
    }
    told
}
