//! Odd commands: binary output, odd ends, nobody reading, more output than there is room for.

use std::process::Stdio;
use std::time::Duration;

use system_tests::{Res, process, trouble};

use crate::support::{SOON, op, settled, until, world};

#[test]
fn fifty_megabytes_of_noise_are_read_again_to_the_bit() -> Res<()> {
    let world = world("noise")?;
    let script = "head -c 50M /dev/urandom > /tmp/noise; cat /tmp/noise; b2sum < /tmp/noise >&2";
    let done = world.must(&["exec", "ada", "--op", "noise", "--", "bash", "-c", script])?;
    let view = op(&world, "noise")?;
    assert_eq!(view["stdout_bytes"], 50 << 20);
    let read = world.must(&["read", "ada", "noise"])?.stdout;
    assert!(read == done.stdout, "read and exec differ");
    let tail = world
        .must(&["read", "ada", "noise", "--from", "52428700"])?
        .stdout;
    assert!(tail == read[52_428_700..]);
    // The sum that the command itself took.
    let sum = world
        .must(&["read", "ada", "noise", "--stream", "stderr"])?
        .out();
    let dir = world.root().join("read");
    std::fs::write(&dir, &read)?;
    let ours = std::process::Command::new("b2sum")
        .stdin(std::fs::File::open(&dir)?)
        .output()?;
    assert_eq!(String::from_utf8_lossy(&ours.stdout), sum);
    world.end_clean()
}

/// The pool could not tell whether such a file is still what was written.
#[test]
fn nobody_takes_the_checksums_of_a_file_away() -> Res<()> {
    let world = world("nocow")?;
    let done = world
        .sh("ada", "touch f && ! chattr +C f && lsattr -l f")?
        .ok()?;
    assert!(
        done.err().contains("Operation not permitted") && !done.out().contains("No_COW"),
        "{done:?}"
    );
    world.end_clean()
}

#[test]
fn shells_end_as_they_do_elsewhere() -> Res<()> {
    let world = world("shells")?;
    let done = world.sh("ada", "cat <<END\nopen\nended by nothing")?.ok()?;
    assert_eq!(done.out(), "open\nended by nothing\n");
    assert!(done.err().contains("here-document"), "{}", done.err());
    let done = world.sh("ada", "exec true")?;
    assert_eq!(
        (done.code, done.out(), done.err()),
        (Some(0), String::new(), String::new())
    );
    let done = world.sh("ada", "exec false")?;
    assert_eq!(done.code, Some(1));
    let odd = "a b\tc'\"\\$(x)\u{1f980}";
    let done = world.must(&["exec", "ada", "--", "printf", "%s", odd, ""])?;
    assert_eq!(done.out(), odd);
    world.end_clean()
}

#[test]
fn a_child_in_the_background_does_not_hold_the_outcome() -> Res<()> {
    let world = world("background")?;
    let gate = world.effects().gate("gate")?;
    let script = format!(
        "(read -r go < {}; echo late) & echo early; exit 4",
        gate.inside()
    );
    let args = [
        "exec",
        "ada",
        "--op",
        "b",
        "--timeout",
        "60",
        "--",
        "bash",
        "-c",
        &script,
    ];
    let done = world.start(&args)?.finish_within(SOON)?;
    assert_eq!(done.code, Some(4));
    assert!(done.out().starts_with("early\n"), "{}", done.out());
    let first = world.must(&["read", "ada", "b"])?.stdout;
    gate.open()?;
    // What is settled does not change afterwards.
    assert_eq!(world.must(&["read", "ada", "b"])?.stdout, first);
    let view = op(&world, "b")?;
    assert_eq!(view["stdout_bytes"], first.len());
    world.end_clean()
}

#[test]
fn one_that_closes_its_stdout_goes_on() -> Res<()> {
    let world = world("closes")?;
    let gate = world.effects().gate("gate")?;
    let script = format!(
        "echo one; exec >&-; read -r go < {}; echo two >&2; exit 6",
        gate.inside()
    );
    let client = world.start(&["exec", "ada", "--op", "x", "--", "bash", "-c", &script])?;
    assert!(client.wait_out(4, SOON));
    assert_eq!(op(&world, "x")?["state"], "running");
    gate.open()?;
    let done = client.finish()?;
    assert_eq!(
        (done.code, done.out(), done.err()),
        (Some(6), "one\n".into(), "two\n".into())
    );
    world.end_clean()
}

#[test]
fn a_hundred_megabytes_unread_hold_up_neither_the_command_nor_memory() -> Res<()> {
    let world = world("unread")?;
    world.must(&["exec", "ada", "--", "true"])?;
    let daemon = world.daemon().ok_or_else(|| trouble("no daemon"))?;
    let supervisor = world
        .supervisor("ada")
        .ok_or_else(|| trouble("no supervisor"))?;
    let memory = || process::anonymous_memory(daemon) + process::anonymous_memory(supervisor);
    let before = memory();
    // A client whose stdout nobody reads: its pipe is full after 64 KiB.
    let args = [
        "exec",
        "ada",
        "--op",
        "u",
        "--",
        "head",
        "-c",
        "100M",
        "/dev/zero",
    ];
    let mut command = world.command(args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut stuck = command.spawn()?;
    let view = {
        until("the operation", || op(&world, "u").is_ok())?;
        settled(&world, "u")?
    };
    assert_eq!(
        (&view["exit_code"], &view["stdout_bytes"]),
        (&0.into(), &(100 << 20).into())
    );
    let grown = memory().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more of memory");
    assert!(stuck.try_wait()?.is_none(), "its output went nowhere");
    stuck.kill()?;
    stuck.wait()?;
    assert_eq!(world.must(&["read", "ada", "u"])?.stdout.len(), 100 << 20);
    world.end_clean()
}

#[test]
fn output_beyond_the_quota_settles_with_an_error_that_says_so() -> Res<()> {
    let world = system_tests::World::new("quota")?;
    world.create("ada", &["--spool", "1M"])?;
    let args = [
        "exec",
        "ada",
        "--op",
        "q",
        "--",
        "head",
        "-c",
        "8M",
        "/dev/zero",
    ];
    let done = world.start(&args)?.finish_within(Duration::from_secs(60))?;
    assert_ne!(done.code, Some(0), "{}", done.err());
    assert!(done.err().contains("quota"), "{}", done.err());
    let view = op(&world, "q")?;
    assert!(
        view["error"].as_str().is_some_and(|e| e.contains("quota")),
        "{view}"
    );
    let kept = view["stdout_bytes"].as_u64().unwrap_or_default();
    assert!((1..=1 << 20).contains(&kept), "{view}");
    assert_eq!(done.stdout.len() as u64, kept);
    assert_eq!(world.must(&["read", "ada", "q"])?.stdout.len() as u64, kept);
    world.end_clean()
}
