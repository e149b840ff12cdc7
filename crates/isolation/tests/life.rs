//! A sandbox outlives its daemon, and nothing outlives a sandbox.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isolation::container::Container;
use isolation::{Error, Level, Running, StartSpec};
use serde_json::json;

use crate::world::{World, ask, supervisor};

/// The cgroup directories that exist for this data directory.
fn bases(home: &Path) -> usize {
    let key = key(home);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let cgroups = mounts
        .lines()
        .filter(|l| l.contains(" - cgroup"))
        .filter_map(|l| l.split(' ').nth(4));
    cgroups
        .filter(|mount| Path::new(mount).join("durable").join(&key).exists())
        .count()
}

fn key(home: &Path) -> String {
    let home = home.canonicalize().unwrap();
    blake3::hash(home.as_os_str().as_encoded_bytes()).to_hex()[..12].to_owned()
}

/// Cgroups of this data directory, in all hierarchies.
fn groups(home: &Path) -> BTreeSet<std::path::PathBuf> {
    let key = key(home);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let cgroups = mounts
        .lines()
        .filter(|l| l.contains(" - cgroup"))
        .filter_map(|l| l.split(' ').nth(4));
    cgroups
        .filter_map(|mount| fs::read_dir(Path::new(mount).join("durable").join(&key)).ok())
        .flatten()
        .flatten()
        .filter(|e| e.file_type().unwrap().is_dir())
        .map(|e| e.path())
        .collect()
}

