//! Kills at every named point: what the table says afterwards is what happened.

use protocol::control::ToSupervisor;
use protocol::{Limits, Outcome};

use crate::world::{Failpoint, World, exited, id, sh};

/// Kills the supervisor at `point` of one command; returns the world and how often the command ran.
fn killed_at(point: &str) -> (World, usize) {
    let mut world = World::unstarted(Limits::default());
    let failpoint = Failpoint::new(&world.path(""), point);
    world.start(&failpoint.env());
    let mut daemon = world.daemon(1);
    let effects = world.path("effects");
    let command = format!("echo x >> {}; echo out; exit 4", effects.display());
    daemon.start("a", sh(&command));
    let _standing = failpoint.reached();
    world.kill_9();
    let effects = std::fs::read_to_string(effects).unwrap_or_default();
    (world, effects.lines().count())
}

#[test]
fn killed_before_the_execution_the_row_is_there_and_nothing_ran() {
    let (world, ran) = killed_at("sup_starting");
    assert_eq!(ran, 0);
    let table = world.table();
    assert_eq!(table.ops[&id("a")].settlement, None);
}

#[test]
fn killed_before_the_settlement_the_row_is_open_and_it_ran_once() {
    let (world, ran) = killed_at("sup_exited");
    assert_eq!(ran, 1);
    assert_eq!(world.table().ops[&id("a")].settlement, None);
}

#[test]
fn killed_before_the_announcement_the_settlement_and_its_output_are_there() {
    let (mut world, ran) = killed_at("sup_settled");
    assert_eq!(ran, 1);
    let settlement = world.table().ops[&id("a")].settlement.clone().unwrap();
    assert_eq!(exited(&settlement), 4);
    assert_eq!(world.stdout("a"), "out\n");
    assert_eq!(settlement.stdout_bytes.0, 4);

    world.start(&[]);
    let mut daemon = world.connect();
    assert_eq!(daemon.fence(2).ops[0].settlement, Some(settlement.clone()));
    daemon.start("a", sh("echo again >> effects"));
    assert_eq!(daemon.settled("a"), settlement);
}

#[test]
fn a_lost_operation_is_told_as_lost_and_runs_again_only_as_another_attempt() {
    let (mut world, _) = killed_at("sup_exited");
    world.start(&[]);
    let mut daemon = world.daemon(2);
    let same = daemon.run("a", sh("echo again"));
    assert_eq!(same.outcome, Outcome::Lost);
    assert_eq!(same.stdout_bytes.0, 4);
    daemon.start_attempt("a", 2, sh("exit 5"));
    assert_eq!(exited(&daemon.settled("a")), 5);
    assert_eq!(world.table().ops[&id("a")].attempt, 2);
}

#[test]
fn a_start_sent_twice_runs_once() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let effects = world.path("effects");
    let command = format!("echo x >> {}; read; echo done", effects.display());
    let mut run = sh(&command);
    run.stdin = true;
    daemon.start("a", run.clone());
    daemon.start("a", run.clone());
    daemon.started("a");
    daemon.start("a", run.clone());
    daemon.started("a");
    // And by another daemon, in the middle of it.
    let mut daemon = world.daemon(2);
    daemon.start("a", run.clone());
    daemon.started("a");
    daemon.stdin("a", 0, b"\n", true);
    assert_eq!(exited(&daemon.settled("a")), 0);
    assert_eq!(exited(&daemon.run("a", run)), 0);
    assert_eq!(std::fs::read_to_string(effects).unwrap(), "x\n");
    assert_eq!(world.stdout("a"), "done\n");
}

#[test]
fn output_goes_on_while_the_daemon_is_away() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let gate = world.path("gate");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&gate)
            .status()
            .unwrap()
            .success()
    );
    daemon.start(
        "a",
        sh(&format!(
            "echo one; cat {} > /dev/null; echo two",
            gate.display()
        )),
    );
    daemon.output("a", 4);
    drop(daemon);
    std::fs::write(&gate, "go").unwrap();
    world.until("the operation settles by itself", || {
        world.table().ops[&id("a")].settlement.is_some()
    });
    let mut daemon = world.connect();
    let row = daemon.fence(2).ops.remove(0);
    assert_eq!(row.settlement.unwrap().stdout_bytes.0, 8);
    assert_eq!(world.stdout("a"), "one\ntwo\n");
}

#[test]
fn a_new_daemon_hears_at_once_how_far_running_output_reaches() {
    let world = World::new();
    let mut first = world.daemon(1);
    first.start("a", sh("echo one; sleep 1000"));
    first.output("a", 4);
    let mut second = world.daemon(1);
    second.output("a", 4);
}

#[test]
fn an_order_to_end_ends_everything_and_settles_it_durably() {
    let mut world = World::new();
    let mut daemon = world.daemon(1);
    let mark = format!("1{}.{}", world.pid(), line!());
    daemon.start(
        "stubborn",
        sh(&format!(
            "trap '' TERM; echo on; (setsid sleep {mark} &); sleep {mark}; sleep {mark}"
        )),
    );
    daemon.output("stubborn", 3);
    assert_eq!(
        exited(&daemon.run(
            "left",
            sh(&format!("setsid sleep {mark} > /dev/null 2>&1 &"))
        )),
        0
    );
    daemon.send(&ToSupervisor::Shutdown { grace_ms: 200 });
    let settlement = daemon.settled("stubborn");
    assert_eq!(settlement.outcome, Outcome::Cancelled);
    assert_eq!(settlement.error.as_deref(), Some("the sandbox was stopped"));
    assert_eq!(world.end(), Some(0));
    assert!(!crate::world::is_alive(&mark));
    assert!(world.table().ops[&id("stubborn")].settlement.is_some());
}

#[test]
fn a_damaged_table_stops_the_supervisor_with_words() {
    let mut world = World::new();
    let mut daemon = world.daemon(1);
    daemon.run("a", sh("true"));
    world.kill_9();
    let path = world.path("state/ops.table");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[15] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let ended = world.spawn(&[]).wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
}
