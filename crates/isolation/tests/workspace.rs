//! What a sandbox writes, seen from the disk.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use isolation::Level;

use crate::world::World;

#[test]
fn owners_on_disk_are_those_of_the_sandbox() {
    let world = World::new();
    let ada = world.start();
    ada.says(
        "echo x > /workspace/root; echo y > /tmp/other; chown 5:6 /tmp/other; mkdir -m 700 /root/d",
    );
    assert_eq!(ada.sh_as(1000, "echo z > /tmp/user; id -u").out, "1000\n");
    let owner = |path: &str| {
        let found = fs::metadata(ada.spec.upper.join(path)).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!(owner("workspace/root"), (0, 0));
    assert_eq!(owner("tmp/other"), (5, 6));
    assert_eq!(owner("tmp/user"), (1000, 1000));
    assert_eq!(owner("root/d"), (0, 0));
    let control = fs::metadata(ada.spec.state.join("control.sock")).unwrap();
    assert!(control.file_type().is_socket());
    assert_eq!(
        (control.uid(), control.permissions().mode() & 0o777),
        (0, 0o600)
    );
    assert_eq!(
        ada.says("stat -c '%u:%g' /workspace/root /tmp/user /etc/passwd"),
        "0:0\n1000:1000\n0:0"
    );
    // Root inside is nobody special on the host.
    let status = fs::read_to_string(format!("/proc/{}/status", ada.running.pid)).unwrap();
    let uid: u32 = status
        .lines()
        .find_map(|l| l.strip_prefix("Uid:\t"))
        .unwrap()
        .split('\t')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(uid >= 1_000_000, "PID 1 runs as host user {uid}");
}

#[test]
fn files_of_the_image_can_be_changed_renamed_and_removed() {
    let world = World::new();
    let image = tempfile::tempdir().unwrap();
    for dir in ["etc", "old/sub"] {
        fs::create_dir_all(image.path().join(dir)).unwrap();
    }
    for file in [
        "etc/keep",
        "etc/change",
        "etc/remove",
        "etc/move",
        "old/sub/f",
    ] {
        fs::write(image.path().join(file), file).unwrap();
    }
    for dir in ["bin", "lib", "lib64", "usr"] {
        fs::create_dir(image.path().join(dir)).unwrap();
    }
    // A shell that needs no other file.
    let busybox = std::path::Path::new("/bin/busybox");
    if !busybox.exists() {
        eprintln!("SKIPPED: a static busybox at /bin/busybox is needed (package busybox-static)");
        return;
    }
    fs::copy(busybox, image.path().join("bin/sh")).unwrap();
    let ada = world.start_image(image.path()).unwrap();
    ada.says("echo more >> /etc/change; rm /etc/remove; mv /etc/move /etc/moved; mv /old /new; chmod 600 /etc/keep");
    assert_eq!(
        ada.says("cat /etc/change /etc/moved /new/sub/f"),
        "etc/changemore\netc/moveold/sub/f"
    );
    assert_ne!(ada.sh("ls /etc/remove").code, Some(0));
    let upper = &ada.spec.upper;
    for gone in ["etc/remove", "etc/move", "old"] {
        let found = fs::symlink_metadata(upper.join(gone)).unwrap();
        assert!(
            found.file_type().is_char_device() && found.rdev() == 0,
            "{gone} is no whiteout"
        );
    }
    assert_eq!(
        fs::read_to_string(image.path().join("etc/change")).unwrap(),
        "etc/change"
    );
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let world = World::new();
    let spec = world.spec();
    for boot in 1..=3 {
        let ada = world.start_with(spec.clone()).unwrap();
        let said = ada.says("echo x >> /workspace/boots; wc -l < /workspace/boots; rm -rf /var/tmp; ls -d /var/tmp 2>&1 || true");
        assert!(said.starts_with(&boot.to_string()), "{said}");
        ada.kill();
        assert!(!world.level.alive(&ada.running));
    }
}

#[test]
fn both_names_of_the_binary_and_the_harnesses_are_there() {
    let world = World::new();
    let harnesses = tempfile::tempdir().unwrap();
    fs::create_dir_all(harnesses.path().join("pi/1.0")).unwrap();
    fs::write(harnesses.path().join("pi/1.0/run"), "pi").unwrap();
    let ada = world
        .start_with(isolation::StartSpec {
            harness_dir: Some(harnesses.path().to_owned()),
            ..world.spec()
        })
        .unwrap();
    assert_eq!(ada.says("cat /opt/durable/harness/pi/1.0/run"), "pi");
    assert_ne!(
        ada.sh("echo x > /opt/durable/harness/pi/1.0/run").code,
        Some(0)
    );
    assert_eq!(
        ada.says("cmp /opt/durable/bin/durable /opt/durable/bin/durable-shell && echo same"),
        "same"
    );
}
