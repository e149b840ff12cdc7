//! `durable probe`, and what is left of its forks when it does not come to its end.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use system_tests::{Client, Res, World, process, trouble};

use crate::support::{SOON, until, world};

/// Writes a candidate that is a script.
fn candidate(world: &World, name: &str, script: &str) -> Res<()> {
    let dir = world.root().join("fixes");
    std::fs::create_dir_all(&dir)?;
    let file = dir.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n"))?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The names of all sandboxes but `ada`.
fn forks(world: &World) -> Res<Vec<String>> {
    let all = world.must(&["ps", "--json"])?.out();
    let name = |line: &str| -> Res<String> {
        let view: Value = serde_json::from_str(line)?;
        Ok(view["name"].as_str().unwrap_or_default().to_owned())
    };
    let mut names: Vec<String> = all.lines().map(name).collect::<Res<_>>()?;
    names.retain(|name| name != "ada");
    Ok(names)
}

/// Starts a probe of which one candidate has succeeded and been told, and another one hangs.
fn begun(world: &World, more: &[&str], nth: usize) -> Res<Client> {
    candidate(world, "a-good.sh", "echo good > f")?;
    let hangs = format!("echo hangs > {}; sleep 600", world.effects().inside());
    candidate(world, "b-hangs.sh", &hangs)?;
    let mut args = vec!["probe", "ada", "--candidates", "fixes"];
    args.extend(more);
    args.extend(["--", "grep", "-q", "good", "f"]);
    let probe = world.start(&args)?;
    assert!(
        world.effects().wait("hangs", nth, SOON),
        "{}",
        probe.words()
    );
    until("the good one is told", || {
        String::from_utf8_lossy(&probe.so_far()).contains("a-good")
    })?;
    Ok(probe)
}

#[test]
fn the_forks_of_a_probe_that_is_ended_go_but_those_that_were_told_as_good() -> Res<()> {
    let world = world("probe-ended")?;
    let signals = [Signal::INT, Signal::TERM, Signal::KILL];
    for (nth, signal) in signals.into_iter().enumerate() {
        let probe = begun(&world, &[], nth + 1)?;
        assert_eq!(forks(&world)?.len(), 2);
        let pid = Pid::from_raw(probe.pid()).ok_or_else(|| trouble("no pid"))?;
        rustix::process::kill_process(pid, signal)?;
        assert_eq!(probe.finish()?.code, None, "ended by {signal:?}");
        until("the fork that hangs is gone", || {
            forks(&world).is_ok_and(|forks| forks.len() == 1)
        })?;
        let kept = forks(&world)?;
        assert_eq!(world.must(&["cat", &kept[0], "f"])?.out(), "good\n");
        // As any other fork, it is there until somebody removes it.
        world.must(&["rm", &kept[0]])?;
    }
    world.end_clean()
}

#[test]
fn the_forks_of_a_probe_go_with_the_daemon_too() -> Res<()> {
    let world = world("probe-daemon")?;
    let probe = begun(&world, &[], 1)?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    let done = probe.finish()?;
    assert_eq!(done.code, Some(125), "{}", done.err());
    assert!(done.err().contains("go with the daemon"), "{}", done.err());
    assert_eq!(forks(&world)?.len(), 1, "the good one");
    let log = world.must(&["log", &forks(&world)?[0], "--json"])?.out();
    assert!(log.contains(r#""kind":"kept""#), "{log}");
    world.end_clean()
}

#[test]
fn a_probe_that_is_to_keep_its_forks_keeps_them() -> Res<()> {
    let world = world("probe-keep")?;
    let mut probe = begun(&world, &["--keep"], 1)?;
    probe.kill();
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    assert_eq!(forks(&world)?.len(), 2);
    for fork in forks(&world)? {
        world.must(&["rm", "--force", &fork])?;
    }
    world.end_clean()
}

#[test]
fn forks_whose_client_goes_while_they_are_made_go_too() -> Res<()> {
    let world = World::new("probe-early")?.with_points()?;
    world.create("ada", &[])?;
    candidate(&world, "a.sh", "true")?;
    let hit = world.points()?.arm(&["after_forked"], 0);
    let mut probe = world.start(&["probe", "ada", "--candidates", "fixes", "--", "true"])?;
    let at = hit.recv_timeout(Duration::from_secs(30))?;
    probe.kill();
    drop(at);
    until("nothing is left of it", || {
        forks(&world).is_ok_and(|forks| forks.is_empty())
    })?;
    world.end_clean()
}

#[test]
fn the_time_limit_covers_the_edit_and_the_command() -> Res<()> {
    let world = world("probe-time")?;
    candidate(&world, "a-slow-edit.sh", "sleep 600")?;
    candidate(&world, "b-slow-command.sh", "echo 600 > long")?;
    candidate(&world, "c-bad-edit.sh", "exit 3")?;
    let command = "test -e long || exit 0; sleep 600";
    let args = ["probe", "ada", "--candidates", "fixes", "--timeout", "1.5"];
    let mut with_json = args.to_vec();
    with_json.extend(["--json", "--", "sh", "-c", command]);
    let done = world.run(&with_json)?;
    assert_eq!(done.code, Some(1), "{}", done.err());
    let told: Vec<Value> = done
        .out()
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let [edit, command, bad] = &told[..] else {
        return Err(trouble(done.out()));
    };
    assert_eq!(edit["outcome"], "timed_out", "{edit}");
    assert!(
        edit["error"]
            .as_str()
            .is_some_and(|e| e.contains("edit took too long"))
    );
    assert_eq!(command["outcome"], "timed_out", "{command}");
    assert!(command["error"].is_null(), "{command}");
    assert!(
        bad["outcome"].is_null() && bad["error"].is_string(),
        "{bad}"
    );
    assert!(forks(&world)?.is_empty());
    world.end_clean()
}
