//! `durable doctor --probe`: what it tries holds inside, and works outside.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use serde_json::{Value, json};
use system_tests::internet::Internet;
use system_tests::{Done, Res, World, run, trouble};

/// Outcomes by attempt.
fn tried(done: &Done) -> Res<BTreeMap<String, String>> {
    let mut tried = BTreeMap::new();
    for line in done.out().lines() {
        let line: Value =
            serde_json::from_str(line).map_err(|e| trouble(format!("{e}: {line}")))?;
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("found").is_empty(), "{line}");
        tried.insert(text("attempt"), text("outcome"));
    }
    Ok(tried)
}

fn all_held(world: World, untried: &[&str]) -> Res<()> {
    let done = world.run(&["doctor", "--probe", "--json"])?;
    let tried = tried(&done)?;
    assert!(tried.len() > 60, "{}\n{}", done.out(), done.err());
    for (attempt, outcome) in &tried {
        let excused = outcome == "untried" && untried.contains(&attempt.as_str());
        assert!(
            outcome == "held" || excused,
            "{attempt}: {outcome}\n{}",
            done.out()
        );
    }
    assert_eq!(done.code, Some(0));
    assert_eq!(
        world.must(&["ps", "--json"])?.out(),
        "",
        "its sandbox is left"
    );
    let table = world.run(&["doctor", "--probe"])?;
    assert_eq!(table.code, Some(0), "{}", table.err());
    let last = format!("{} attempts: ", tried.len());
    assert!(
        table
            .out()
            .lines()
            .last()
            .is_some_and(|line| line.starts_with(&last) && line.contains(" 0 open"))
    );
    world.end_clean()
}

#[test]
fn a_sandbox_of_root_holds_against_the_probe() -> Res<()> {
    if !crate::is_root("a_sandbox_of_root_holds_against_the_probe") {
        return Ok(());
    }
    all_held(World::new("probe-root")?, &[])
}

#[test]
fn a_sandbox_of_a_user_holds_against_the_probe() -> Res<()> {
    if !crate::is_root("a_sandbox_of_a_user_holds_against_the_probe") {
        return Ok(());
    }
    // Without delegated cgroups nothing holds limits, and `doctor` says so.
    let untried = ["start processes without end", "take memory without end"];
    all_held(World::of_user("probe-user", 54_321, 54_321)?, &untried)
}

/// What opens nothing outside of a sandbox could not find a hole inside either.
#[test]
fn outside_of_a_sandbox_the_probe_finds_the_doors_open() -> Res<()> {
    if !crate::is_root("outside_of_a_sandbox_the_probe_finds_the_doors_open") {
        return Ok(());
    }
    let world = World::new("probe-outside")?;
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    let mut net = Internet::new(
        world.root(),
        &world.command(["ps"]),
        &[metadata],
        Default::default(),
    )?;
    let _service = net.http(metadata)?;
    let name = format!("durable-outside-{}", std::process::id());
    let listens = name.clone();
    let (port, namespace, _bait) = net.within(move || {
        let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&listens)?)?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let namespace = std::fs::read_link("/proc/thread-self/ns/net")?;
        Ok((tcp.local_addr()?.port(), namespace, (unix, tcp)))
    })?;
    let host = json!({
        "namespaces": { "net": namespace }, "socket": name, "port": port, "dir": world.root(), "pids": 16, "memory": 32 << 20,
    });
    // Process 1, mounts and names of its own: what it opens is nobody else's.
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--uts",
            "--kill-child",
            "--",
        ])
        .arg(system_tests::world::binary()?)
        .args(["__escape", &host.to_string()])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let done = run::run(net.command(&command))?;
    let tried = tried(&done)?;
    let open: Vec<&str> = tried
        .iter()
        .filter(|(_, outcome)| *outcome == "open")
        .map(|(attempt, _)| attempt.as_str())
        .collect();
    assert!(open.len() > 30, "{}\n{}", done.out(), done.err());
    for attempt in [
        "be in a namespace of the host",
        "have capabilities over the machine",
        "gain rights by a setuid program",
        "set the clock",
        "set the host name",
        "trace process 1 (ptrace)",
        "take a descriptor of process 1",
        "read the memory of process 1",
        "read the environment of process 1",
        "look into the root of process 1",
        "make a user namespace",
        "make a network namespace",
        "make a mount namespace",
        "find a directory of the host",
        "mount a file system",
        "make what is mounted writable",
        "write a setting of the kernel",
        "make a raw socket",
        "make a packet socket",
        "make a netlink socket to the packet filter",
        "reach a port of the host's loopback",
        "reach an abstract socket of the host",
        "ask the cloud's metadata service",
        "start processes without end",
        "take memory without end",
    ] {
        assert!(
            open.contains(&attempt),
            "{attempt} is {:?}\n{}",
            tried.get(attempt),
            done.out()
        );
    }
    net.let_go();
    world.end_clean()
}
