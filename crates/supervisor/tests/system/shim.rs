//! The harness's shell: a window on an operation that does not end with it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use protocol::control::{FromSupervisor, ToSupervisor};
use protocol::shim::{Exec, mark};
use protocol::table::RunSpec;
use protocol::{Offset, Outcome, Role, Settlement};

use crate::world::{Daemon, World, alone, exited, id, is_alive, sh};

impl World {
    /// The harness's shell with a marked command.
    fn shim(&self, op: &str, command: &str) -> Command {
        let mut shim = alone();
        shim.args(["shell", "-c", &mark(&id(op), command)])
            .env("DURABLE_SHIM_SOCKET", self.path("shim.sock"))
            .current_dir("/tmp")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        shim
    }
}

fn run_of(exec: &Exec) -> RunSpec {
    RunSpec {
        argv: exec.argv.clone(),
        cwd: exec.cwd.clone(),
        env: exec.env.clone(),
        ..sh("")
    }
}

impl Daemon {
    /// The next request of a shim.
    fn asked(&mut self) -> (u64, Exec) {
        self.wait(|message| match message {
            FromSupervisor::Shim { shim, request } => Some((*shim, request.clone())),
            _ => None,
        })
    }

    /// Does with the next request what a daemon does, up to its start.
    fn serve_shim(&mut self) -> Exec {
        let (shim, exec) = self.asked();
        self.send(&ToSupervisor::ShimAnswer {
            shim,
            answer: Ok(exec.op.clone()),
        });
        self.start(exec.op.as_str(), run_of(&exec));
        exec
    }
}

fn output(mut child: Child) -> (Option<i32>, String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    (child.wait().unwrap().code(), out, err)
}

fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    while byte[0] != b'\n' && out.read(&mut byte).unwrap() == 1 {
        line.push(char::from(byte[0]));
    }
    line
}

#[test]
fn a_marked_command_becomes_an_operation_and_ends_when_the_journal_has_it() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut shim = world
        .shim("toolu_1", "echo out; echo err >&2; pwd; exit 7")
        .spawn()
        .unwrap();
    let exec = daemon.serve_shim();
    assert_eq!(
        exec.argv[1..],
        ["-c", "echo out; echo err >&2; pwd; exit 7"]
    );
    assert_eq!(exited(&daemon.settled("toolu_1")), 7);
    assert_eq!(line(&mut shim), "out\n");
    // It is durable in the table, not yet in the journal: the harness may not know.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(shim.try_wait().unwrap().is_none());
    daemon.announce("toolu_1", 5);
    let (code, out, err) = output(shim);
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(7), "/tmp\n", "err\n")
    );

    // The same again: attached, not run.
    let again = world
        .shim("toolu_1", "echo out; echo err >&2; pwd; exit 7")
        .spawn()
        .unwrap();
    let (code, out, _) = output(again);
    assert_eq!((code, out.as_str()), (Some(7), "out\n/tmp\n"));
}

#[test]
fn an_unmarked_command_is_executed_by_the_shell_itself() {
    let world = World::new();
    let output = alone()
        .args(["shell", "-c", "echo $0 $1; kill -TERM $$", "name", "one"])
        .current_dir(world.path(""))
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"name one\n");
    assert_eq!(output.status.signal(), Some(15));
}

#[test]
fn a_request_waits_for_a_daemon_and_is_told_to_each_new_one() {
    let world = World::new();
    let shim = world.shim("a", "echo here").spawn().unwrap();
    let mut first = world.daemon(1);
    let (number, _) = first.asked();
    let mut second = world.daemon(2);
    let (again, exec) = second.asked();
    assert_eq!(number, again);
    second.send(&ToSupervisor::ShimAnswer {
        shim: again,
        answer: Ok(exec.op.clone()),
    });
    second.start("a", run_of(&exec));
    second.settled("a");
    second.announce("a", 1);
    assert_eq!(output(shim).1, "here\n");
}

#[test]
fn refusals_and_ends_without_an_exit_code_are_told_in_words() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let shim = world.shim("a", "true").spawn().unwrap();
    let (number, _) = daemon.asked();
    daemon.send(&ToSupervisor::ShimAnswer {
        shim: number,
        answer: Err("another command ran under this id".to_owned()),
    });
    let (code, _, err) = output(shim);
    assert_eq!(code, Some(125));
    assert_eq!(
        err,
        "durable: the command was not run: another command ran under this id\n"
    );

    for (outcome, code, words) in [
        (Outcome::TimedOut, 124, "out of time"),
        (Outcome::Cancelled, 125, "cancelled"),
        (Outcome::Lost, 125, "unknown"),
        (Outcome::Signaled { signal: 9 }, 137, ""),
    ] {
        let shim = world.shim("b", "true").spawn().unwrap();
        let (number, exec) = daemon.asked();
        std::fs::write(
            world.path("state/spool/b.3.stdout"),
            "kept output, and more",
        )
        .unwrap();
        daemon.send(&ToSupervisor::ShimSettled {
            shim: number,
            op: exec.op,
            attempt: 3,
            settlement: Settlement {
                outcome,
                stdout_bytes: Offset(11),
                stderr_bytes: Offset(4),
                duration_ms: 1,
                error: None,
            },
        });
        let (got, out, err) = output(shim);
        assert_eq!((got, out.as_str()), (Some(code), "kept output"));
        assert!(err.contains(words), "{err}");
    }
}

