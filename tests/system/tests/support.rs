//! What several subjects share.

use std::time::{Duration, Instant};

use serde_json::Value;
use system_tests::{Done, Res, World, trouble};

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

/// A refusal: exit code 125, nothing on stdout, one line on stderr that names the thing. Returns that line.
#[track_caller]
pub(crate) fn refused(done: &Done, code: &str, names: &str) -> String {
    let line = done.err().trim_end().to_owned();
    assert_eq!(done.code, Some(125), "{line}");
    assert_eq!(done.out(), "", "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let start = format!("error[{code}]: ");
    assert!(line.starts_with(&start), "{line}");
    assert!(line.contains(names), "{names:?} is not named: {line}");
    line
}

/// The same refusal in JSON.
#[track_caller]
pub(crate) fn refused_json(done: &Done, code: &str, names: &str) {
    let line = done.err();
    assert_eq!(done.code, Some(125), "{line}");
    assert_eq!(done.out(), "", "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    let error: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(error["error"]["code"], code, "{line}");
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains(names), "{names:?} is not named: {line}");
}
