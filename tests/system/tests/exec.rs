//! `durable exec`: what a command is given, how it ends, and that an id runs once.

use std::io::Write as _;
use std::process::Stdio;

use system_tests::{Client, Res, process, trouble};

use crate::support::{SOON, op, until, world};

#[test]
fn the_exit_code_is_the_commands_own() -> Res<()> {
    let world = world("codes")?;
    for code in [0, 1, 7, 125, 255] {
        let done = world.sh("ada", &format!("exit {code}"))?;
        assert_eq!(done.code, Some(code));
        assert_eq!((done.out(), done.err()), Default::default());
    }
    let done = world.sh("ada", "echo out; echo err >&2; kill -9 $$")?;
    assert_eq!(done.code, Some(137));
    assert_eq!(done.out(), "out\n");
    assert!(done.err().starts_with("err\n"), "{}", done.err());
    assert!(done.err().contains("signal 9"), "{}", done.err());
    world.end_clean()
}

#[test]
fn a_command_gets_the_environment_directory_and_user_that_were_asked_for() -> Res<()> {
    let world = world("given")?.with_env("OURS", "from outside");
    let script = "pwd; id -u; echo $A; echo $OURS; echo ${HIDDEN-unset}";
    let args = [
        "exec", "ada", "-e", "A=x=y z", "-e", "OURS", "--cwd", "/tmp", "--user", "nobody",
    ];
    let mut command = world.command(args);
    command
        .args(["--", "sh", "-c", script])
        .env("HIDDEN", "secret");
    let done = system_tests::run::run(command)?.ok()?;
    assert_eq!(done.out(), "/tmp\n65534\nx=y z\nfrom outside\nunset\n");

    let done = world.must(&[
        "exec",
        "ada",
        "-u",
        "1234:2345",
        "--",
        "sh",
        "-c",
        "id -u; id -g; pwd",
    ])?;
    assert_eq!(done.out(), "1234\n2345\n/workspace\n");
    world.end_clean()
}

#[test]
fn stdin_reaches_the_command_with_its_end_and_only_where_asked_for() -> Res<()> {
    let world = world("stdin")?;
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let mut command = world.command(["exec", "ada", "-i", "--", "cat"]);
    command.stdin(Stdio::piped());
    let mut client = Client::start(command)?;
    let mut stdin = client.stdin().ok_or_else(|| trouble("no stdin"))?;
    stdin.write_all(&sent)?;
    drop(stdin);
    let done = client.finish()?.ok()?;
    assert!(done.stdout == sent, "{} bytes came back", done.stdout.len());

    // Without -i it reads the end at once, whatever we have.
    let mut command = world.command(["exec", "ada", "--", "sh", "-c", "cat; echo end"]);
    command.stdin(Stdio::piped());
    let mut client = Client::start(command)?;
    let _held = client.stdin();
    assert_eq!(client.finish()?.ok()?.out(), "end\n");
    world.end_clean()
}

#[test]
fn a_terminal_is_one() -> Res<()> {
    let world = world("tty")?;
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && tty && echo err >&2";
    let done = world.must(&["exec", "ada", "-t", "--", "sh", "-c", script])?;
    assert_eq!(done.out(), "24 80\r\n/dev/pts/0\r\nerr\r\n");
    let mut command = world.command([
        "exec",
        "ada",
        "-it",
        "--",
        "sh",
        "-c",
        "read x; echo got $x",
    ]);
    command.stdin(Stdio::piped());
    let mut client = Client::start(command)?;
    let mut stdin = client.stdin().ok_or_else(|| trouble("no stdin"))?;
    stdin.write_all(b"abc\n")?;
    let done = client.finish()?.ok()?;
    // The terminal echoes what was typed.
    assert_eq!(done.out(), "abc\r\ngot abc\r\n");
    drop(stdin);
    world.end_clean()
}

#[test]
fn a_timeout_kills_all_of_it_and_is_124() -> Res<()> {
    let world = world("timeout")?;
    let script = "trap '' TERM; sleep 1000 & echo up; while :; do sleep 1000; done";
    let args = [
        "exec",
        "ada",
        "--op",
        "slow",
        "--timeout",
        "0.5",
        "--",
        "bash",
        "-c",
        script,
    ];
    let done = world.run(&args)?;
    assert_eq!(done.code, Some(124), "{}", done.err());
    assert_eq!(done.out(), "up\n");
    assert!(done.err().contains("timed out"), "{}", done.err());
    let view = op(&world, "slow")?;
    assert_eq!(view["outcome"], "timed_out");
    assert_eq!(view["exit_code"], serde_json::Value::Null);
    assert_eq!(world.processes_of("slow"), [0; 0]);
    world.end_clean()
}