#[test]
fn without_a_supervisor_a_marked_command_is_not_run() {
    let world = World::unstarted(protocol::Limits::default());
    let effect = world.path("effect");
    let shim = world
        .shim("a", &format!("touch {}", effect.display()))
        .spawn()
        .unwrap();
    let (code, _, err) = output(shim);
    assert_eq!(code, Some(125));
    assert!(err.contains("was not run"), "{err}");
    assert!(!effect.exists());
}

#[test]
fn a_signal_to_the_shim_cancels_the_operation() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut shim = world.shim("a", "echo on; sleep 1000").spawn().unwrap();
    daemon.serve_shim();
    assert_eq!(line(&mut shim), "on\n");
    let pid = rustix::process::Pid::from_child(&shim);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(daemon.settled("a").outcome, Outcome::Cancelled);
    assert_eq!(output(shim).0, Some(128 + 15));
}

/// A harness that runs one shim and says its own and the shim's process number.
fn harness(world: &World, daemon: &mut Daemon, command: &str) -> Exec {
    let tool = alone().get_program().to_str().unwrap().to_owned();
    let mut run = sh(&format!(
        "export DURABLE_SHIM_SOCKET={}; setsid {tool} shell -c \"$MARKED\" & echo $! > {}; wait; sleep 1000",
        world.path("shim.sock").display(),
        world.path("shim.pid").display(),
    ));
    run.env
        .insert("MARKED".to_owned(), mark(&id("call"), command));
    run.role = Role::Harness;
    daemon.start("harness", run);
    daemon.serve_shim()
}

fn kill_shim(world: &World) {
    let pid = std::fs::read_to_string(world.path("shim.pid")).unwrap();
    let status = Command::new("kill").args(["-9", pid.trim()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn a_harness_that_kills_its_shell_wants_the_command_to_end() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mark = format!("4{}.{}", world.pid(), line!());
    harness(&world, &mut daemon, &format!("echo on; sleep {mark}"));
    daemon.output("call", 3);
    kill_shim(&world);
    let settlement = daemon.settled("call");
    assert_eq!(settlement.outcome, Outcome::Cancelled);
    assert!(!is_alive(&mark));
}

#[test]
fn a_command_outlives_a_harness_that_dies_with_its_shell() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let gate = world.path("gate");
    let command = format!("mkfifo {0}; echo on; cat {0}; exit 5", gate.display());
    let exec = harness(&world, &mut daemon, &command);
    daemon.output("call", 3);
    kill_shim(&world);
    daemon.send(&ToSupervisor::Signal {
        op: id("harness"),
        signal: 9,
    });
    let harness = daemon.settled("harness");
    assert_eq!(harness.outcome, Outcome::Signaled { signal: 9 });
    // Longer than a harness must live for the loss of its shell to be its will.
    std::thread::sleep(std::time::Duration::from_millis(800));
    std::fs::write(&gate, "went on\n").unwrap();
    assert_eq!(exited(&daemon.settled("call")), 5);
    daemon.announce("call", 9);
    // The harness comes back and asks again.
    let mut shim = alone();
    shim.args(["shell", &exec.argv[1], &mark(&id("call"), &exec.argv[2])])
        .env("DURABLE_SHIM_SOCKET", world.path("shim.sock"))
        .current_dir("/tmp");
    let output = shim.output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(output.stdout, b"on\nwent on\n");
}

#[test]
fn the_last_working_directory_is_written_where_the_harness_wants_it() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let file = world.path("cwd");
    let mut shim = alone();
    shim.arg("shell")
        .arg("--cwd-file")
        .arg(&file)
        .args(["-c", &mark(&id("a"), "cd /usr/bin; echo on; exit 3")])
        .env("DURABLE_SHIM_SOCKET", world.path("shim.sock"))
        .current_dir("/tmp")
        .stdout(Stdio::piped());
    let mut shim = shim.spawn().unwrap();
    let exec = daemon.serve_shim();
    assert_eq!(exec.env["DURABLE_CWD_FILE"], file.to_str().unwrap());
    assert!(
        !exec
            .argv
            .iter()
            .any(|arg| arg.contains(file.to_str().unwrap()))
    );
    daemon.settled("a");
    daemon.announce("a", 1);
    assert_eq!(shim.wait().unwrap().code(), Some(3));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "/usr/bin\n");
}

#[test]
fn much_output_reaches_the_shim_whole() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let shim = world.shim("a", "seq 1 2000000").spawn().unwrap();
    daemon.serve_shim();
    let reader = std::thread::spawn(move || {
        let mut shim = shim;
        let out = BufReader::new(shim.stdout.take().unwrap());
        let mut expected = 0u32;
        for line in out.lines() {
            expected += 1;
            assert_eq!(line.unwrap(), expected.to_string());
        }
        (shim.wait().unwrap().code(), expected)
    });
    daemon.settled("a");
    daemon.announce("a", 1);
    assert_eq!(reader.join().unwrap(), (Some(0), 2_000_000));
}
