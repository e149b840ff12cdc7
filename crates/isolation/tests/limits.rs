//! What is asked for holds.

use isolation::{Error, Level, StartSpec, Verdict};
use protocol::Limits;

use crate::world::{Sandbox, World};

fn start(world: &World, limits: Limits) -> Sandbox<'_> {
    world
        .start_with(StartSpec {
            limits,
            ..world.spec()
        })
        .unwrap_or_else(|e| {
            panic!("this machine needs cgroups with memory, pids and cpu for these tests: {e}")
        })
}

#[test]
fn what_takes_too_much_memory_is_killed_and_nothing_else() {
    let world = World::new();
    let ada = start(
        &world,
        Limits {
            memory_bytes: Some(64 << 20),
            ..Limits::default()
        },
    );
    let hog = ada.run(&["perl", "-e", "my $x = 'a' x (256 << 20); print length $x"]);
    assert_eq!((hog.signal, hog.out.as_str()), (Some(9), ""), "{hog:?}");
    assert_eq!(ada.says("echo alive"), "alive");
    assert_eq!(
        ada.says("perl -e 'my $x = \"a\" x (8 << 20); print length $x'"),
        (8 << 20).to_string()
    );
    // Memory in files of a tmpfs is memory, and stays when its writer is killed.
    let files = ada.sh("head -c 256M /dev/zero > /dev/shm/x");
    assert_ne!(files.code, Some(0), "{files:?}");
    let hog = ada.run(&["perl", "-e", "my $x = 'a' x (256 << 20); print length $x"]);
    assert_eq!(hog.signal, Some(9), "{hog:?}");
    assert_eq!(ada.says("echo alive"), "alive");
    assert!(world.level.alive(&ada.running));
}

#[test]
fn a_fork_bomb_is_stopped() {
    let world = World::new();
    let ada = start(
        &world,
        Limits {
            pids: Some(40),
            ..Limits::default()
        },
    );
    let bomb = ada.run(&["perl", "-e", "my $n = 0; while (defined(my $p = fork)) { if (!$p) { sleep 60; exit } $n++ } print \"$n $!\"; kill 9, -getpgrp"]);
    let count: u32 = bomb
        .out
        .split(' ')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    assert!(
        (10..40).contains(&count) || bomb.signal == Some(9),
        "{bomb:?}"
    );
    ada.kill();
    assert!(!world.level.alive(&ada.running));
}

#[test]
fn cpu_time_is_shared_out() {
    let world = World::new();
    let ada = start(
        &world,
        Limits {
            cpu_milli: Some(100),
            ..Limits::default()
        },
    );
    let burn = "my $end = time + 2; 1 while time < $end; my ($u, $s) = times; print $u + $s";
    let used: f64 = ada
        .run(&["perl", "-MTime::HiRes=time", "-e", burn])
        .out
        .parse()
        .unwrap();
    assert!(used < 0.6, "{used} s of CPU in 2 s");
}

#[test]
fn a_sandbox_cannot_change_its_limits() {
    let world = World::new();
    let ada = world.start();
    assert_eq!(
        ada.says("cat /proc/self/cgroup | grep -vE ':/$' | wc -l"),
        "0",
        "groups outside are not told"
    );
    assert_ne!(
        ada.sh("mount -t cgroup2 x /mnt || mount -t cgroup -o pids x /mnt")
            .code,
        Some(0)
    );
}

#[test]
fn doctor_says_what_is_there() {
    let world = World::new();
    let checks = world.level.doctor();
    let missing: Vec<_> = checks
        .iter()
        .filter(|c| c.verdict == Verdict::Missing)
        .collect();
    assert!(
        missing.is_empty(),
        "a machine on which the other tests run lacks nothing: {missing:?}"
    );
    assert!(
        checks
            .iter()
            .all(|c| (c.verdict == Verdict::Ok) == c.remedy.is_empty()),
        "{checks:?}"
    );
}

#[test]
fn a_missing_binary_is_told() {
    let world = World::new();
    let error = world
        .start_with(StartSpec {
            binary: "/nonexistent/durable".into(),
            ..world.spec()
        })
        .err()
        .unwrap();
    assert!(matches!(error, Error::Step { .. }));
    assert!(
        error.to_string().contains("/nonexistent/durable"),
        "{error}"
    );
}
