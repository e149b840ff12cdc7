//! How long from asking for a fresh sandbox to its first output?
//!
//! Held against `bwrap`, which makes the same namespaces and keeps nothing, and against `crun run` and `runc run`. The
//! sandbox is removed outside the timing; the peers remove theirs after the output too. The aim: at most 1.5 × bwrap.

use std::path::PathBuf;

use bench::Failure;

use crate::figures::Sample;
use crate::peers::{Peers, RUNTIMES, bwrap};
use crate::table::{Group, Unit};
use crate::world::{World, timed};

const HI: &[u8] = b"hi\n";

pub(crate) fn run(world: &World, peers: &Peers, rounds: usize) -> Result<Vec<Group>, Failure> {
    let mut api = world.connect()?;
    let dir = format!("dir:{}", world.root().display());
    let names = [
        "durable run (image host)",
        "durable run (image dir)",
        "bwrap",
        "crun run",
        "runc run",
    ];
    let mut first: [Sample; 5] = Default::default();
    let mut end = first.clone();
    let mut absent: [Option<String>; 5] = Default::default();
    for round in 0..rounds {
        let images = ["host", dir.as_str()];
        for (nth, image) in images.into_iter().enumerate() {
            let name = format!("create-{nth}-{round}");
            let mut run =
                world.durable(&["run", "--name", &name, "--image", image, "--", "echo", "hi"]);
            let times = timed(&mut run, HI)?;
            first[nth].push(times.first);
            end[nth].push(times.end);
            api.remove(&name)?;
        }
        for nth in 2..5 {
            if absent[nth].is_some() {
                continue;
            }
            let command = match nth {
                2 => bwrap(),
                _ => peers.run(RUNTIMES[nth - 3]),
            };
            match peers.timed(command, HI) {
                Ok(times) => {
                    first[nth].push(times.first);
                    end[nth].push(times.end);
                }
                Err(failure) => absent[nth] = Some(failure.chain()),
            }
        }
    }
    no_litter(world.data().join("sandboxes"))?;
    let mut groups = vec![
        Group::new("a fresh sandbox, from the command to its first output"),
        Group::new("the same, to the command's end"),
    ];
    for (group, samples) in groups.iter_mut().zip([&first, &end]) {
        for (nth, (name, sample)) in names.iter().zip(samples).enumerate() {
            match &absent[nth] {
                Some(why) => group.absent(*name, Unit::Millis, why),
                None if nth < 2 => group.line(*name, Unit::Millis, sample),
                None => group.peer(*name, Unit::Millis, sample),
            }
        }
    }
    if let (Some(ours), Some(peer)) = (groups[0].median(0), groups[0].median(2)) {
        groups[0].at_most("create ≤ 1.5 × bwrap", ours / peer, 1.5);
    }
    Ok(groups)
}

fn no_litter(sandboxes: PathBuf) -> Result<(), Failure> {
    let left = std::fs::read_dir(&sandboxes)
        .map_err(Failure::cannot(format!("list {}", sandboxes.display())))?
        .count();
    match left {
        0 => Ok(()),
        left => Err(Failure::wrong(format!("{left} removed sandboxes are left"))),
    }
}
