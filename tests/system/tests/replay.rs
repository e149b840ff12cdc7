//! What becomes of a command whose supervisor was killed: told as lost, run again, or put back and run again.

use std::time::Duration;

use system_tests::{Client, Gate, Res, World, process, trouble};

/// Starts a command that stops at a gate, kills its supervisor there and opens the gate.
fn crash(world: &World, op: &str, more: &[&str], script: &str, gate: &Gate) -> Res<Client> {
    let script = format!(
        "{script}; echo '{op} began' > {}; read -r go < {}; cat f",
        world.effects().inside(),
        gate.inside()
    );
    let mut args = vec!["exec", "a", "--op", op];
    args.extend(more);
    args.extend(["--", "bash", "-c", &script]);
    let client = world.start(&args)?;
    if !world
        .effects()
        .wait(&format!("{op} began"), 1, Duration::from_secs(60))
    {
        return Err(trouble(format!("it never began: {}", client.words())));
    }
    // What is still in the pipe when its only reader is killed is nobody's.
    if script.starts_with("echo out;") && !client.wait_out(4, Duration::from_secs(60)) {
        return Err(trouble(format!("no output: {}", client.words())));
    }
    process::kill(
        world
            .supervisor("a")
            .ok_or_else(|| trouble("no supervisor"))?,
    );
    gate.open()?;
    Ok(client)
}

#[test]
fn by_default_it_is_lost_and_told_so_with_its_output() -> Res<()> {
    let world = World::new("never")?;
    world.create("a", &[])?;
    let gate = world.effects().gate("never")?;
    let done = crash(&world, "n", &[], "echo out; echo x > f", &gate)?.finish()?;
    assert_eq!(done.code, Some(123));
    assert_eq!(done.out(), "out\n");
    assert!(done.err().contains("lost"), "{}", done.err());
    let view = world.json(&["op", "a", "n", "--json"])?;
    assert_eq!(
        (&view["outcome"], &view["attempt"]),
        (&"lost".into(), &1.into())
    );
    assert!(
        view["exit_code"].is_null() && view["cut"].is_string(),
        "{view}"
    );
    // The files stay as they were.
    assert_eq!(world.must(&["exec", "a", "--", "cat", "f"])?.out(), "x\n");
    assert_eq!(world.effects().lines("n began")?.len(), 1);
    world.end_clean()
}

#[test]
fn what_may_be_run_again_is_and_its_client_hears_only_of_the_last_run() -> Res<()> {
    let world = World::new("safe")?;
    world.create("a", &[])?;
    let gate = world.effects().gate("safe")?;
    let more = ["--replay", "safe"];
    let done = crash(&world, "s", &more, "echo out; echo x >> f", &gate)?.finish()?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    assert!(done.err().contains("attempt 2"), "{}", done.err());
    assert!(done.out().ends_with("out\nx\nx\n"), "{:?}", done.out());
    assert_eq!(world.must(&["read", "a", "s"])?.out(), "out\nx\nx\n");
    assert_eq!(world.json(&["op", "a", "s", "--json"])?["attempt"], 2);
    assert_eq!(world.effects().lines("s began")?.len(), 2);
    world.end_clean()
}

#[test]
fn what_is_put_back_first_leaves_one_trace() -> Res<()> {
    let world = World::new("rollback")?;
    world.create("a", &[])?;
    world.sh("a", "echo base > f")?.ok()?;
    let gate = world.effects().gate("rollback")?;
    let more = ["--replay", "rollback"];
    let done = crash(&world, "r", &more, "echo x >> f; mkdir d", &gate)?.finish()?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    assert_eq!(world.must(&["read", "a", "r"])?.out(), "base\nx\n");
    assert_eq!(world.json(&["op", "a", "r", "--json"])?["attempt"], 2);
    let log = world.must(&["log", "a"])?.out();
    assert!(log.contains("rolled_back"), "{log}");
    world.end_clean()
}

#[test]
fn what_cannot_be_put_back_alone_is_lost() -> Res<()> {
    let world = World::new("together")?;
    world.create("a", &[])?;
    world.sh("a", "echo base > f")?.ok()?;
    world.must(&["exec", "a", "--op", "other", "-d", "--", "sleep", "1000"])?;
    let gate = world.effects().gate("together")?;
    let done = crash(&world, "r", &["--replay", "rollback"], "echo x >> f", &gate)?.finish()?;
    assert_eq!(done.code, Some(123), "{}", done.err());
    assert_eq!(
        world.must(&["exec", "a", "--", "cat", "f"])?.out(),
        "base\nx\n"
    );
    assert_eq!(
        world.json(&["op", "a", "other", "--json"])?["outcome"],
        "lost"
    );
    world.end_clean()
}

#[test]
fn a_sandbox_that_rolls_back_has_the_files_of_its_last_cut() -> Res<()> {
    let world = World::new("policy")?;
    world.create("a", &["--on-crash", "rollback"])?;
    world.sh("a", "echo base > f")?.ok()?;
    let gate = world.effects().gate("policy")?;
    let done = crash(&world, "p", &[], "echo x >> f", &gate)?.finish()?;
    assert_eq!(done.code, Some(123), "{}", done.err());
    assert_eq!(
        world.must(&["exec", "a", "--", "cat", "f"])?.out(),
        "base\n"
    );
    world.end_clean()
}