/// Processes in these groups.
fn processes(home: &Path) -> BTreeSet<String> {
    let listed = |group: &std::path::PathBuf| {
        fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default()
    };
    groups(home)
        .iter()
        .flat_map(|g| listed(g).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn a_kill_leaves_no_process_no_cgroup_no_mount() {
    let before = mounts();
    let world = World::new();
    let ada = world.start();
    ada.sh("for i in 1 2 3; do setsid sleep 1000 </dev/null >/dev/null 2>&1 & done");
    assert_eq!(
        ada.says("ls /proc/*/comm | xargs cat 2>/dev/null | grep -c '^sleep$'"),
        "3"
    );
    assert_eq!(mounts(), before, "mounts of a sandbox are its own");
    let group = ada.running.group.clone().unwrap();
    let inside: Vec<_> = groups(world.home.path())
        .into_iter()
        .filter(|g| g.ends_with(&group))
        .collect();
    assert!(!inside.is_empty());
    let pids = fs::read_to_string(inside[0].join("cgroup.procs")).unwrap();
    assert!(pids.lines().count() >= 4, "{pids}");
    ada.kill();
    for pid in pids.lines() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
    assert!(
        groups(world.home.path())
            .iter()
            .all(|g| !g.ends_with(&group))
    );
    assert!(!world.level.alive(&ada.running));
    assert_eq!(world.level.find(&ada.spec.state), None);
    ada.kill();
    let home = world.home.path().to_owned();
    drop(ada);
    world.level.clear(&home).unwrap();
    drop(world);
    assert_eq!(mounts(), before);
}

#[test]
fn a_dropped_level_takes_its_waiting_launcher_along_and_leaves_its_sandboxes() {
    let world = World::new();
    let home = world.home.path();
    let level = Container::new(home).unwrap();
    let running = level.start(&world.spec()).unwrap();
    // The next launcher is still being prepared.
    drop(level);
    assert_eq!(processes(home), BTreeSet::from([running.pid.to_string()]));
    assert!(world.level.alive(&running));
    world.level.kill(&running).unwrap();
    assert_eq!(processes(home), BTreeSet::new());
}

#[test]
fn a_replaced_binary_is_not_started_by_the_launcher_of_the_old_one() {
    let world = World::new();
    let binary = world.home.path().join("binary");
    fs::copy(supervisor(), &binary).unwrap();
    let spec = || StartSpec {
        binary: binary.clone(),
        ..world.spec()
    };
    let _first = world.start_with(spec()).unwrap();
    let new = world.home.path().join("new");
    fs::write(&new, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::rename(&new, &binary).unwrap();
    assert!(world.start_with(spec()).is_err());
}

#[test]
fn a_failed_start_leaves_nothing_and_tells_the_last_words() {
    let world = World::new();
    let spec = StartSpec {
        exe_args: vec!["refuse".to_owned()],
        ..world.spec()
    };
    let Err(error) = world.start_with(spec.clone()) else {
        panic!("it started")
    };
    assert!(matches!(error, Error::Inside { .. }));
    assert!(error.to_string().contains("not today"), "{error}");
    assert_eq!(world.level.find(&spec.state), None);
    assert!(!spec.state.join("running.json").exists());
    assert_eq!(processes(world.home.path()), BTreeSet::new());
    assert_eq!(groups(world.home.path()), BTreeSet::new());
}

/// Not a test of its own: the daemon that the tests below kill.
#[test]
#[ignore = "run by other tests"]
fn daemon() {
    let home = std::env::var_os("ISOLATION_TEST_HOME").unwrap();
    let world = World::in_directory(
        tempfile::Builder::new()
            .disable_cleanup(true)
            .tempdir_in(home)
            .unwrap(),
    );
    let ada = world.start();
    eprintln!("state {}", ada.spec.state.display());
    eprintln!("home {}", world.home.path().display());
    loop {
        std::thread::park();
    }
}

fn spawn_daemon(home: &Path, env: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::daemon", "--ignored", "--nocapture"])
        .env("ISOLATION_TEST_HOME", home)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_sandbox_outlives_its_daemon_and_is_found_again() {
    let scratch = tempfile::tempdir().unwrap();
    let mut daemon = spawn_daemon(scratch.path(), &[]);
    let mut lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let mut value = |key: &str| {
        lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|l| l.strip_prefix(key).map(|v| v.trim().to_owned()))
            .unwrap()
    };
    let (state, home) = (value("state"), value("home"));
    let (state, home) = (Path::new(&state), Path::new(&home));
    ask(
        state,
        &json!({"argv": ["sh", "-c", "echo before > /tmp/f"]}),
    );
    // The whole group and session of the daemon, as a terminal that goes away would.
    daemon.kill().unwrap();
    daemon.wait().unwrap();

    let level = Container::new(home).unwrap();
    let found = level.find(state).expect("the sandbox is found");
    assert!(level.alive(&found));
    assert_eq!(
        ask(state, &json!({"argv": ["cat", "/tmp/f"]})).out,
        "before\n"
    );
    // The launcher that waited has gone by itself, with its groups.
    let group = found.group.clone().unwrap();
    eventually("the end of the waiting launcher", || {
        groups(home).iter().all(|g| g.ends_with(&group))
    });
    // A sweep keeps what lives and is known.
    assert_eq!(level.sweep(std::slice::from_ref(&found)).unwrap().killed, 0);
    assert!(level.alive(&found));
    assert!(level.clear(state).is_err(), "what lives is not cleared");
    // And ends what nobody knows.
    let swept = level.sweep(&[]).unwrap();
    assert!(swept.killed >= 1 && swept.groups >= 1, "{swept:?}");
    eventually("the end of the sandbox", || !level.alive(&found));
    assert_eq!(groups(home), BTreeSet::new());
    level.clear(state).unwrap();
}

#[test]
fn a_daemon_killed_in_the_middle_of_a_start_leaves_nothing_running() {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("failpoint");
    let listener = UnixListener::bind(&socket).unwrap();
    let env = [
        ("DURABLE_FAILPOINT", "isolation.recorded"),
        ("DURABLE_FAILPOINT_SOCKET", socket.to_str().unwrap()),
    ];
    let mut daemon = spawn_daemon(scratch.path(), &env);
    let (mut hit, _) = listener.accept().unwrap();
    let mut said = [0; 18];
    hit.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"isolation.recorded");
    let home = fs::read_dir(scratch.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|p| p.is_dir())
        .unwrap();
    let note: Running =
        serde_json::from_slice(&fs::read(home.join("1/state/running.json")).unwrap()).unwrap();
    let level = Container::new(&home).unwrap();
    assert!(level.alive(&note));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    drop(hit);
    eventually("the end of a half-started sandbox", || !level.alive(&note));
    eventually("the end of its cgroups", || bases(&home) == 0);
    assert_eq!(level.find(&home.join("1/state")), None);
    level.clear(&home.join("1/state")).unwrap();
    level.sweep(&[]).unwrap();
    assert_eq!(groups(&home), BTreeSet::new());
}

#[test]
fn a_recycled_pid_is_never_signalled() {
    let world = World::new();
    let ada = world.start();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = i32::try_from(stranger.id()).unwrap();
    for forged in [
        Running {
            pid,
            group: None,
            ..ada.running.clone()
        },
        Running {
            start_time: ada.running.start_time + 1,
            group: None,
            ..ada.running.clone()
        },
        Running {
            machine_boot: "another".to_owned(),
            group: None,
            ..ada.running.clone()
        },
    ] {
        assert!(!world.level.alive(&forged));
        world.level.kill(&forged).unwrap();
    }
    assert!(world.level.alive(&ada.running));
    assert_eq!(stranger.try_wait().unwrap(), None);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
