//! What this machine can and cannot do for containers, and how to get it.

use std::fs;
use std::path::Path;

use protocol::SandboxId;

use super::cgroup::Cgroups;
use super::ids::IdMap;
use super::trees::file_system;
use crate::{Check, Verdict};

/// The first kernel whose overlay takes idmapped layers.
const OLDEST_KERNEL: (u32, u32) = (5, 19);

/// Looks without changing anything.
pub(super) fn look(data: &Path, cgroups: &Cgroups) -> Vec<Check> {
    let mut checks = vec![
        kernel(),
        user_namespaces(),
        ids(),
        whole_proc(),
        overlay(data),
        seccomp(),
    ];
    for controller in ["memory", "pids", "cpu"] {
        checks.push(limit(controller, cgroups));
    }
    checks.push(check(
        "cgroup kill and freeze",
        if cgroups.has_kill() {
            Verdict::Ok
        } else {
            Verdict::Degraded
        },
        if cgroups.has_kill() {
            "cgroup v2 is mounted"
        } else {
            "no usable cgroup v2"
        }
        .to_owned(),
        "mount cgroup2, or run the daemon as root or in a delegated cgroup",
    ));
    checks
}

fn check(name: &'static str, verdict: Verdict, found: String, remedy: &str) -> Check {
    let remedy = if verdict == Verdict::Ok {
        String::new()
    } else {
        remedy.to_owned()
    };
    Check {
        name,
        verdict,
        found,
        remedy,
    }
}

fn kernel() -> Check {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let verdict = if version >= OLDEST_KERNEL {
        Verdict::Ok
    } else {
        Verdict::Missing
    };
    check(
        "kernel",
        verdict,
        release,
        "containers need Linux 5.19 or newer",
    )
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    let root = rustix::process::geteuid().is_root();
    if sysctl("user/max_user_namespaces").unwrap_or(0) == 0 {
        return check(
            NAME,
            Verdict::Missing,
            "user.max_user_namespaces is 0".to_owned(),
            "sysctl -w user.max_user_namespaces=100000",
        );
    }
    if !root && sysctl("kernel/unprivileged_userns_clone") == Some(0) {
        return check(
            NAME,
            Verdict::Missing,
            "only for root".to_owned(),
            "sysctl -w kernel.unprivileged_userns_clone=1, or run the daemon as root",
        );
    }
    if !root && sysctl("kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return check(
            NAME,
            Verdict::Missing,
            "AppArmor restricts them for unprivileged users".to_owned(),
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run the daemon as root",
        );
    }
    check(NAME, Verdict::Ok, "allowed".to_owned(), "")
}

fn ids() -> Check {
    const NAME: &str = "users inside";
    match IdMap::choose(SandboxId(0)) {
        Ok(IdMap::Range { .. }) => check(
            NAME,
            Verdict::Ok,
            "65536, a range of its own for each sandbox".to_owned(),
            "",
        ),
        Ok(IdMap::Delegated { .. }) => check(
            NAME,
            Verdict::Ok,
            "root is you, the others come from /etc/subuid".to_owned(),
            "",
        ),
        Ok(IdMap::Single { .. }) => check(
            NAME,
            Verdict::Degraded,
            "root only".to_owned(),
            "install newuidmap (package uidmap) and add a line for you to /etc/subuid and /etc/subgid",
        ),
        Err(error) => {
            let remedy = error.remedy().unwrap_or_default().to_owned();
            check(NAME, Verdict::Missing, error.to_string(), &remedy)
        }
    }
}

/// The kernel gives a new procfs only to who sees one without covers.
fn whole_proc() -> Check {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let covers: Vec<_> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .filter(|point| point.starts_with("/proc/") && *point != "/proc/sys/fs/binfmt_misc")
        .collect();
    let verdict = if covers.is_empty() {
        Verdict::Ok
    } else {
        Verdict::Missing
    };
    let found = if covers.is_empty() {
        "whole".to_owned()
    } else {
        format!("covered at {}", covers.join(", "))
    };
    check(
        "/proc",
        verdict,
        found,
        "this is a container with a masked /proc; start it unmasked (docker: --security-opt systempaths=unconfined)",
    )
}

fn overlay(data: &Path) -> Check {
    const NAME: &str = "overlay on the data directory";
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let kind = file_system(data);
    let found = format!("data directory on {kind}");
    if !known
        .lines()
        .any(|line| line.trim_start_matches("nodev").trim() == "overlay")
    {
        return check(
            NAME,
            Verdict::Missing,
            "the kernel has no overlay file system".to_owned(),
            "modprobe overlay",
        );
    }
    let verdict = match kind.as_str() {
        "ext4" | "xfs" | "btrfs" | "tmpfs" | "f2fs" => Verdict::Ok,
        "overlay" | "nfs" | "fuse" | "9p" | "virtiofs" | "erofs" | "squashfs" => Verdict::Missing,
        // Nobody tried: a start tells.
        _ => Verdict::Degraded,
    };
    check(
        NAME,
        verdict,
        found,
        "put the data directory on ext4, xfs or btrfs",
    )
}

fn seccomp() -> Check {
    let there = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    check(
        "seccomp filters",
        if there { Verdict::Ok } else { Verdict::Missing },
        if there { "there" } else { "none" }.to_owned(),
        "a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn limit(controller: &'static str, cgroups: &Cgroups) -> Check {
    let name = match controller {
        "memory" => "memory limit",
        "pids" => "process limit",
        _ => "cpu limit",
    };
    match cgroups.place_of(controller) {
        Some(place) => check(name, Verdict::Ok, format!("in {}", place.display()), ""),
        None => {
            let why = cgroups
                .refused()
                .first()
                .cloned()
                .unwrap_or_else(|| "no cgroup with that controller".to_owned());
            check(
                name,
                Verdict::Degraded,
                why,
                "run the daemon as root, or under systemd with `Delegate=yes`",
            )
        }
    }
}
