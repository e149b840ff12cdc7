//! What several subjects share.

use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::{Res, World, trouble};

/// How long something that is under way may take to be seen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A world with one sandbox, `ada`.
pub(crate) fn world(label: &str) -> Res<World> {
    let world = World::new(label)?;
    world.create("ada", &[])?;
    Ok(world)
}

/// What `durable op` knows of an operation of `ada`.
pub(crate) fn op(world: &World, id: &str) -> Res<Value> {
    world.json(&["op", "ada", id, "--json"])
}

/// What `durable op --wait` knows of an operation of `ada` once it has settled.
pub(crate) fn settled(world: &World, id: &str) -> Res<Value> {
    world.json(&["op", "ada", id, "--wait", "--json"])
}

/// Waits for something that nobody announces.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Res<()> {
    let end = Instant::now() + SOON;
    while !holds() {
        if Instant::now() > end {
            return Err(trouble(format!("not within {} s: {what}", SOON.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
