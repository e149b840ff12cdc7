//! Many operations, one after the other and at one time, and much output: nothing grows.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use protocol::control::FromSupervisor;

use crate::world::{World, argv, exited, sh};

#[test]
fn sixty_four_at_once_all_come_back_with_their_own_output() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    for n in 0..64 {
        daemon.start(&format!("op-{n}"), sh(&format!("echo {n}; exit {n}")));
    }
    let mut open: BTreeSet<u8> = (0..64).collect();
    while !open.is_empty() {
        let (op, settlement) = daemon.wait(|message| match message {
            FromSupervisor::Settled { op, settlement, .. } => {
                Some((op.clone(), settlement.clone()))
            }
            _ => None,
        });
        let n = exited(&settlement);
        assert_eq!(op.as_str(), format!("op-{n}"));
        assert!(open.remove(&n));
    }
    for n in 0..64 {
        assert_eq!(world.stdout(&format!("op-{n}")), format!("{n}\n"));
    }
}

#[test]
fn two_thousand_in_a_row_leave_nothing_behind() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut one = |n: u64| {
        let op = format!("op-{n}");
        let run = if n.is_multiple_of(2) {
            argv(&["true"])
        } else {
            argv(&["echo", "x"])
        };
        assert_eq!(exited(&daemon.run(&op, run)), 0);
        daemon.announce(&op, n);
    };
    (0..500).for_each(&mut one);
    let (files, memory) = (world.open_files(), world.status("VmRSS"));
    (500..2000).for_each(&mut one);
    let left = world.open_files();
    assert!(left <= files, "{left} files are open, {files} were");
    let grown = world.status("VmRSS").saturating_sub(memory);
    assert!(grown < 512, "grew by {grown} kB from {memory} kB");
    let open = world.daemon(1).fence(1).ops;
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn memory_stays_flat_under_output_that_nobody_reads() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    daemon.run("warm", sh("head -c 20M /dev/zero"));
    let memory = world.status("VmRSS");
    let settlement = daemon.run("a", sh("head -c 2G /dev/zero"));
    assert_eq!(exited(&settlement), 0);
    assert_eq!(settlement.stdout_bytes.0, 2 << 30);
    let grown = world.status("VmHWM").saturating_sub(memory);
    assert!(grown < 2048, "grew by {grown} kB from {memory} kB");
}

#[test]
fn a_flood_does_not_keep_others_from_running() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    for n in 0..3 {
        daemon.start(
            &format!("flood-{n}"),
            sh("head -c 400M /dev/zero; sleep 1000"),
        );
    }
    for n in 0..20 {
        assert_eq!(
            exited(&daemon.run(&format!("small-{n}"), argv(&["true"]))),
            0
        );
    }
}

#[test]
fn at_the_limit_of_processes_nothing_is_started_and_nothing_breaks() {
    let mut world = World::unstarted(protocol::Limits::default());
    // The limit of a user counts as that of a sandbox does; root is exempt from it.
    if rustix::process::geteuid().is_root() {
        world.prefix = [
            "setpriv",
            "--reuid",
            "4242",
            "--regid",
            "4242",
            "--clear-groups",
        ]
        .map(str::to_owned)
        .into();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(world.path(""), open).unwrap();
    }
    world
        .prefix
        .extend(["prlimit", "--nproc=12"].map(str::to_owned));
    world.start(&[]);
    let mut daemon = world.daemon(1);
    let hold = "exec sleep 1000";
    let mut refused = 0;
    let mut loud = sh("echo on; read; exec head -c 60M /dev/zero");
    loud.stdin = true;
    daemon.start("loud", loud);
    daemon.output("loud", 3);
    for n in 0..12 {
        let op = format!("op-{n}");
        daemon.start(&op, sh(hold));
        refused += daemon.wait(|message| match message {
            FromSupervisor::Started { .. } => Some(0),
            FromSupervisor::Settled { settlement, .. } => {
                let error = settlement.error.clone().unwrap();
                assert!(error.contains("limit of processes"), "{error}");
                Some(1)
            }
            _ => None,
        });
    }
    assert!(refused > 0);
    daemon.stdin("loud", 0, b"\n", true);
    let settlement = daemon.settled("loud");
    assert_eq!(
        (exited(&settlement), settlement.stdout_bytes.0),
        (0, (60 << 20) + 3)
    );
}
