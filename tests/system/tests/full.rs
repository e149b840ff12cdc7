//! Sandboxes with a size limit, and a data directory on a disk that somebody else fills.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use system_tests::api::Api;
use system_tests::world::fresh_path;
use system_tests::{Client, Done, Res, World, process, run, trouble};

use crate::is_root;
use crate::support::until;

/// More events than a journal has room for on a full disk.
const MANY: usize = 4000;
const SUM: &str = "sha256sum f | cut -c1-64";

/// Whether the pool of a world takes snapshots; copies cannot be limited.
fn has_snapshots(world: &World) -> bool {
    let kind = std::fs::read_to_string(world.data().join("pool.kind")).unwrap_or_default();
    kind.starts_with("btrfs")
}

fn view(world: &World, name: &str) -> Res<Value> {
    let list = world.must(&["ps", "--json"])?.out();
    let mut views = list.lines().map(serde_json::from_str::<Value>);
    let found = views.find(|view| view.as_ref().is_ok_and(|view| view["name"] == name));
    Ok(found.ok_or_else(|| trouble(format!("no {name}")))??)
}

#[test]
fn a_limited_sandbox_fills_up_frees_and_goes_on_and_so_do_its_forks() -> Res<()> {
    let world = World::new("limit")?;
    world.create("eve", &[])?;
    if !has_snapshots(&world) {
        println!("left out: this pool copies");
        return world.end_clean();
    }
    world.create("ada", &["--disk", "48M"])?;
    world.must(&[
        "exec",
        "ada",
        "--",
        "sh",
        "-c",
        "head -c 9000000 /dev/urandom > f",
    ])?;
    let before = world.sh("ada", SUM)?.out();
    world.must(&["checkpoint", "ada", "--label", "early"])?;
    let full = world.sh("ada", "dd if=/dev/zero of=big bs=1M count=200")?;
    assert_eq!(full.code, Some(1), "{}", full.err());
    assert!(full.err().contains("quota exceeded"), "{}", full.err());
    let limited = view(&world, "ada")?;
    assert_eq!(limited["disk_limit_bytes"], 48 << 20);
    let used = limited["disk_used_bytes"].as_u64().unwrap_or_default();
    assert!(used > 40 << 20 && used <= 48 << 20, "{used}");
    assert_eq!(view(&world, "eve")?["disk_limit_bytes"], Value::Null);
    // What removes is not held up, nor is what is written then.
    let on = world.sh(
        "ada",
        "rm big && dd if=/dev/zero of=big bs=1M count=30 && rm big",
    )?;
    assert_eq!(on.code, Some(0), "{}", on.err());
    let neighbour = world.sh("eve", "dd if=/dev/zero of=big bs=1M count=100 && rm big")?;
    assert_eq!(neighbour.code, Some(0), "{}", neighbour.err());
    // Old cuts do not count.
    for _ in 0..4 {
        let round = world.sh("ada", "dd if=/dev/urandom of=build bs=1M count=30")?;
        assert_eq!(round.code, Some(0), "{}", round.err());
        world.must(&["exec", "ada", "--", "rm", "build"])?;
    }
    world.must(&["fork", "ada", "--name", "bob"])?;
    let full = world.sh("bob", "dd if=/dev/zero of=big bs=1M count=200")?;
    assert!(full.err().contains("quota exceeded"), "{}", full.err());
    // A full one can be forked, started and gone back to, so that something can be removed.
    world.must(&["checkpoint", "bob", "--label", "full"])?;
    world.must(&["fork", "bob", "--name", "kim"])?;
    world.must(&["stop", "bob"])?;
    world.must(&["rewind", "bob", "--to", "full"])?;
    for name in ["kim", "bob"] {
        let more = world.sh(name, "dd if=/dev/zero of=more bs=1M count=20")?;
        assert!(
            more.err().contains("quota exceeded"),
            "{name}: {}",
            more.err()
        );
        world.must(&["stop", name])?;
        let freed = world.sh(name, "rm -f big more && head -c 1000 /dev/zero > g")?;
        assert_eq!(freed.code, Some(0), "{name}: {}", freed.err());
    }
    // The limit outlives supervisor and daemon, and a rewind keeps it.
    world.must(&["stop", "ada"])?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    world.must(&["rewind", "ada", "--to", "early"])?;
    assert_eq!(world.sh("ada", SUM)?.out(), before);
    let full = world.sh("ada", "dd if=/dev/zero of=big bs=1M count=200")?;
    assert!(full.err().contains("quota exceeded"), "{}", full.err());
    world.end_clean()
}

