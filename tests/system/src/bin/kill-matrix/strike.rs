//! The kill itself.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use system_tests::{Client, Hit, Res, Rng, World, process, trouble};

use crate::cell::Victim;

/// How long a place may take to be reached.
pub(crate) const REACH: Duration = Duration::from_secs(60);

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
    /// The harness's processes, itself first.
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
    // What is in one of them dies in this order.
    let mut groups: Vec<Vec<(i32, &str)>> = Vec::new();
    let mut alone = |pid, name| groups.push(vec![(pid, name)]);
    if victim.takes_client() {
        clients
            .iter()
            .for_each(|client| alone(client.pid(), "client"));
    }
    if victim.takes_daemon() {
        let daemon = world.daemon();
        alone(
            daemon.ok_or_else(|| trouble("no daemon to kill"))?,
            "daemon",
        );
    }
    if victim.takes_supervisor() {
        let supervisor = world.supervisor(sandbox);
        let supervisor = supervisor.ok_or_else(|| trouble("no supervisor to kill"))?;
        alone(supervisor, "supervisor");
    }
    if all
        && relay
        && let Some(pid) = world.relay()
    {
        alone(pid, "relay");
    }
    if all || victim == Victim::Harness {
        groups.push(harness.iter().map(|pid| (*pid, "harness")).collect());
    }
    rng.shuffle(&mut groups);
    let killed = groups.concat();
    for (pid, _) in &killed {
        process::kill(*pid);
    }
    let names: Vec<&str> = killed.iter().map(|(_, name)| *name).collect();
    Ok(names.join("+"))
}
