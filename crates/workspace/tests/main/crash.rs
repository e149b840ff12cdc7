//! A second process that is killed with SIGKILL in the middle of a verb, and what the next one finds.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{CutId, WorkspaceId};
use tempfile::TempDir;
use workspace::{Choice, Keep, Options, Pool};

use crate::random::Mapping;
use crate::world::{World, dir, small_image, write};

const ROLE: &str = "WORKSPACE_TEST_ROLE";
const DATA: &str = "WORKSPACE_TEST_DATA";
const KIND: &str = "WORKSPACE_TEST_KIND";

/// What the other process does. It is this same test binary.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Helper {
    /// Makes a head, cuts it once, changes it, cuts it again.
    Cutter,
    /// Makes heads until it is killed.
    Maker,
    /// Opens the pool, starts a process that keeps its mounts, and waits.
    Keeper,
    /// Makes a head with a file, cuts it when told to, and once more, and says what came of it.
    Twice,
    /// See [`crate::copies::unprivileged`].
    Unprivileged,
}

pub(crate) fn data_dir() -> &'static Path {
    Path::new(Box::leak(Box::new(std::env::var_os(DATA).unwrap())))
}

/// Not a test: the other process's way in. Without a role it does nothing.
#[test]
#[ignore = "the entry of the helper processes"]
fn helper() {
    match std::env::var(ROLE).as_deref() {
        Ok("Cutter") => cutter(),
        Ok("Maker") => maker(),
        Ok("Keeper") => keeper(),
        Ok("Twice") => twice(),
        Ok("Unprivileged") => crate::copies::unprivileged(),
        _ => {}
    }
}

impl Helper {
    fn command(self, data: &Path, kind: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            "crash::helper",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ]);
        command
            .env(ROLE, format!("{self:?}"))
            .env(DATA, data)
            .env(KIND, kind);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    /// Runs it as an unprivileged user.
    pub(crate) fn run_to_end(self) {
        const NOBODY: u32 = 65534;
        let data = dir();
        std::os::unix::fs::chown(data.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        // The binary may lie where that user cannot get to.
        let program = data.path().join("helper");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut command = Command::new(&program);
        command.args(["--exact", "crash::helper", "--ignored", "--nocapture"]);
        command
            .env(ROLE, format!("{self:?}"))
            .env(DATA, data.path())
            .env("TMPDIR", data.path());
        command.current_dir("/").uid(NOBODY).gid(NOBODY);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.contains("1 passed"), "the helper did not run: {said}");
    }
}

fn options() -> Options {
    match std::env::var(KIND).as_deref() {
        Ok("copy") => Options {
            choice: Choice::Copy,
            ..Options::default()
        },
        _ => small_image(),
    }
}

fn opened_by_helper() -> Box<dyn Pool> {
    workspace::private_mounts().unwrap();
    workspace::open_with(data_dir(), &options()).unwrap()
}

fn say(line: &str) {
    // The harness prints its own lines; ours start with a mark.
    println!("\n> {line}");
    std::io::stdout().flush().unwrap();
}

fn cutter() {
    let pool = opened_by_helper();
    let head = pool.create().unwrap();
    say(head.as_str());
    let up = pool.layout(&head).unwrap().upper;
    write(up.join("a"), "one");
    pool.cut(&head, &"c1".parse().unwrap()).unwrap().unwrap();
    write(up.join("a"), "two");
    failpoint::arm();
    pool.cut(&head, &"c2".parse().unwrap()).unwrap().unwrap();
    say("done");
}

fn maker() {
    let pool = opened_by_helper();
    loop {
        say(pool.create().unwrap().as_str());
    }
}

fn twice() {
    let pool = opened_by_helper();
    let head = pool.create().unwrap();
    let path = pool.layout(&head).unwrap().upper.join("mapped");
    write(&path, "");
    say(path.to_str().unwrap());
    std::io::stdin().read_exact(&mut [0]).unwrap();
    failpoint::arm();
    let first = pool.cut(&head, &"c1".parse().unwrap()).unwrap().unwrap();
    let second = pool.cut(&head, &"c2".parse().unwrap()).unwrap();
    say(second.unwrap_or(first).path.to_str().unwrap());
}

