//! One daemon at a time, and never an older one.

use protocol::control::{FromSupervisor, ToSupervisor, encode};
use protocol::{Boot, Epoch};

use crate::world::{World, exited, head, sh};

#[test]
fn a_stale_epoch_is_refused_also_after_a_restart() {
    let mut world = World::new();
    let mut new = world.daemon(7);
    let mut old = world.connect();
    old.send(&ToSupervisor::Fence { epoch: Epoch(6) });
    let refused = FromSupervisor::Refused { highest: Epoch(7) };
    assert_eq!(old.hear(), Some(refused.clone()));
    assert_eq!(old.hear(), None);
    assert_eq!(exited(&new.run("a", sh("exit 3"))), 3);

    world.kill_9();
    world.start(&[]);
    let mut old = world.connect();
    old.send(&ToSupervisor::Fence { epoch: Epoch(6) });
    assert_eq!(old.hear(), Some(refused));
}

#[test]
fn nothing_is_obeyed_before_a_fence() {
    let world = World::new();
    let mut rude = world.connect();
    rude.start("a", sh("echo ran"));
    assert_eq!(
        rude.hear(),
        Some(FromSupervisor::Refused { highest: Epoch(0) })
    );
    assert_eq!(rude.hear(), None);
    assert!(world.daemon(1).fence(1).ops.is_empty());
}

#[test]
fn a_newer_fence_ends_the_older_connection() {
    let world = World::new();
    let mut first = world.daemon(1);
    let mut second = world.daemon(1);
    assert_eq!(first.hear(), None);
    let mut third = world.daemon(2);
    assert_eq!(second.hear(), None);
    assert_eq!(exited(&third.run("a", sh("true"))), 0);
}

#[test]
fn a_daemon_that_dies_at_any_byte_of_a_message_does_no_harm() {
    let world = World::new();
    let mut wire = bytes::BytesMut::new();
    encode(&ToSupervisor::Fence { epoch: Epoch(1) }, &mut wire).unwrap();
    let fence = wire.len();
    let start = ToSupervisor::Start {
        op: "a".parse().unwrap(),
        attempt: 1,
        run: sh("echo ran >> effects"),
        witness: head(1),
    };
    encode(&start, &mut wire).unwrap();
    for cut in (0..wire.len()).step_by(7) {
        let mut daemon = world.connect();
        daemon.try_send(&wire[..cut]).unwrap();
        if cut >= fence {
            assert!(daemon.hear().is_some());
        }
    }
    assert!(world.daemon(1).fence(1).ops.is_empty());
    let mut damaged = wire.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut daemon = world.connect();
    daemon.try_send(&damaged).unwrap();
    assert!(matches!(daemon.hear(), Some(FromSupervisor::Fenced { .. })));
    assert_eq!(daemon.hear(), None);
    assert!(world.daemon(1).fence(1).ops.is_empty());
}

#[test]
fn the_witness_and_open_operations_are_told_to_the_next_daemon() {
    let mut world = World::new();
    let mut daemon = world.daemon(1);
    daemon.run("told", sh("exit 1"));
    daemon.announce("told", 40);
    daemon.run("untold", sh("exit 2"));
    daemon.start("open", sh("echo here; sleep 1000"));
    daemon.output("open", 5);
    let fenced = world.connect().fence(2);
    assert_eq!(fenced.boot, Boot(1));
    assert_eq!(fenced.witness, head(40));
    let rows: Vec<_> = fenced
        .ops
        .iter()
        .map(|row| (row.op.as_str(), row.settlement.is_some()))
        .collect();
    assert_eq!(rows, [("open", false), ("untold", true)]);

    // A restart loses no more than the lazy announcement.
    world.until("the announcement is on disk", || {
        world.table().witness == head(40)
    });
    world.kill_9();
    world.start(&[]);
    let fenced = world.connect().fence(2);
    assert_eq!((fenced.boot, fenced.witness), (Boot(2), head(40)));
    let lost = fenced
        .ops
        .iter()
        .find(|row| row.op.as_str() == "open")
        .unwrap();
    assert_eq!((lost.boot, &lost.settlement), (Boot(1), &None));
}
