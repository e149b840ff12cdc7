//! What does a cut cost with 0, 10 and 1,000 changed files in a head of 50,000, and what do making and restoring one?
//!
//! Limit held against: a cut of nothing below 1 ms. Peer in the same run: `cp -a` of the same tree, once. Each cut is
//! checked for the change that it must hold.
//!
//! `cargo run --release -p durable-workspace --example cut_bench -- [--json] [--rounds N] [--files N] [DIR]`

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for people, which may end at the first surprise"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use protocol::CutId;
use workspace::{Choice, Options, Pool, open_with};

struct Wanted {
    json: bool,
    rounds: usize,
    files: usize,
    dir: PathBuf,
}

fn main() {
    let wanted = arguments();
    workspace::private_mounts().unwrap();
    for choice in [Choice::Btrfs, Choice::Copy] {
        let dir = tempfile::TempDir::with_prefix_in("workspace-bench-", &wanted.dir).unwrap();
        let options = Options {
            choice,
            image_bytes: Some(4 << 30),
        };
        match open_with(dir.path(), &options) {
            Ok(pool) => measure(pool.as_ref(), &wanted, dir.path()),
            Err(error) => say_skipped(&error.to_string()),
        }
    }
}

fn arguments() -> Wanted {
    let mut wanted = Wanted {
        json: false,
        rounds: 15,
        files: 50_000,
        dir: std::env::temp_dir(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => wanted.json = true,
            "--rounds" => wanted.rounds = arguments.next().unwrap().parse().unwrap(),
            "--files" => wanted.files = arguments.next().unwrap().parse().unwrap(),
            dir => wanted.dir = dir.into(),
        }
    }
    wanted
}

#[expect(clippy::print_stderr, reason = "told beside the answer")]
fn say_skipped(why: &str) {
    eprintln!("skipped: {why}");
}

fn measure(pool: &dyn Pool, wanted: &Wanted, dir: &Path) {
    let show = |what: &str, mut times: Vec<Duration>| {
        report(wanted.json, pool.kind(), what, &mut times);
    };
    let create = || pool.create().unwrap();
    show(
        "create",
        (0..wanted.rounds).map(|_| timed(create).0).collect(),
    );

    let head = pool.create().unwrap();
    let up = pool.layout(&head).unwrap().upper;
    for number in 0..wanted.files {
        let path = file(&up, number);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("file {number}\n").repeat(20)).unwrap();
    }
    let mut names = (0..).map(|number| format!("c{number}").parse::<CutId>().unwrap());
    let (took, _) = timed(|| pool.cut(&head, &names.next().unwrap()).unwrap().unwrap());
    show("first cut, all files new", vec![took]);
    let mut last = "c0".parse().unwrap();
    for changed in [0, 10, 1_000] {
        let rounds = if changed == 0 {
            wanted.rounds * 10
        } else {
            wanted.rounds
        };
        let mut times = Vec::new();
        for round in 0..rounds {
            for nth in 0..changed {
                // Spread over the tree, as edits are.
                let number = (nth * 49 + round * 7) % wanted.files;
                fs::write(file(&up, number), format!("changed in round {round}\n")).unwrap();
            }
            let name = names.next().unwrap();
            let (took, cut) = timed(|| pool.cut(&head, &name).unwrap());
            times.push(took);
            assert_eq!(cut.is_some(), changed > 0, "a wrong cut");
            if let Some(cut) = cut {
                let text = fs::read_to_string(file(&cut.path, round * 7 % wanted.files)).unwrap();
                assert_eq!(
                    text,
                    format!("changed in round {round}\n"),
                    "the cut lacks the change"
                );
                last = name;
            }
        }
        show(&format!("cut, {changed} changed"), times);
    }
    let rounds = if pool.kind() == "copy" {
        2
    } else {
        wanted.rounds
    };
    let restore = || pool.restore(&head, Some(&last)).unwrap();
    show("restore", (0..rounds).map(|_| timed(restore).0).collect());
    show(
        "16 heads cut at once, all",
        (0..wanted.rounds)
            .map(|round| sixteen(pool, round))
            .collect(),
    );
    let (took, copied) = timed(|| {
        Command::new("cp")
            .arg("-a")
            .arg(pool.cut_path(&head, &last))
            .arg(dir.join("peer"))
            .status()
            .unwrap()
    });
    assert!(copied.success());
    show("peer: cp -a of the tree, not synced", vec![took]);
}

/// Cuts sixteen small heads from as many threads. Returns how long all of them took.
fn sixteen(pool: &dyn Pool, round: usize) -> Duration {
    let heads: Vec<_> = (0..16).map(|_| pool.create().unwrap()).collect();
    for head in &heads {
        fs::write(pool.layout(head).unwrap().upper.join("a"), "changed").unwrap();
    }
    let name: CutId = format!("c{round}").parse().unwrap();
    let cut = |head| pool.cut(head, &name).unwrap().unwrap();
    let (took, ()) = timed(|| {
        std::thread::scope(|scope| {
            for head in &heads {
                scope.spawn(|| cut(head));
            }
        });
    });
    for head in &heads {
        pool.remove(head).unwrap();
    }
    took
}

fn file(root: &Path, number: usize) -> PathBuf {
    root.join(format!(
        "dir{}/sub{}/file{number}",
        number % 50,
        number / 50 % 20
    ))
}

fn timed<T>(what: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = what();
    (start.elapsed(), done)
}

fn report(json: bool, kind: &str, what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let (p10, median, p90, count) = (at(10), at(50), at(90), times.len());
    if json {
        println!(
            r#"{{"pool":"{kind}","what":"{what}","median_ms":{median:.4},"p10_ms":{p10:.4},"p90_ms":{p90:.4},"count":{count}}}"#
        );
    } else {
        println!("{kind:6} {what:38} {median:10.3} ms   ({p10:.3} … {p90:.3}, {count})");
    }
}