#[test]
fn a_cancelled_one_is_130_and_told_to_whoever_waits() -> Res<()> {
    let world = world("cancel")?;
    let script = "trap '' TERM; echo up; while :; do sleep 1000; done";
    let waiting = world.start(&["exec", "ada", "--op", "c", "--", "bash", "-c", script])?;
    assert!(waiting.wait_out(3, SOON));
    world.must(&["op", "ada", "c", "--cancel"])?;
    let done = waiting.finish()?;
    assert_eq!(done.code, Some(130), "{}", done.err());
    assert_eq!(op(&world, "c")?["outcome"], "cancelled");
    assert_eq!(world.processes_of("c"), [0; 0]);
    // Its end is as final as any: the same id tells it again.
    let again = world.run(&["exec", "ada", "--op", "c", "--", "bash", "-c", script])?;
    assert_eq!((again.code, again.out()), (Some(130), "up\n".to_owned()));
    world.end_clean()
}

#[test]
fn a_signal_reaches_the_command() -> Res<()> {
    let world = world("signal")?;
    let script = "trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done";
    let waiting = world.start(&["exec", "ada", "--op", "s", "--", "bash", "-c", script])?;
    assert!(waiting.wait_out(3, SOON));
    world.must(&["op", "ada", "s", "--signal", "10"])?;
    let done = waiting.finish()?;
    assert_eq!((done.code, done.out()), (Some(3), "up\ngot\n".to_owned()));
    world.end_clean()
}

#[test]
fn an_id_runs_once_however_often_it_is_asked_for() -> Res<()> {
    let world = world("attach")?;
    let gate = world.effects().gate("gate")?;
    let script = format!(
        "echo ran > {}; echo one; read -r go < {}; echo two; exit 5",
        world.effects().inside(),
        gate.inside()
    );
    let exec = ["exec", "ada", "--op", "once", "--", "bash", "-c", &script];
    let detached = world.must(&[
        "exec", "ada", "--op", "once", "-d", "--", "bash", "-c", &script,
    ])?;
    assert_eq!(detached.out(), "once\n");
    let second = world.start(&exec)?;
    let attached = world.start(&["attach", "ada", "once"])?;
    assert!(second.wait_out(4, SOON) && attached.wait_out(4, SOON));
    gate.open()?;
    for client in [second, attached] {
        let done = client.finish()?;
        assert_eq!((done.code, done.out()), (Some(5), "one\ntwo\n".to_owned()));
    }
    let after = world.run(&exec)?;
    assert_eq!(
        (after.code, after.out()),
        (Some(5), "one\ntwo\n".to_owned())
    );
    assert_eq!(world.effects().lines("ran")?.len(), 1);

    for other in [
        &["--", "bash", "-c", "true"][..],
        &["--cwd", "/tmp", "--", "bash", "-c", &script],
        &["-e", "X=1", "--", "bash", "-c", &script],
        &["-u", "nobody", "--", "bash", "-c", &script],
    ] {
        let mut args = vec!["exec", "ada", "--op", "once"];
        args.extend(other);
        let done = world.run(&args)?;
        assert_eq!((done.code, done.out()), (Some(125), String::new()));
        let line = done.err();
        assert!(
            line.starts_with("error[conflict]: operation `once`"),
            "{line}"
        );
        assert!(line.contains("durable op ada once"), "{line}");
    }
    assert_eq!(world.effects().lines("ran")?.len(), 1);
    world.end_clean()
}

#[test]
fn killing_client_and_daemon_costs_nothing() -> Res<()> {
    let world = world("daemon")?;
    let gate = world.effects().gate("gate")?;
    let script = format!("echo one; read -r go < {}; echo two; exit 9", gate.inside());
    let args = ["exec", "ada", "--op", "k", "--", "bash", "-c", &script];
    let mut first = world.start(&args)?;
    assert!(first.wait_out(4, SOON));
    let second = world.start(&["attach", "ada", "k"])?;
    assert!(second.wait_out(4, SOON));
    let daemon = world.daemon().ok_or_else(|| trouble("no daemon"))?;
    first.kill();
    assert!(process::kill(daemon));
    gate.open()?;
    // The other client starts the next daemon and goes on at its offset.
    let done = second.finish()?;
    assert_eq!((done.code, done.out()), (Some(9), "one\ntwo\n".to_owned()));
    until("another daemon", || {
        world.daemon().is_some_and(|pid| pid != daemon)
    })?;
    let again = world.run(&args)?;
    assert_eq!(
        (again.code, again.out()),
        (Some(9), "one\ntwo\n".to_owned())
    );
    world.end_clean()
}