#[test]
fn what_does_not_fit_into_a_limited_sandbox_changes_nothing_in_it() -> Res<()> {
    let world = World::new("limit-whole")?;
    world.create("eve", &[])?;
    if !has_snapshots(&world) {
        println!("left out: this pool copies");
        return world.end_clean();
    }
    world.create("ada", &["--disk", "64M"])?;
    world
        .sh("ada", "echo old > f; echo x > x; echo z > z")?
        .ok()?;
    world.must(&["fork", "ada", "--name", "try"])?;
    let changes = "rm x; echo new > z; head -c 30000000 /dev/urandom > f";
    world.sh("try", changes)?.ok()?;
    world
        .sh("ada", "head -c 40000000 /dev/urandom > big")?
        .ok()?;
    let seen = "cat f x z; ls -A . / | grep -c durable-";
    let refused = world.run(&["compose", "try", "ada"])?;
    assert_ne!(refused.code, Some(0), "{}", refused.out());
    let told = refused.err();
    assert!(
        told.contains("quota") && told.contains("no file was changed"),
        "{told}"
    );
    assert_eq!(world.sh("ada", seen)?.out(), "old\nx\nz\n0\n");
    let large = world.root().join("large");
    std::fs::write(&large, system_tests::Rng::new(7).bytes(30_000_000))?;
    let refused = world.run(&["cp", large.to_str().unwrap_or_default(), "ada:/workspace/f"])?;
    assert_eq!(refused.code, Some(125), "{}", refused.out());
    assert!(refused.err().contains("quota"), "{}", refused.err());
    assert_eq!(world.sh("ada", seen)?.out(), "old\nx\nz\n0\n");
    world.sh("ada", "rm big")?.ok()?;
    world.must(&["compose", "try", "ada"])?;
    assert_eq!(
        world.sh("ada", "wc -c < f; ls; cat z")?.out(),
        "30000000\nf\nz\nnew\n"
    );
    world.end_clean()
}

#[test]
fn a_limit_that_cannot_be_had_is_refused_and_nothing_is_made() -> Res<()> {
    for (pool, disk, remedy) in [
        ("auto", "1", "16M"),
        ("auto", "15M", "16M"),
        ("copy", "48M", "durable doctor"),
    ] {
        let world = World::new("no-limit")?.with_env("DURABLE_POOL", pool);
        let refused = world.run(&["create", "ada", "--disk", disk])?;
        assert_eq!(refused.code, Some(125), "{disk}: {}", refused.err());
        assert!(refused.err().contains(remedy), "{disk}: {}", refused.err());
        assert_eq!(world.must(&["ps", "--json"])?.out(), "");
        let refused = world.run(&["create", "ada", "--disk", "0"])?;
        assert_ne!(refused.code, Some(0));
        world.end_clean()?;
    }
    Ok(())
}

/// A data directory on a small disk of its own.
struct Small {
    // Let go of before the directory that it is in.
    disk: Disk,
    world: World,
    data: String,
}

/// Where a file system is mounted.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("-l").arg(&self.0);
        let _unmounted = run::run(unmount);
    }
}

impl Small {
    fn new(label: &str, bytes: u64) -> Res<Self> {
        let world = World::new(label)?;
        // Not in the world: whoever makes a mount namespace meanwhile keeps the device for a while.
        let (image, disk) = (fresh_path("disk.ext4"), world.root().join("disk"));
        std::fs::File::create(&image)?.set_len(bytes)?;
        std::fs::create_dir(&disk)?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-m", "0"]).arg(&image);
        run::run(mkfs)?.ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(&disk);
        run::run(mount)?.ok()?;
        // It goes with the device.
        std::fs::remove_file(&image)?;
        let data = disk.join("data").to_string_lossy().into_owned();
        Ok(Self {
            disk: Disk(disk),
            world,
            data,
        })
    }

