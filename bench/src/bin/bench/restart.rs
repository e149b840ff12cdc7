//! How long after `kill -9` of the daemon does the next one have every sandbox again, and what does a sandbox cost in memory?
//!
//! The time is from the start of the program to its word that it serves; that every sandbox runs, in the same boot as
//! before, is checked right after. The aim: less than a second with 200.

use std::collections::BTreeMap;

use bench::Failure;
use protocol::Boot;
use protocol::api::SandboxState;

use crate::figures::Sample;
use crate::table::{Group, Unit};
use crate::world::{World, millis};

pub(crate) fn run(
    world: &mut World,
    counts: &[usize],
    rounds: usize,
) -> Result<Vec<Group>, Failure> {
    let mut group = Group::new("restart of the daemon, to every sandbox reattached");
    let mut made = 0;
    for &count in counts {
        let mut api = world.connect()?;
        while made < count {
            api.create(&format!("restart-{made}"), world.image())?;
            made += 1;
        }
        let before = boots(world, count)?;
        let mut sample = Sample::default();
        for _ in 0..rounds {
            sample.push(millis(world.restart()?));
            let after = boots(world, count)?;
            if after != before {
                return Err(Failure::wrong("a sandbox was started anew, not reattached"));
            }
        }
        let who = format!("{count} sandboxes");
        group.line(who.clone(), Unit::Millis, &sample);
        if count == counts.iter().copied().max().unwrap_or_default()
            && let Some(figures) = sample.figures()
        {
            group.at_most(
                format!("reattach of {who} < 1 s"),
                figures.median / 1e3,
                1.0,
            );
        }
    }
    let mut memory = Group::new(format!("memory with {made} sandboxes that wait"));
    let (mut each, mut daemon) = (Sample::default(), Sample::default());
    for pid in supervisors(world) {
        each.push(resident(pid));
    }
    daemon.push(world.daemon_pid().map_or(0.0, resident));
    memory.line("of a sandbox's supervisor, its own", Unit::Mebibytes, &each);
    memory.line("of the daemon, its own", Unit::Mebibytes, &daemon);
    let mut api = world.connect()?;
    for nth in 0..made {
        api.remove(&format!("restart-{nth}"))?;
    }
    Ok(vec![group, memory])
}

fn boots(world: &World, count: usize) -> Result<BTreeMap<String, Option<Boot>>, Failure> {
    let list = world.connect()?.list()?;
    let running: BTreeMap<_, _> = list
        .into_iter()
        .filter(|sandbox| sandbox.state == SandboxState::Running)
        .map(|sandbox| (sandbox.name.to_string(), sandbox.boot))
        .collect();
    if running.len() == count {
        Ok(running)
    } else {
        Err(Failure::wrong(format!(
            "{} of {count} sandboxes run",
            running.len()
        )))
    }
}

/// The supervisors that the sandboxes' notes name.
fn supervisors(world: &World) -> Vec<u32> {
    let sandboxes = std::fs::read_dir(world.data().join("sandboxes"));
    sandboxes
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|dir| {
            let note = std::fs::read(dir.path().join("running.json")).ok()?;
            let note: serde_json::Value = serde_json::from_slice(&note).ok()?;
            note["pid"].as_u64()?.try_into().ok()
        })
        .collect()
}

/// Returns the memory that is a process's alone, in mebibytes: what another of its kind shares costs nothing again.
fn resident(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kibibytes: f64 = text
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum();
    kibibytes / 1024.0
}
