//! The kill itself.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use system_tests::{Client, Hit, Res, Rng, World, process, trouble};

use crate::cell::Victim;

/// How long a place may take to be reached.
const REACH: Duration = Duration::from_secs(60);

/// Waits for the process that stands at the armed place.
pub(crate) fn reached(hits: &Receiver<Hit>, world: &World) -> Res<Hit> {
    hits.recv_timeout(REACH).map_err(|error| {
        world.points().map(|points| points.disarm()).unwrap_or(());
        let why = match error {
            RecvTimeoutError::Timeout => "in time",
            RecvTimeoutError::Disconnected => "before the processes ended",
        };
        trouble(format!(
            "the place was not reached {why}; daemon.log ends:\n{}",
            world.daemon_log()
        ))
    })
}

/// Who there is to be killed.
pub(crate) struct Targets<'a> {
    pub(crate) world: &'a World,
    pub(crate) sandbox: &'a str,
    pub(crate) clients: &'a mut [Client],
    /// The harness's processes.
    pub(crate) harness: Vec<i32>,
    /// Whether the process that holds connections to models is among "all".
    pub(crate) relay: bool,
}

/// Kills, in an order that the seed says. Returns whom, for people.
pub(crate) fn strike(victim: Victim, targets: Targets<'_>, rng: &mut Rng) -> Res<String> {
    // Where one process stands still, the others go on meanwhile for a little: that is what the time is for.
    if rng.chance(50) {
        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
    }
    let Targets {
        world,
        sandbox,
        clients,
        harness,
        relay,
    } = targets;
    let all = victim == Victim::All;
    let mut pids: Vec<(i32, &str)> = Vec::new();
    if victim.takes_client() {
        pids.extend(clients.iter().map(|client| (client.pid(), "client")));
    }
    if all || victim == Victim::Harness {
        pids.extend(harness.iter().map(|pid| (*pid, "harness")));
    }
    if victim.takes_daemon() {
        let daemon = world.daemon();
        pids.push((
            daemon.ok_or_else(|| trouble("no daemon to kill"))?,
            "daemon",
        ));
    }
    if victim.takes_supervisor() {
        let supervisor = world.supervisor(sandbox);
        let supervisor = supervisor.ok_or_else(|| trouble("no supervisor to kill"))?;
        pids.push((supervisor, "supervisor"));
    }
    if all && relay {
        pids.extend(world.relay().map(|pid| (pid, "relay")));
    }
    rng.shuffle(&mut pids);
    for (pid, _) in &pids {
        process::kill(*pid);
    }
    let names: Vec<&str> = pids.iter().map(|(_, name)| *name).collect();
    Ok(names.join("+"))
}
