//! How long does it take to push and pull a workspace, cold and after a small change, and how does that compare with
//! restic and with `tar | zstd -1`? The limit for the incremental push is the walk: one `stat` a file, without any work.
//!
//! `cargo run --release -p durable-blob --example push_bench [DIR] [ROUNDS]`; wants `restic`, `tar` and `zstd` on the
//! path. All stores are directories of one disk; ours and restic's are encrypted, ours is measured plain as well.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use blob::{Key, Options, PullOptions, SnapshotId, Store};

const DIRS: u64 = 2_500;
const FILES: u64 = 20;
const CHANGED: u64 = 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or_else(|| "/tmp/push-bench".into()));
    let rounds: usize = args.next().map_or(3, |text| text.parse().unwrap());
    drop(fs::remove_dir_all(&dir));
    fs::create_dir_all(&dir).unwrap();
    let tree = dir.join("tree");
    let bytes = make(&tree);
    println!("{} files, {:.0} MB", DIRS * FILES, bytes as f64 / 1e6);
    let mut ours = Ours::new(&dir, "plain", None);
    let mut sealed = Ours::new(&dir, "sealed", Some(Key::generate()));
    let restic = Restic { dir: dir.clone() };
    let mut table = Table::default();
    for round in 0..rounds {
        // A new tree of caches and stores each round; the page cache is warm for all.
        ours.reset();
        sealed.reset();
        restic.reset();
        for what in ["cold push", "incremental push", "unchanged push"] {
            if what == "incremental push" {
                change(&tree, round as u64);
            }
            table.add(what, "walk", time(|| walk(&tree)));
            table.add(what, "blob", time(|| ours.push(&tree)));
            table.add(what, "blob sealed", time(|| sealed.push(&tree)));
            table.add(what, "restic", time(|| restic.push(&tree)));
            if what != "unchanged push" {
                table.add(what, "tar|zstd", time(|| shell(&dir, "tar -C tree -cf - . | zstd -1 -q -f -o tree.tar.zst && sync tree.tar.zst")));
            }
        }
        table.add("pull", "blob", time(|| ours.pull(&dir.join("out"))));
        same(&dir, "out");
        table.add(
            "pull",
            "blob sealed",
            time(|| sealed.pull(&dir.join("out2"))),
        );
        same(&dir, "out2");
        table.add("pull", "restic", time(|| restic.pull()));
        table.add(
            "pull",
            "tar|zstd",
            time(|| {
                shell(
                    &dir,
                    "mkdir out4 && zstd -dcq tree.tar.zst | tar -C out4 -xf -",
                )
            }),
        );
        shell(&dir, "rm -rf out out2 out3 out4; sync");
    }
    table.print();
    shell(&dir, "du -sm plain sealed restic tree.tar.zst");
    fs::remove_dir_all(&dir).unwrap();
}

/// Files as a project has them: most of some kilobytes, a few large, most of it text.
fn make(tree: &Path) -> u64 {
    let mut seed = 1u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let words: Vec<String> = (0..4096)
        .map(|_| format!("{:x} ", next() % 0xff_ffff))
        .collect();
    let mut all = 0;
    for dir in 0..DIRS {
        let at = tree.join(format!("{}/{dir}", dir % 50));
        fs::create_dir_all(&at).unwrap();
        for file in 0..FILES {
            let len = if next() % 500 == 0 {
                3 << 20
            } else {
                1_000 + next() % 26_000
            };
            let mut text = Vec::new();
            while (text.len() as u64) < len {
                if next() % 6 == 0 {
                    text.extend_from_slice(&next().to_le_bytes());
                }
                text.extend_from_slice(words[(next() % 4096) as usize].as_bytes());
            }
            all += text.len() as u64;
            fs::write(at.join(format!("file{file}.rs")), text).unwrap();
        }
    }
    shell(tree, "sync");
    all
}

fn change(tree: &Path, round: u64) {
    for number in 0..CHANGED {
        let dir = (number * 131 + round * 17) % DIRS;
        let path = tree.join(format!("{}/{dir}/file{}.rs", dir % 50, number % FILES));
        let mut file = fs::File::options().append(true).open(path).unwrap();
        writeln!(file, "// change {number} of round {round}").unwrap();
    }
    shell(tree, "sync");
}