pub(crate) fn stored_after_the_copy() {
    let dir = dir();
    let socket = dir.path().join("failpoint.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut command = Helper::Twice.command(dir.path(), "copy");
    command
        .env("DURABLE_FAILPOINT", "mid_copy")
        .env("DURABLE_FAILPOINT_SOCKET", &socket);
    let mut helper = Running::start(command);
    let path = PathBuf::from(helper.line().unwrap());
    let mut mapping = Mapping::new(&path);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let mapping = &mut mapping;
            while !stop.load(Ordering::Relaxed) {
                mapping.add_at(0);
            }
        });
        helper.child.stdin.take().unwrap().write_all(b"g").unwrap();
        let mut reader = BufReader::new(listener.accept().unwrap().0);
        wait_at(&mut reader, "mid_copy");
        // The copy is made; the stores go on for a moment, and end before the helper goes on.
        stop.store(true, Ordering::Relaxed);
        hammer.join().unwrap();
    });
    let last = helper.line().unwrap();
    let cut = std::fs::read(Path::new(&last).join("mapped")).unwrap();
    assert!(
        cut == std::fs::read(&path).unwrap(),
        "the last store is in no cut"
    );
}

fn keeper() {
    let pool = opened_by_helper();
    let head = pool.create().unwrap();
    write(pool.layout(&head).unwrap().upper.join("a"), "kept");
    // It has a mount namespace of its own, as a sandbox has, and ends when our standard input does.
    let child = Command::new("unshare")
        .args(["--mount", "cat"])
        .stdin(Stdio::inherit())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    say(&format!("{head} {}", child.id()));
    std::mem::forget(child);
    loop {
        std::thread::park();
    }
}

/// A helper process and what it said so far; killed on drop.
struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits for its next line. None: it ended.
    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.said.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(said) = line.strip_prefix("> ") {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    fn kill_9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            self.child.wait().unwrap();
        }
    }
}

/// Kills a cutter at a failpoint of its second cut, and opens what it left.
fn killed_at(point: &str, kind: &str) -> (World, WorkspaceId) {
    let dir = dir();
    let socket = dir.path().join("failpoint.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut command = Helper::Cutter.command(dir.path(), kind);
    command
        .env("DURABLE_FAILPOINT", point)
        .env("DURABLE_FAILPOINT_SOCKET", &socket);
    let mut helper = Running::start(command);
    let head: WorkspaceId = helper.line().unwrap().parse().unwrap();
    let mut reader = BufReader::new(listener.accept().unwrap().0);
    // The first cut passes.
    wait_at(&mut reader, point);
    reader.get_mut().write_all(b"g").unwrap();
    wait_at(&mut reader, point);
    helper.kill_9();
    (open(dir, kind), head)
}

fn wait_at(reader: &mut BufReader<UnixStream>, point: &str) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with(point), "{line:?}");
}

fn open(dir: TempDir, kind: &str) -> World {
    workspace::private_mounts().unwrap();
    let choice = if kind == "copy" {
        Choice::Copy
    } else {
        Choice::Btrfs
    };
    World {
        pool: workspace::open(dir.path(), choice).unwrap(),
        dir,
    }
}

/// The kinds that can be had here.
fn kinds() -> Vec<&'static str> {
    World::btrfs().map_or(vec!["copy"], |_| vec!["copy", "btrfs"])
}

#[test]
fn a_kill_in_the_middle_of_a_cut_leaves_a_whole_one_or_none() {
    for (point, kind) in kinds()
        .iter()
        .map(|kind| ("mid_cut", *kind))
        .chain([("mid_copy", "copy")])
    {
        let (world, head) = killed_at(point, kind);
        let c1: CutId = "c1".parse().unwrap();
        let swept = world
            .pool
            .gc(&[Keep {
                workspace: head.clone(),
                head: true,
                cuts: vec![c1.clone()],
            }])
            .unwrap();
        let left: &[(WorkspaceId, CutId)] = &[(head.clone(), "c2".parse().unwrap())];
        assert_eq!(
            swept.cuts,
            if point == "mid_cut" { left } else { &[] },
            "{kind} {point}"
        );
        assert_eq!(
            swept.halves,
            usize::from(point == "mid_copy"),
            "{kind} {point}"
        );
        assert_eq!((swept.heads.len(), swept.missing_cuts.len()), (0, 0));
        // The change is not forgotten with the cut that held it, and the name is free.
        let c2 = world.cut(&head, "c2");
        world.no_cut(&head);
        let read =
            |cut| std::fs::read_to_string(world.pool.cut_path(&head, cut).join("a")).unwrap();
        assert_eq!((read(&c1).as_str(), read(&c2).as_str()), ("one", "two"));
    }
}

