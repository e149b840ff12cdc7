//! Odd commands, and commands that are ended.

use std::time::{Duration, Instant};

use protocol::control::{FromSupervisor, ToSupervisor};
use protocol::{Limits, Outcome, Settlement, Stream, TtySize};

use crate::world::{World, alone, argv, exited, id, is_alive, sh};

fn run(world: &World, command: &str) -> Settlement {
    world.daemon(1).run("a", sh(command))
}

#[test]
fn exit_codes_and_signals_are_told_as_they_were() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    assert_eq!(exited(&daemon.run("seven", sh("exit 7"))), 7);
    assert_eq!(exited(&daemon.run("true", sh("exec true"))), 0);
    assert_eq!(exited(&daemon.run("direct", argv(&["false"]))), 1);
    let killed = daemon.run("killed", sh("kill -9 $$"));
    assert_eq!(killed.outcome, Outcome::Signaled { signal: 9 });
    daemon.start(
        "signalled",
        sh("trap 'exit 9' USR1; echo on; while :; do sleep 0.01; done"),
    );
    daemon.output("signalled", 3);
    daemon.send(&ToSupervisor::Signal {
        op: id("signalled"),
        signal: 10,
    });
    assert_eq!(exited(&daemon.settled("signalled")), 9);
}

#[test]
fn an_unterminated_heredoc_is_what_bash_makes_of_it() {
    let world = World::new();
    let settlement = run(&world, "cat <<'END'\nline one\nline two");
    assert_eq!(exited(&settlement), 0);
    assert_eq!(world.stdout("a"), "line one\nline two\n");
    let warning = world.spooled("a", Stream::Stderr);
    assert!(!warning.is_empty());
    assert_eq!(settlement.stderr_bytes.0, warning.len() as u64);
}

#[test]
fn binary_output_is_exact() {
    let world = World::new();
    let copy = world.path("copy");
    let settlement = run(
        &world,
        &format!("head -c 50M /dev/urandom | tee {}", copy.display()),
    );
    assert_eq!(exited(&settlement), 0);
    assert_eq!(settlement.stdout_bytes.0, 50 << 20);
    assert!(world.spooled("a", Stream::Stdout) == std::fs::read(copy).unwrap());
}

#[test]
fn a_child_in_the_background_does_not_hold_the_settlement_and_its_output_comes_later() {
    let world = World::new();
    let gate = world.path("gate");
    let command = format!(
        "mkfifo {0}; (echo early; cat {0}; echo late) & sleep 0.2; echo main",
        gate.display()
    );
    let settlement = run(&world, &command);
    assert_eq!(exited(&settlement), 0);
    assert_eq!(world.stdout("a"), "early\nmain\n");
    assert_eq!(settlement.stdout_bytes.0, 11);
    std::fs::write(&gate, "go\n").unwrap();
    world.until("the child's output is there", || {
        world.stdout("a") == "early\nmain\ngo\nlate\n"
    });
    let row = world.daemon(1).fence(1).ops.remove(0);
    assert_eq!(row.settlement, Some(settlement));
}

#[test]
fn closing_its_output_is_not_the_end() {
    let world = World::new();
    let begun = Instant::now();
    let settlement = run(&world, "echo one; exec >&- 2>&-; sleep 0.5; exit 6");
    assert_eq!(exited(&settlement), 6);
    assert!(begun.elapsed() >= Duration::from_millis(500));
    assert_eq!(world.stdout("a"), "one\n");
}

#[test]
fn a_hundred_megabytes_that_nobody_reads_come_through() {
    let world = World::new();
    let settlement = run(&world, "head -c 100M /dev/zero; head -c 3M /dev/zero >&2");
    assert_eq!(exited(&settlement), 0);
    assert_eq!(settlement.stdout_bytes.0, 100 << 20);
    assert_eq!(settlement.stderr_bytes.0, 3 << 20);
    let path = world.path("state/spool/a.1.stdout");
    assert_eq!(std::fs::metadata(path).unwrap().len(), 100 << 20);
}

