//! As PID 1 of a PID namespace, as in a sandbox.

use std::process::Command;

use protocol::control::ToSupervisor;
use protocol::{Limits, Outcome};

use crate::world::{World, exited, is_alive, sh};

/// A supervisor that is PID 1; `None`, said out loud, where namespaces cannot be had.
fn world() -> Option<World> {
    let unshare = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    let can = Command::new("unshare").args(unshare).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no PID namespace can be made here");
        return None;
    }
    let mut world = World::unstarted(Limits::default());
    world.prefix = ["unshare"]
        .into_iter()
        .chain(unshare)
        .map(str::to_owned)
        .collect();
    world.start(&[]);
    Some(world)
}

#[test]
fn signals_from_inside_do_nothing_to_it() {
    let Some(world) = world() else { return };
    let mut daemon = world.daemon(1);
    let command = "for s in TERM INT HUP CHLD USR1 PIPE STOP KILL; do kill -$s 1; done; echo $PPID";
    assert_eq!(exited(&daemon.run("a", sh(command))), 0);
    assert_eq!(world.stdout("a"), "1\n");
    assert_eq!(exited(&daemon.run("b", sh("exit 2"))), 2);
}

#[test]
fn its_descriptors_and_memory_are_closed_to_operations() {
    let Some(world) = world() else { return };
    let mut daemon = world.daemon(1);
    let command = "for f in /proc/1/fd/* /proc/1/cwd; do readlink $f; ls $f/; done; cat /proc/1/environ /proc/1/mem /proc/1/maps; \
                   readlink /proc/1/root; ls /proc/1/map_files";
    daemon.run("a", sh(command));
    assert_eq!(world.stdout("a"), "");
}

#[test]
fn an_order_to_end_leaves_no_process() {
    let Some(mut world) = world() else { return };
    let mut daemon = world.daemon(1);
    let mark = format!("5{}.{}", world.pid(), line!());
    let command = format!(
        "trap '' TERM; (env -i setsid bash -c \"trap '' TERM; sleep {mark}; sleep {mark}\" &); echo on; sleep {mark}; sleep {mark}"
    );
    daemon.start("a", sh(&command));
    daemon.output("a", 3);
    daemon.send(&ToSupervisor::Shutdown { grace_ms: 100 });
    assert_eq!(daemon.settled("a").outcome, Outcome::Cancelled);
    assert_eq!(world.end(), Some(0));
    assert!(!is_alive(&mark));
}

#[test]
fn its_loss_ends_everything_in_the_namespace() {
    let Some(mut world) = world() else { return };
    let mut daemon = world.daemon(1);
    let mark = format!("6{}.{}", world.pid(), line!());
    daemon.start("a", sh(&format!("echo on; sleep {mark}; sleep {mark}")));
    daemon.output("a", 3);
    world.kill_9();
    world.until("all processes are gone", || !is_alive(&mark));
    assert_eq!(world.stdout("a"), "on\n");
}