#[test]
fn a_kill_while_heads_are_made_leaves_what_was_told_and_gc_takes_the_rest() {
    for kind in kinds() {
        let dir = dir();
        let mut helper = Running::start(Helper::Maker.command(dir.path(), kind));
        let mut told: Vec<WorkspaceId> = (0..30)
            .map(|_| helper.line().unwrap().parse().unwrap())
            .collect();
        helper.kill_9();
        while let Some(line) = helper.line() {
            told.extend(line.parse::<WorkspaceId>());
        }
        let world = open(dir, kind);
        let half = told.len() / 2;
        let keep: Vec<_> = told[..half]
            .iter()
            .map(|id| Keep {
                workspace: id.clone(),
                head: true,
                cuts: vec![],
            })
            .collect();
        let swept = world.pool.gc(&keep).unwrap();
        assert!(
            swept.heads.len() >= told.len() - half,
            "{} heads",
            swept.heads.len()
        );
        assert_eq!(
            (swept.remade_heads.len(), swept.missing_heads.len()),
            (0, 0)
        );
        assert_eq!(world.pool.usage().unwrap().heads, half as u64);
        for id in &told[..half] {
            world.no_cut(id);
        }
        for id in &told[half..] {
            assert!(world.pool.layout(id).is_err());
        }
        assert_eq!(world.pool.gc(&keep).unwrap(), workspace::Swept::default());
    }
}

/// Sandboxes outlive the daemon and keep the image attached; a second loop device on it would destroy it.
#[test]
fn a_restarted_daemon_finds_the_image_that_sandboxes_keep_attached() {
    if World::image().is_none() {
        return;
    }
    let dir = dir();
    let image = dir.path().join("pool.btrfs");
    let mut command = Helper::Keeper.command(dir.path(), "btrfs");
    let mut helper = Running::start({
        command.stdin(Stdio::piped());
        command
    });
    let line = helper.line().unwrap();
    let (head, sandbox) = line.split_once(' ').unwrap();
    let head: WorkspaceId = head.parse().unwrap();
    let gate = helper.child.stdin.take().unwrap();
    helper.kill_9();
    assert!(
        Path::new("/proc").join(sandbox).exists(),
        "the sandbox died with the daemon"
    );
    assert_eq!(loops_of(&image), 1);
    // No mount is left where others can see it.
    let host = std::fs::read_to_string("/proc/1/mountinfo").unwrap();
    assert!(!host.contains(dir.path().to_str().unwrap()), "{host}");

    for _ in 0..3 {
        let world = World {
            pool: workspace::open_with(dir.path(), &small_image()).unwrap(),
            dir: crate::world::dir(),
        };
        assert_eq!(loops_of(&image), 1);
        assert_eq!(
            std::fs::read_to_string(world.upper(&head).join("a")).unwrap(),
            "kept"
        );
    }
    drop(gate);
    // With the last of them gone the kernel detaches the image; it has no event for that.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while loops_of(&image) > 0 {
        assert!(
            std::time::Instant::now() < patience,
            "the image is still attached"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

pub(crate) fn loops_of(image: &Path) -> usize {
    let all = std::fs::read_dir("/sys/block")
        .unwrap()
        .map(|entry| entry.unwrap().path().join("loop/backing_file"));
    all.filter(|path: &PathBuf| {
        let mut text = String::new();
        let opened = std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text));
        opened.is_ok() && Path::new(text.trim_end()) == image
    })
    .count()
}