#[test]
fn time_running_out_kills_also_who_ignores_sigterm_and_who_left_the_session() {
    let world = World::new();
    let mark = format!("2{}.{}", world.pid(), line!());
    let mut run = sh(&format!(
        "trap '' TERM; echo on; (setsid bash -c \"trap '' TERM; sleep {mark}; sleep {mark}\" &); sleep {mark}; sleep {mark}"
    ));
    run.timeout_ms = Some(300);
    let begun = Instant::now();
    let settlement = world.daemon(1).run("a", run);
    assert_eq!(settlement.outcome, Outcome::TimedOut);
    assert!(begun.elapsed() >= Duration::from_millis(1300));
    assert_eq!(world.stdout("a"), "on\n");
    assert!(!is_alive(&mark));
}

#[test]
fn time_running_out_leaves_a_second_to_end_well() {
    let world = World::new();
    let mut run = sh("trap 'echo bye; exit 0' TERM; while :; do sleep 0.01; done");
    run.timeout_ms = Some(200);
    let begun = Instant::now();
    let settlement = world.daemon(1).run("a", run);
    assert_eq!(settlement.outcome, Outcome::TimedOut);
    assert!(begun.elapsed() < Duration::from_millis(1100));
    assert_eq!(world.stdout("a"), "bye\n");
}

#[test]
fn a_cancelled_operation_settles_when_nothing_of_it_is_left() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mark = format!("3{}.{}", world.pid(), line!());
    // The main process obeys, the child in the group does not.
    daemon.start(
        "a",
        sh(&format!(
            "(trap '' TERM; sleep {mark}; sleep {mark}) & echo on; wait"
        )),
    );
    daemon.output("a", 3);
    daemon.send(&ToSupervisor::Cancel {
        op: id("a"),
        grace_ms: 100,
    });
    let settlement = daemon.settled("a");
    assert_eq!(settlement.outcome, Outcome::Cancelled);
    assert_eq!(settlement.error.as_deref(), Some("it was cancelled"));
    assert!(!is_alive(&mark));
}

#[test]
fn the_output_quota_ends_who_exceeds_it_and_nobody_else() {
    let world = World::with_limits(Limits {
        spool_bytes: 5_000_000,
        ..Limits::default()
    });
    let mut daemon = world.daemon(1);
    daemon.start("quiet", sh("sleep 0.3; exit 2"));
    let settlement = daemon.run("loud", sh("yes"));
    assert_eq!(settlement.outcome, Outcome::Cancelled);
    let error = settlement.error.unwrap();
    assert!(error.contains("quota of 5000000 bytes"), "{error}");
    assert_eq!(settlement.stdout_bytes.0, 5_000_000);
    assert_eq!(world.stdout("loud").len(), 5_000_000);
    assert_eq!(exited(&daemon.settled("quiet")), 2);
    // The daemon makes room, and it is seen.
    std::fs::remove_file(world.path("state/spool/loud.1.stdout")).unwrap();
    assert_eq!(exited(&daemon.run("next", sh("echo fits"))), 0);
}

#[test]
fn what_cannot_be_started_settles_with_words_and_check_says_the_same() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    std::fs::write(world.path("plain"), "text").unwrap();
    let plain = world.path("plain");
    let plain = plain.to_str().unwrap();
    let cases = [
        (argv(&["frobnicate"]), "program `frobnicate` is not on PATH in this sandbox".to_owned()),
        (
            argv(&["/no/such"]),
            "program `/no/such` does not exist in this sandbox, or the interpreter it names does not".to_owned(),
        ),
        (argv(&[plain]), format!("program `{plain}` is nothing that user `root` may execute")),
        (argv(&["/tmp"]), "program `/tmp` is nothing that user `root` may execute".to_owned()),
        (in_cwd("/no/dir"), "working directory `/no/dir` does not exist".to_owned()),
        (in_cwd(plain), format!("working directory `{plain}` is not a directory")),
        (in_cwd("tmp"), "working directory `tmp` does not start with `/`".to_owned()),
        (as_user("nobody-here"), "user `nobody-here` does not exist in this sandbox".to_owned()),
        (argv(&[]), "no program is named".to_owned()),
        (argv(&["echo", "a\0b"]), "an argument contains a zero byte: `a\\0b`".to_owned()),
    ];
    for (n, (run, words)) in cases.into_iter().enumerate() {
        assert_eq!(daemon.check(run.clone()).as_deref(), Some(words.as_str()));
        let settlement = daemon.run(&format!("bad-{n}"), run);
        assert_eq!(settlement.outcome, Outcome::Cancelled);
        assert_eq!(settlement.error.as_deref(), Some(words.as_str()));
    }
    assert_eq!(daemon.check(sh("exit 1")), None);
    assert_eq!(daemon.check(argv(&["true"])), None);
}

