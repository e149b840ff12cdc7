//! Files in and out, the journal as text and JSON, stopping and removing.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use serde_json::Value;
use system_tests::{Res, Rng, World};

use crate::support::until;

#[test]
fn trees_are_copied_in_and_out_as_they_are() -> Res<()> {
    let world = World::new("copy")?;
    world.create("a", &[])?;
    let source = world.root().join("tree");
    std::fs::create_dir_all(source.join("deep/er"))?;
    let noise = Rng::new(1).bytes(2_000_000);
    std::fs::write(source.join("deep/er/noise"), &noise)?;
    std::fs::write(source.join("run"), "#!/bin/sh\necho ran\n")?;
    std::fs::set_permissions(source.join("run"), std::fs::Permissions::from_mode(0o755))?;
    symlink("/etc/passwd", source.join("link"))?;
    let text = source.to_str().unwrap();
    world.must(&["cp", text, "a:/workspace/copied"])?;
    assert_eq!(
        world.must(&["exec", "a", "--", "copied/run"])?.out(),
        "ran\n"
    );
    let link = world.must(&["exec", "a", "--", "readlink", "copied/link"])?;
    assert_eq!(link.out(), "/etc/passwd\n");
    let back = world.root().join("back");
    world.must(&["cp", "a:/workspace/copied", back.to_str().unwrap()])?;
    assert!(std::fs::read(back.join("deep/er/noise"))? == noise);
    assert_eq!(
        std::fs::read_link(back.join("link"))?.to_str(),
        Some("/etc/passwd")
    );
    let mode = std::fs::metadata(back.join("run"))?.permissions().mode();
    assert_eq!(mode & 0o777, 0o755);

    let missing = world.run(&["cp", "a:/no/such", back.to_str().unwrap()])?;
    assert_eq!(missing.code, Some(125));
    assert!(missing.err().contains("/no/such"), "{}", missing.err());
    let missing = world.run(&["cp", "/no/such", "a:/workspace/x"])?;
    assert_eq!(missing.code, Some(125));
    assert!(missing.err().contains("/no/such"), "{}", missing.err());
    world.end_clean()
}

#[test]
fn a_copy_that_breaks_off_leaves_the_old_file() -> Res<()> {
    let world = World::new("copy-broken")?;
    world.create("ada", &[])?;
    world.sh("ada", "echo old > f; chmod 600 f")?.ok()?;
    let source = world.root().join("source");
    std::fs::write(&source, "new\n")?;
    let text = source.to_str().unwrap_or_default();
    let endless = world.root().join("endless");
    std::fs::File::create(&endless)?.set_len(64 << 30)?;
    let endless = endless.to_str().unwrap_or_default();
    let mut copy = world.start(&["cp", endless, "ada:/workspace/f"])?;
    until("the copy has begun", || {
        world
            .sh("ada", "test -s .f.durable-*")
            .is_ok_and(|done| done.code == Some(0))
    })?;
    copy.kill();
    until("nothing of it is left", || {
        world
            .sh("ada", "ls -A")
            .is_ok_and(|done| done.out() == "f\n")
    })?;
    assert_eq!(world.sh("ada", "cat f")?.out(), "old\n");
    world.must(&["cp", text, "ada:/workspace/f"])?;
    assert_eq!(world.sh("ada", "cat f; ls -A")?.out(), "new\nf\n");
    world.end_clean()
}

#[test]
fn the_journal_is_read_from_any_place_and_followed() -> Res<()> {
    let world = World::new("log")?;
    world.create("a", &[])?;
    world.must(&["exec", "a", "--op", "one", "--", "true"])?;
    let follower = world.start(&["log", "a", "--json", "--follow", "--from", "3"])?;
    assert!(
        follower.wait_out(1, Duration::from_secs(20)),
        "nothing came"
    );
    world.sh("a", "echo x > f")?.ok()?;
    let log = world.must(&["log", "a", "--json"])?.out();
    let events: Vec<Value> = log
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let kinds: Vec<&str> = events.iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "created",
            "started",
            "op_intent",
            "op_started",
            "op_settled",
            "op_intent",
            "op_started",
            "cut_taken",
            "op_settled"
        ]
    );
    let from = world.must(&["log", "a", "--json", "--from", "3"])?.out();
    assert!(from.lines().eq(log.lines().skip(2)), "{from}");
    assert!(
        follower.wait_out(from.len(), Duration::from_secs(20)),
        "the follower is behind"
    );
    assert_eq!(String::from_utf8_lossy(&follower.so_far()), from);
    drop(follower);
    let rows = system_tests::journal::read(world.data(), "a")?;
    system_tests::journal::verify(&rows)?;
    assert_eq!(rows.len(), events.len());
    world.end_clean()
}

#[test]
fn a_stopped_sandbox_keeps_its_files_and_a_removed_one_nothing() -> Res<()> {
    let world = World::new("stop")?;
    world.create("a", &[])?;
    world.sh("a", "echo kept > f")?.ok()?;
    world.must(&["exec", "a", "--op", "open", "-d", "--", "sleep", "1000"])?;
    let refused = world.run(&["rm", "a"])?;
    assert_eq!(refused.code, Some(125));
    assert!(
        refused.err().contains("1 operations run"),
        "{}",
        refused.err()
    );
    let view = world.json(&["stop", "a", "--json"])?;
    assert_eq!(view["state"], "stopped");
    assert_eq!(world.supervisor("a"), None);
    assert!(world.processes_of("open").is_empty());
    assert_eq!(
        world.json(&["op", "a", "open", "--json"])?["outcome"],
        "cancelled"
    );
    assert_eq!(
        world.must(&["exec", "a", "--", "cat", "f"])?.out(),
        "kept\n"
    );
    let state = world.state_dir("a")?;
    world.must(&["rm", "a"])?;
    assert!(!state.exists());
    assert_eq!(world.must(&["ps", "--json"])?.out(), "");
    // The name is free again, and nothing of the old one is seen.
    world.create("a", &[])?;
    assert_eq!(world.sh("a", "ls -A")?.out(), "");
    world.end_clean()
}

#[test]
fn an_image_of_ones_own_is_a_root() -> Res<()> {
    let world = World::new("image")?;
    let Ok(busybox) = std::fs::read("/bin/busybox") else {
        return Err(system_tests::trouble(
            "needs the Debian package busybox-static",
        ));
    };
    let image = world.root().join("image");
    std::fs::create_dir_all(image.join("bin"))?;
    std::fs::write(image.join("bin/busybox"), busybox)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(image.join("bin/busybox"), executable)?;
    symlink("busybox", image.join("bin/sh"))?;
    let text = format!("dir:{}", image.display());
    world.create("own", &["--image", &text])?;
    let done = world.must(&[
        "exec",
        "own",
        "--",
        "sh",
        "-c",
        "echo hi > /x; busybox cat /x; busybox ls /bin",
    ])?;
    assert_eq!(done.out(), "hi\nbusybox\nsh\n");
    assert!(!image.join("x").exists(), "the image was written to");
    world.end_clean()
}
