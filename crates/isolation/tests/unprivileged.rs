//! The same as a user without any privilege. Each test runs itself again as another user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use isolation::{Error, Level, StartSpec, Verdict};
use protocol::Limits;

use crate::world::{World, supervisor};

const USER: u32 = 61_234;

/// Runs an ignored test of this file as `USER`, after `prepare` in a mount namespace of its own.
fn run_as_user(test: &str, prepare: &str) {
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests need root, to become another user"
    );
    let scratch = tempfile::Builder::new()
        .prefix("isolation-user-")
        .tempdir()
        .unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // The user may not be able to reach the build directory.
    let program = scratch.path().join("test");
    let supervisor_copy = scratch.path().join("supervisor");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::copy(supervisor(), &supervisor_copy).unwrap();
    let home = scratch.path().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    let script = format!(
        "set -e; cd /; S={s}; {prepare}\nexec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all --bounding-set=-sys_admin,-sys_resource,+all {p} --exact unprivileged::{test} --ignored --nocapture",
        s = scratch.path().display(),
        p = program.display()
    )
    .replace("--bounding-set=-sys_admin,-sys_resource,+all ", "");
    let done = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env("ISOLATION_TEST_HOME", &home)
        .env("ISOLATION_TEST_SUPERVISOR", &supervisor_copy)
        .output()
        .expect("`unshare` and `setpriv` of util-linux are needed");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

fn world() -> World {
    assert_eq!(rustix::process::geteuid().as_raw(), USER);
    let home = std::env::var_os("ISOLATION_TEST_HOME").unwrap();
    World::in_directory(tempfile::tempdir_in(home).unwrap())
}

#[test]
fn a_user_alone_gets_a_sandbox_with_root_only() {
    run_as_user("alone", "");
}

#[test]
#[ignore = "run as another user by the test above"]
fn alone() {
    let world = world();
    let ada = world.start();
    assert_eq!(
        ada.says("id -u; hostname; cat /proc/self/uid_map | tr -s ' '"),
        format!("0\nada\n 0 {USER} 1")
    );
    assert_eq!(
        ada.says("ls -A /home /root /srv /mnt /media | grep -v :"),
        ""
    );
    assert_eq!(
        ada.says("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"),
        "lo"
    );
    assert_eq!(
        ada.says("touch /workspace/f /etc/g; rm -r /var/cache; ls /var | grep -c cache || true"),
        "0"
    );
    let roots = "cut -d' ' -f5 /proc/self/mountinfo | grep -c '^/$'";
    assert_eq!(ada.says(roots), "1", "the root of the host is left");
    for script in [
        "touch /usr/x",
        "unshare -U true",
        "ls /proc/1/fd/ | grep -q .",
        "cat /proc/1/environ | grep -q .",
        "mount -t tmpfs x /mnt",
        "umount -l /usr",
        "rm /run/durable/shim.sock",
    ] {
        assert_ne!(ada.sh(script).code, Some(0), "{script}");
    }
    let file = fs::metadata(ada.spec.upper.join("workspace/f")).unwrap();
    assert_eq!(file.uid(), USER);
    let image = tempfile::tempdir_in(world.home.path()).unwrap();
    let bea = world.start_image(image.path()).unwrap();
    assert!(bea.list("/dev").contains(&"null".to_owned()));
    // What cannot be held is refused, what was not asked for is not.
    let limits = Limits {
        memory_bytes: Some(1 << 30),
        ..Limits::default()
    };
    let refused = world.start_with(StartSpec {
        limits,
        ..world.spec()
    });
    assert!(matches!(
        refused.err(),
        Some(Error::Limit {
            limit: "memory",
            ..
        })
    ));
    let found = world.level.find(&ada.spec.state).unwrap();
    assert_eq!(found, ada.running);
    let pid = found.pid;
    ada.sh("setsid sleep 1000 </dev/null >/dev/null 2>&1 &");
    ada.kill();
    assert!(!world.level.alive(&found));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    let checks = world.level.doctor();
    assert!(
        checks.iter().all(|c| c.verdict != Verdict::Missing),
        "{checks:?}"
    );
    assert!(
        checks
            .iter()
            .any(|c| c.name == "memory limit" && c.verdict == Verdict::Degraded),
        "{checks:?}"
    );
}

#[test]
fn a_user_alone_gets_doors() {
    run_as_user("doors_alone", "");
}

#[test]
#[ignore = "run as another user by the test above"]
fn doors_alone() {
    crate::door::works(&world());
}

#[test]
fn a_user_with_delegated_ids_gets_all_users() {
    if Command::new("newuidmap").output().is_err() {
        eprintln!("SKIPPED: newuidmap is missing (package uidmap)");
        return;
    }
    // The machine's own files stay as they are: the lines are there for this test only.
    let prepare = format!(
        "for f in subuid subgid; do echo {USER}:2000000:65536 > $S/$f; touch /etc/$f; mount --bind $S/$f /etc/$f; done; cp /etc/passwd $S/passwd; echo durabletest:x:{USER}:{USER}::/:/bin/sh >> $S/passwd; mount --bind $S/passwd /etc/passwd"
    );
    run_as_user("delegated", &prepare);
}

#[test]
#[ignore = "run as another user by the test above"]
fn delegated() {
    let world = world();
    let ada = world.start();
    assert_eq!(
        ada.says("cat /proc/self/uid_map | tr -s ' '"),
        format!(" 0 {USER} 1\n 1 2000000 65535")
    );
    assert_eq!(
        ada.sh_as(1000, "id -u; echo x > /tmp/f; stat -c %u /tmp/f")
            .out,
        "1000\n1000\n"
    );
    assert_eq!(ada.says("chown 7 /workspace; stat -c %u /workspace"), "7");
    assert_eq!(
        fs::metadata(ada.spec.upper.join("tmp/f")).unwrap().uid(),
        2_000_999
    );
    ada.says("chown 0 /workspace; rm -f /tmp/f");
}