fn in_cwd(cwd: &str) -> protocol::table::RunSpec {
    let mut run = argv(&["true"]);
    run.cwd = cwd.to_owned();
    run
}

fn as_user(user: &str) -> protocol::table::RunSpec {
    let mut run = argv(&["true"]);
    run.user = Some(user.to_owned());
    run
}

#[test]
fn a_working_directory_behind_a_magic_link_is_refused() {
    let world = World::new();
    let link = world.path("way");
    std::os::unix::fs::symlink("/proc/self/cwd", &link).unwrap();
    let mut daemon = world.daemon(1);
    let own = daemon.run("own", in_cwd(link.to_str().unwrap()));
    assert!(own.error.unwrap().contains("one of /proc"));
    let ours = daemon.run("ours", in_cwd(&format!("/proc/{}/cwd", world.pid())));
    assert_eq!(ours.outcome, Outcome::Cancelled);
}

#[test]
fn a_command_starts_with_nothing_of_ours() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let settlement = daemon.run(
        "a",
        sh("ls /proc/self/fd | wc -l; umask; ulimit -c; pwd; env | sort; \
            ps -o pgid=,sid= -p $$ | tr -s ' ' '\\n' | sort -u | wc -l; grep -E '^(Sig(Blk|Ign)|NoNewPrivs)' /proc/$$/status"),
    );
    assert_eq!(exited(&settlement), 0);
    let out = world.stdout("a");
    let lines: Vec<&str> = out.lines().collect();
    // Its three and the one that `ls` has open.
    assert_eq!(&lines[..4], ["4", "0022", "0", "/tmp"], "{out}");
    assert!(out.contains("LANG=C\n") && !out.contains("CARGO"), "{out}");
    for wanted in [
        "SigBlk:\t0000000000000000",
        "SigIgn:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(out.contains(wanted), "{wanted} is missing in {out}");
    }
    let adj = daemon.run("adj", sh("cat /proc/self/oom_score_adj"));
    assert_eq!(exited(&adj), 0);
    let number = |text: &str| text.trim().parse::<i32>().unwrap();
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", world.pid())).unwrap();
    assert_eq!(number(&world.stdout("adj")), (number(&own) + 500).min(1000));
}

#[test]
fn users_get_their_ids_and_no_capabilities() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    if !rustix::process::geteuid().is_root() {
        let mut run = sh("id -u");
        run.user = Some(rustix::process::geteuid().as_raw().to_string());
        assert_eq!(exited(&daemon.run("a", run)), 0);
        let mut run = sh("id -u");
        run.user = Some("0".to_owned());
        assert_eq!(daemon.run("b", run).outcome, Outcome::Cancelled);
        return;
    }
    let mut run =
        sh("id -u; id -g; id -G; grep CapEff /proc/self/status; grep CapBnd /proc/self/status");
    run.user = Some("daemon".to_owned());
    assert_eq!(exited(&daemon.run("named", run.clone())), 0);
    let named = world.stdout("named");
    assert!(
        named.starts_with("1\n1\n1\nCapEff:\t0000000000000000\n"),
        "{named}"
    );
    run.user = Some("1234:77".to_owned());
    assert_eq!(exited(&daemon.run("numbers", run.clone())), 0);
    assert!(world.stdout("numbers").starts_with("1234\n77\n77\n"));
    run.user = None;
    assert_eq!(exited(&daemon.run("root", run)), 0);
    let root = world.stdout("root");
    // chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap
    let set = "00000000800405fb";
    assert!(root.contains(&format!("CapEff:\t{set}")), "{root}");
    assert!(root.contains(&format!("CapBnd:\t{set}")), "{root}");
}

