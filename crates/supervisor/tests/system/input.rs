//! Input by offset.

use crate::world::{World, exited, id, sh};

#[test]
fn duplicates_and_gaps_do_not_change_what_is_read() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut run = sh("cat");
    run.stdin = true;
    daemon.start("a", run);
    daemon.stdin("a", 0, b"hello ", false);
    daemon.stdin("a", 0, b"hello wo", false);
    daemon.stdin("a", 100, b"lost", false);
    daemon.output("a", 8);
    // Another daemon does not know how far the first one came.
    let mut daemon = world.daemon(2);
    daemon.stdin("a", 3, b"lo world", false);
    daemon.stdin("a", 11, b"\n", true);
    assert_eq!(exited(&daemon.settled("a")), 0);
    assert_eq!(world.stdout("a"), "hello world\n");
    assert_eq!(daemon.accepted[&id("a")], (12, true));
}

#[test]
fn a_gap_is_answered_with_what_is_wanted() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut run = sh("cat");
    run.stdin = true;
    daemon.start("a", run);
    daemon.started("a");
    daemon.stdin("a", 5, b"x", false);
    while !daemon.accepted.contains_key(&id("a")) {
        daemon.hear();
    }
    assert_eq!(daemon.accepted[&id("a")], (0, false));
}

#[test]
fn much_input_goes_through_exactly() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let data: Vec<u8> = (0..8_000_000u32).flat_map(u32::to_le_bytes).collect();
    let mut run = sh("sleep 0.2; cat");
    run.stdin = true;
    daemon.start("a", run);
    daemon.feed("a", &data);
    assert_eq!(exited(&daemon.settled("a")), 0);
    assert!(world.spooled("a", protocol::Stream::Stdout) == data);
}

#[test]
fn a_command_that_closes_its_input_is_told() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut run = sh("exec <&-; echo closed; sleep 1000");
    run.stdin = true;
    daemon.start("a", run);
    while daemon.accepted.get(&id("a")) != Some(&(0, true)) {
        daemon.hear();
    }
}

#[test]
fn without_input_a_command_reads_the_end_at_once() {
    let world = World::new();
    let settlement = world.daemon(1).run("a", sh("cat; echo end"));
    assert_eq!(exited(&settlement), 0);
    assert_eq!(world.stdout("a"), "end\n");
}

#[test]
fn the_end_of_input_ends_a_reader_on_a_terminal() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut run = sh("stty -echo; cat > /dev/null; echo end");
    run.stdin = true;
    run.tty = Some(protocol::TtySize { rows: 2, cols: 80 });
    daemon.start("a", run);
    daemon.stdin("a", 0, b"half a line", true);
    assert_eq!(exited(&daemon.settled("a")), 0);
    assert!(world.stdout("a").ends_with("end\r\n"));
}