struct Ours {
    dir: PathBuf,
    name: &'static str,
    key: Option<Key>,
    last: Option<SnapshotId>,
}

impl Ours {
    fn new(dir: &Path, name: &'static str, key: Option<Key>) -> Self {
        Self {
            dir: dir.into(),
            name,
            key,
            last: None,
        }
    }

    fn reset(&self) {
        drop(fs::remove_dir_all(self.dir.join(self.name)));
    }

    fn store(&self) -> Store {
        let at = self.dir.join(self.name);
        let options = Options {
            cache: Some(at.join("cache")),
            threads: 0,
        };
        Store::open_with(
            &at.join("store").display().to_string(),
            self.key.as_ref(),
            options,
        )
        .unwrap()
    }

    /// All of it, from opening the store on, as a process of its own would do it.
    fn push(&mut self, tree: &Path) {
        let store = self.store();
        let mut push = store.begin(None).unwrap();
        let cache = self.dir.join(self.name).join("tree.cache");
        push.tree(tree, Some(&cache), None).unwrap();
        self.last = Some(push.commit(serde_json::Value::Null).unwrap().0);
    }

    fn pull(&self, into: &Path) {
        fs::create_dir(into).unwrap();
        let id = self.last.unwrap();
        self.store()
            .pull_tree(&id, into, PullOptions::default())
            .unwrap();
    }
}

struct Restic {
    dir: PathBuf,
}

impl Restic {
    fn run(&self, args: &str) {
        let command = format!(
            "restic -q -r {0}/restic/store --cache-dir {0}/restic/cache {args}",
            self.dir.display()
        );
        shell(&self.dir, &format!("RESTIC_PASSWORD=x {command}"));
    }

    fn reset(&self) {
        shell(&self.dir, "rm -rf restic");
        self.run("init --repository-version 2");
    }

    fn push(&self, tree: &Path) {
        self.run(&format!("backup --compression auto {}", tree.display()));
    }

    fn pull(&self) {
        self.run(&format!(
            "restore latest --target {}/out3",
            self.dir.display()
        ));
    }
}

/// What nobody can do without: list every directory and ask for every file's state.
fn walk(tree: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let (mut stack, mut sum) = (vec![tree.to_owned()], 0);
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            sum += meta.ctime_nsec();
            if meta.is_dir() {
                stack.push(entry.path());
            }
        }
    }
    std::hint::black_box(sum);
}

fn same(dir: &Path, out: &str) {
    shell(dir, &format!("diff -rq tree {out}"));
}

fn shell(dir: &Path, command: &str) {
    let done = Command::new("bash")
        .args(["-o", "pipefail", "-ec", command])
        .current_dir(dir)
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success(), "{command}");
}

fn time(what: impl FnOnce()) -> Duration {
    let began = Instant::now();
    what();
    began.elapsed()
}

/// Times by what was done and who did it, in the order in which they came.
#[derive(Default)]
struct Table(Vec<(&'static str, &'static str, Vec<Duration>)>);

impl Table {
    fn add(&mut self, what: &'static str, who: &'static str, time: Duration) {
        eprintln!("{what:18} {who:12} {:7.3} s", time.as_secs_f64());
        match self.0.iter_mut().find(|row| row.0 == what && row.1 == who) {
            Some(row) => row.2.push(time),
            None => self.0.push((what, who, vec![time])),
        }
    }

    fn print(&mut self) {
        let median = |times: &mut Vec<Duration>| {
            times.sort();
            times[times.len() / 2].as_secs_f64()
        };
        let mut ours = 1.0;
        for (what, who, times) in &mut self.0 {
            let middle = median(times);
            if *who == "blob" {
                ours = middle;
            }
            let (low, high) = (times[0].as_secs_f64(), times[times.len() - 1].as_secs_f64());
            println!(
                "{what:18} {who:12} {middle:7.3} s ({low:.3} to {high:.3})  {:6.2} x blob",
                middle / ours
            );
        }
    }
}