    fn args<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["--data", self.data.as_str()];
        all.extend(args);
        all
    }

    fn run(&self, args: &[&str]) -> Res<Done> {
        self.world.run(&self.args(args))
    }

    fn must(&self, args: &[&str]) -> Res<Done> {
        self.world.must(&self.args(args))
    }

    fn start(&self, args: &[&str]) -> Res<Client> {
        let mut command = self.world.command(self.args(args));
        command.stdin(Stdio::piped());
        Client::start(command)
    }

    fn daemon(&self) -> Res<i32> {
        let text = std::fs::read_to_string(Path::new(&self.data).join("daemon.lock"))?;
        let pid = text.trim().parse()?;
        if process::is_alive(pid) {
            return Ok(pid);
        }
        Err(trouble("the daemon ended"))
    }

    /// A stranger takes every block that is left.
    fn fill(&self) -> Res<PathBuf> {
        let path = self.disk.0.join("ballast");
        let mut file = std::fs::File::create(&path)?;
        let block = vec![1; 1 << 20];
        for step in [block.len(), 4096] {
            while file
                .write_all(&block[..step])
                .and_then(|()| file.sync_data())
                .is_ok()
            {}
        }
        Ok(path)
    }

    fn end(self) -> Res<()> {
        let daemon = self.daemon()?;
        assert!(process::terminate(daemon, Duration::from_secs(30)));
        until("the disk is let go of", || {
            let mut unmount = Command::new("umount");
            unmount.arg(&self.disk.0);
            run::run(unmount).is_ok_and(|done| done.code == Some(0))
        })?;
        let Self { disk, world, .. } = self;
        drop(disk);
        world.end_clean()
    }
}

#[test]
fn a_disk_that_somebody_filled_stops_nothing_that_runs_and_all_goes_on_with_room() -> Res<()> {
    if !is_root("a_disk_that_somebody_filled_stops_nothing_that_runs_and_all_goes_on_with_room") {
        return Ok(());
    }
    let small = Small::new("full", 900 << 20)?;
    small.must(&["create", "ada"])?;
    let write = "echo one > f; mkfifo p; head -c 3000000 /dev/urandom > g; sha256sum g > sum";
    small.must(&["exec", "ada", "--op", "one", "--", "sh", "-c", write])?;
    let script = "echo begun; read -r x; echo $x > f; echo went on";
    let mut slow = small.start(&[
        "exec", "ada", "-i", "--op", "slow", "--", "sh", "-c", script,
    ])?;
    assert!(
        slow.wait_out(6, Duration::from_secs(30)),
        "{}",
        slow.words()
    );
    let daemon = small.daemon()?;
    let ballast = small.fill()?;
    // Nothing new is begun, and that is told.
    for refused in [
        vec!["exec", "ada", "--", "true"],
        vec!["create", "bob"],
        vec!["fork", "ada", "--name", "bob"],
    ] {
        let done = small.run(&refused)?;
        assert_eq!(done.code, Some(125), "{refused:?}: {}", done.err());
        assert!(
            done.err().contains("is full"),
            "{refused:?}: {}",
            done.err()
        );
        assert!(
            done.err().contains("free space"),
            "no remedy: {}",
            done.err()
        );
    }
    let names = small.must(&["ps", "--json"])?.out();
    assert_eq!(names.lines().count(), 1, "{names}");
    // What runs goes on to its end, with its cut.
    let mut input = slow.stdin().ok_or_else(|| trouble("no stdin"))?;
    input.write_all(b"two\n")?;
    drop(input);
    let done = slow.finish()?;
    assert_eq!(
        (done.code, done.out().as_str()),
        (Some(0), "begun\nwent on\n"),
        "{}",
        done.err()
    );
    let op = small.must(&["op", "ada", "slow", "--json"])?.json()?;
    assert_eq!(op["error"], Value::Null, "{op}");
    assert!(op["cut"].is_string(), "{op}");
    assert_eq!(small.daemon()?, daemon);
    // A daemon that starts on the full disk serves what is there.
    process::kill(daemon);
    let out = small.must(&["read", "ada", "slow"])?.out();
    assert_eq!(out, "begun\nwent on\n");
    let diff = small.must(&["diff", "ada@start", "ada"])?.out();
    assert!(diff.contains("sum"), "{diff}");
    assert_eq!(small.must(&["cat", "ada", "f"])?.out(), "two\n");
    let again = small.daemon()?;
    std::fs::remove_file(ballast)?;
    let check = small.must(&["exec", "ada", "--", "sha256sum", "-c", "sum"])?;
    assert_eq!(check.out(), "g: OK\n");
    small.must(&["create", "bob"])?;
    small.must(&["exec", "bob", "--", "true"])?;
    assert_eq!(small.daemon()?, again, "the daemon ended meanwhile");
    for name in ["ada", "bob"] {
        small.must(&["rm", name])?;
    }
    small.end()
}

