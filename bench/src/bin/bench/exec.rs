//! How long does `true` take in a sandbox that runs, journaled and on disk, from a shell's point of view?
//!
//! Held against `crun exec` and `runc exec` of the same program in the same image, which keep nothing, and against the bare
//! program. The aim: no slower than the faster of the two.

use std::process::Command;
use std::time::Instant;

use bench::api::command;
use bench::{Failure, daemon};
use protocol::Outcome;

use crate::figures::Sample;
use crate::peers::{Peers, RUNTIMES};
use crate::table::{Group, Unit};
use crate::world::{World, millis, timed};

const SANDBOX: &str = "exec";

pub(crate) fn run(world: &World, peers: &Peers, rounds: usize) -> Result<Vec<Group>, Failure> {
    let mut api = world.connect()?;
    api.create(SANDBOX, world.image())?;
    // The first operation's cut holds what the start made.
    api.exec(SANDBOX, "first", &command(&["true"]), |_| ())?;
    let mut absent = [None, None];
    for (runtime, absent) in RUNTIMES.iter().zip(&mut absent) {
        *absent = peers.start(*runtime).err().map(|e| e.chain());
    }
    let mut ours = Sample::default();
    let mut kept = Sample::default();
    let mut theirs = [Sample::default(), Sample::default()];
    let mut bare = Sample::default();
    let spec = command(&["true"]);
    for round in 0..rounds {
        let mut exec = world.durable(&["exec", SANDBOX, "--", "true"]);
        ours.push(timed(&mut exec, b"")?.end);
        for (nth, runtime) in RUNTIMES.iter().enumerate() {
            if absent[nth].is_none() {
                let exec = peers.exec(*runtime, &["true"]);
                theirs[nth].push(peers.timed(exec, b"")?.end);
            }
        }
        let begun = Instant::now();
        let settled = api.exec(SANDBOX, &format!("api-{round}"), &spec, |_| ())?;
        kept.push(millis(begun.elapsed()));
        if settled.view.exit_code != Some(0) {
            return Err(Failure::wrong(format!("`true` settled as {settled:?}")));
        }
        bare.push(timed(&mut Command::new("/bin/true"), b"")?.end);
    }
    for (runtime, absent) in RUNTIMES.iter().zip(&absent) {
        if absent.is_none() {
            peers.stop(*runtime);
        }
    }
    check(&mut api, rounds * 2)?;
    api.remove(SANDBOX)?;

    let mut group = Group::new(
        "exec of `true` in a running sandbox, journaled and on disk, command to command",
    );
    group.line("durable exec", Unit::Millis, &ours);
    for ((runtime, absent), sample) in RUNTIMES.iter().zip(absent).zip(&theirs) {
        let who = format!("{} exec", runtime.name());
        match absent {
            Some(why) => group.absent(who, Unit::Millis, why),
            None => group.peer(who, Unit::Millis, sample),
        }
    }
    group.peer("the bare program", Unit::Millis, &bare);
    let fastest = theirs.iter().filter_map(Sample::figures).map(|f| f.median);
    if let (Some(ours), Some(fastest)) = (group.median(0), fastest.reduce(f64::min)) {
        group.at_most("exec ≤ 1 × the faster runtime's", ours / fastest, 1.0);
    }
    let mut inside = Group::new("the same over a kept connection to the API");
    inside.line("PUT …/ops/ID?frames=true", Unit::Millis, &kept);
    Ok(vec![group, inside])
}

/// Every one of them is in the journal, with its true outcome.
fn check(api: &mut bench::Api, expected: usize) -> Result<(), Failure> {
    let ops: Vec<protocol::api::OpView> = api.get(&format!("/v1/sandboxes/{SANDBOX}/ops"))?;
    let exited = Outcome::Exited { exit_code: 0 }.name();
    let ops: Vec<_> = ops
        .into_iter()
        .filter(|op| op.id.as_str() != "first")
        .collect();
    let good = ops.iter().filter(|op| {
        op.outcome.as_deref() == Some(exited) && op.exit_code == Some(0) && op.cut.is_none()
    });
    match good.count() {
        count if count == expected && ops.len() == expected => Ok(()),
        count => Err(Failure::wrong(format!(
            "{expected} operations were announced, {} are journaled, {count} of them as they were ({})",
            ops.len(),
            daemon::program().display()
        ))),
    }
}
