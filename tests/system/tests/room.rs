//! A disk that is full: told, nothing half made, and all is well once there is room.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use system_tests::{Res, World, process, run, trouble};

use crate::is_root;

/// A small file system, unmounted with the test.
struct Disk(PathBuf);

impl Disk {
    fn new(dir: PathBuf, options: &str) -> Res<Self> {
        std::fs::create_dir(&dir)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&dir);
        run::run(mount)?.ok()?;
        Ok(Self(dir))
    }

    fn fill(&self) -> Res<PathBuf> {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path)?;
        while file.write_all(&[1; 4096]).is_ok() {}
        Ok(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(&self.0);
        let _unmounted = run::run(unmount);
    }
}

fn daemon_of(data: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data.join("daemon.lock")).ok()?;
    let pid = text.trim().parse().ok()?;
    process::is_alive(pid).then_some(pid)
}

#[test]
fn a_full_disk_is_told_and_serves_once_there_is_room() -> Res<()> {
    if !is_root("a_full_disk_is_told_and_serves_once_there_is_room") {
        return Ok(());
    }
    let world = World::new("room")?.with_env("DURABLE_POOL", "copy");
    let disk = Disk::new(world.root().join("disk"), "size=64m")?;
    let ballast = disk.fill()?;
    let data = disk.0.join("data");
    let text = data.to_string_lossy().into_owned();
    for _ in 0..2 {
        let done = world.run(&["--data", &text, "create", "a"])?;
        assert_eq!(done.code, Some(125), "{}", done.err());
        assert_eq!(done.err().lines().count(), 1, "{}", done.err());
        assert!(done.err().contains(&text), "{}", done.err());
        assert!(
            done.err().contains("DURABLE_DATA"),
            "no remedy: {}",
            done.err()
        );
        assert_eq!(daemon_of(&data), None);
    }
    std::fs::remove_file(ballast)?;
    // What the refused starts left does not hinder.
    world.must(&["--data", &text, "create", "a"])?;
    let done = world.must(&["--data", &text, "exec", "a", "--", "echo", "here"])?;
    assert_eq!(done.out(), "here\n");
    world.must(&["--data", &text, "rm", "a"])?;
    let daemon = daemon_of(&data).ok_or_else(|| trouble("no daemon"))?;
    assert!(process::terminate(daemon, Duration::from_secs(20)));
    drop(disk);
    world.end_clean()
}