/// With the disk full for long enough there is no room for what is under way either: then its sandbox waits, and the others are
/// served as far as they need no room.
#[test]
fn a_journal_without_room_keeps_what_it_was_told_until_there_is_some() -> Res<()> {
    if !is_root("a_journal_without_room_keeps_what_it_was_told_until_there_is_some") {
        return Ok(());
    }
    let small = Small::new("no-room", 900 << 20)?;
    for name in ["ada", "bob"] {
        small.must(&["create", name])?;
        let write = [
            "exec",
            name,
            "--op",
            "one",
            "--",
            "sh",
            "-c",
            "echo one > f",
        ];
        small.must(&write)?;
    }
    let daemon = small.daemon()?;
    let ballast = small.fill()?;
    let socket = Path::new(&small.data).join("api.sock");
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    // Each is an event; the log has room for some hundreds.
    let labels = std::thread::spawn(move || -> Result<(), String> {
        let mut api = Api::unix(&socket).map_err(|e| e.to_string())?;
        let cuts = api.get("/v1/sandboxes/ada/checkpoints");
        let cut = cuts.map_err(|e| e.to_string())?[0]["id"].clone();
        let path = format!(
            "/v1/sandboxes/ada/checkpoints/{}/label",
            cut.as_str().unwrap_or_default()
        );
        for n in 0..MANY {
            let ask = serde_json::json!({ "label": format!("{}{n}", "x".repeat(50)) });
            api.call("PUT", &path, &ask).map_err(|e| e.to_string())?;
            count.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let waits = || {
        let list = small.must(&["ps", "--json"]).map(|done| done.out());
        list.is_ok_and(|list| list.contains("the disk of the journal is full"))
    };
    until("ada waits", waits)?;
    let told = answered.load(Ordering::SeqCst);
    assert!(told > 0 && told < MANY, "{told}");
    let refused = small.run(&["log", "ada", "--json"])?;
    let events = refused.out().lines().count();
    assert_eq!(small.must(&["cat", "bob", "f"])?.out(), "one\n");
    assert_eq!(small.run(&["exec", "ada", "--", "true"])?.code, Some(125));
    assert_eq!(small.daemon()?, daemon);
    std::fs::remove_file(ballast)?;
    labels
        .join()
        .map_err(|_| trouble("the labels panicked"))?
        .map_err(trouble)?;
    let after = small.must(&["log", "ada", "--json"])?.out().lines().count();
    assert_eq!(after - events, MANY - told, "events beside the labels");
    small.must(&["exec", "ada", "--", "cat", "f"])?;
    assert_eq!(small.daemon()?, daemon, "the daemon ended meanwhile");
    for name in ["ada", "bob"] {
        small.must(&["rm", name])?;
    }
    small.end()
}

#[test]
fn a_pool_without_room_fails_the_operation_and_keeps_every_cut() -> Res<()> {
    if !is_root("a_pool_without_room_fails_the_operation_and_keeps_every_cut") {
        return Ok(());
    }
    let small = Small::new("full-pool", 400 << 20)?;
    small.must(&["create", "ada"])?;
    if !Path::new(&small.data).join("pool.btrfs").exists() {
        println!("left out: this pool has no image");
        return small.end();
    }
    let write = "head -c 3000000 /dev/urandom > f; sha256sum f > sum";
    small.must(&["exec", "ada", "--", "sh", "-c", write])?;
    small.must(&["checkpoint", "ada", "--label", "early"])?;
    // And names, once there is no room for content.
    let fill = "cat /dev/zero > big; mkdir d && cd d && seq 1 1000000 | xargs -n 100 sh -c 'touch \"$@\" 2>/dev/null || exit 255' x; true";
    let done = small.run(&["exec", "ada", "--op", "fill", "--", "bash", "-c", fill])?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    assert!(done.err().contains("No space left"), "{}", done.err());
    let op = small.must(&["op", "ada", "fill", "--json"])?.json()?;
    println!("the cut of a full pool: {} {}", op["cut"], op["error"]);
    if op["cut"].is_null() {
        let error = op["error"].as_str().unwrap_or_default();
        assert!(
            error.contains("no cut could be taken") && error.contains("full"),
            "{op}"
        );
    }
    let daemon = small.daemon()?;
    let files = small.must(&["diff", "ada@start", "ada@early"])?.out();
    assert!(files.contains("sum"), "{files}");
    small.must(&["stop", "ada"])?;
    small.must(&["rewind", "ada", "--to", "early"])?;
    let check = small.must(&["exec", "ada", "--", "sha256sum", "-c", "sum"])?;
    assert_eq!(check.out(), "f: OK\n");
    small.must(&["rm", "ada"])?;
    small.must(&["create", "bob"])?;
    // The kernel takes a moment to give back what was removed.
    until("there is room again", || {
        let write = small.run(&[
            "exec",
            "bob",
            "--",
            "sh",
            "-c",
            "head -c 9000000 /dev/zero > f",
        ]);
        write.is_ok_and(|done| done.code == Some(0))
    })?;
    assert_eq!(small.daemon()?, daemon);
    small.must(&["rm", "bob"])?;
    small.end()
}