#[test]
fn a_terminal_is_one_with_size_job_control_and_end_of_file() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let mut run = sh(
        "test -t 0 -a -t 1 -a -t 2 && stty size; tty; cat; trap 'stty size; exit 3' WINCH; echo ready; read -t 60",
    );
    run.tty = Some(TtySize {
        rows: 33,
        cols: 101,
    });
    run.stdin = true;
    daemon.start("a", run);
    daemon.output("a", 15);
    daemon.stdin("a", 0, b"typed\n\x04", false);
    world.until("the terminal says ready", || {
        world.stdout("a").contains("ready")
    });
    daemon.send(&ToSupervisor::Resize {
        op: id("a"),
        size: TtySize { rows: 5, cols: 6 },
    });
    assert_eq!(exited(&daemon.settled("a")), 3);
    let out = world.stdout("a");
    assert!(out.starts_with("33 101\r\n/dev/pts/"), "{out:?}");
    assert!(
        out.contains("typed\r\n") && out.ends_with("5 6\r\n"),
        "{out:?}"
    );
    assert_eq!(world.spooled("a", Stream::Stderr), b"");
}

#[test]
fn all_that_a_terminal_was_given_before_its_program_ended_is_there() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    for n in 0..20 {
        let op = format!("t{n}");
        let mut run = sh("seq 1 5000");
        run.tty = Some(TtySize { rows: 24, cols: 80 });
        assert_eq!(exited(&daemon.run(&op, run)), 0);
        assert!(world.stdout(&op).ends_with("4999\r\n5000\r\n"));
    }
}

#[test]
fn orphans_are_taken() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    daemon.run(
        "a",
        sh("for i in 1 2 3 4 5; do (setsid sleep 0.1 > /dev/null 2>&1 &); done"),
    );
    let children = format!("/proc/{0}/task/{0}/children", world.pid());
    world.until("no child is left", || {
        std::fs::read_to_string(&children).unwrap().is_empty()
    });
}

#[test]
fn the_first_output_is_told_at_once_and_a_lot_of_it_rarely() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    daemon.start("a", sh("echo first; exec sleep 1000"));
    daemon.output("a", 6);
    daemon.start("b", sh("for i in $(seq 1 20000); do echo $i; done"));
    let mut told = 0;
    let settlement = daemon.wait(|message| match message {
        FromSupervisor::Output { op, .. } if *op == id("b") => {
            told += 1;
            None
        }
        FromSupervisor::Settled { op, settlement, .. } if *op == id("b") => {
            Some(settlement.clone())
        }
        _ => None,
    });
    assert_eq!(exited(&settlement), 0);
    assert_eq!(daemon.reach[&id("b")].1, settlement.stdout_bytes.0);
    assert!(
        told < 2 + settlement.duration_ms / 4,
        "told {told} times in {} ms",
        settlement.duration_ms
    );
}

#[test]
fn files_go_in_and_out_through_the_helper() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let tool = alone().get_program().to_str().unwrap().to_owned();
    let from = world.path("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("x"), vec![7; 3 << 20]).unwrap();
    let out = daemon.run(
        "out",
        argv(&[&tool, "box", "tar-out", from.to_str().unwrap()]),
    );
    assert_eq!(exited(&out), 0);
    let archive = world.spooled("out", Stream::Stdout);
    let to = world.path("to");
    let mut run = argv(&[&tool, "box", "tar-in", to.to_str().unwrap()]);
    run.stdin = true;
    daemon.start("in", run);
    daemon.feed("in", &archive);
    assert_eq!(exited(&daemon.settled("in")), 0);
    assert_eq!(std::fs::read(to.join("from/x")).unwrap(), vec![7; 3 << 20]);
    let missing = daemon.run("none", argv(&[&tool, "box", "read", "/no/such"]));
    assert_eq!(exited(&missing), 1);
    let words = world.spooled("none", Stream::Stderr);
    assert_eq!(
        String::from_utf8(words).unwrap(),
        "durable: cannot open /no/such: No such file or directory (os error 2)\n"
    );
}
