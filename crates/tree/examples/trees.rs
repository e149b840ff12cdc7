//! How long do two trees of 50,000 files take to compare, against `git diff --no-index` and `diff -rq` of the same run?
//! The limit for two overlays of one image is that it must not matter how large the image is.
//!
//! `cargo run --release -p durable-tree --example trees [DIRECTORY]`
#![expect(
    clippy::print_stdout,
    reason = "a benchmark's answer is what it prints"
)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tree::{Change, Kind, Options, Renames, View, changes};

const FILES: usize = 50_000;
const CHANGED: usize = 100;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = match std::env::args_os().nth(1) {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let [a, b, one, two] = ["a", "b", "one", "two"].map(|name| dir.path().join(name));
    for at in 0..FILES {
        write(&a, at, "")?;
        write(
            &b,
            at,
            if at % (FILES / CHANGED) == 0 {
                "changed"
            } else {
                ""
            },
        )?;
    }
    for at in (0..FILES).step_by(FILES / CHANGED) {
        write(&one, at, "changed")?;
        write(&two, at, "otherwise")?;
    }
    let view = |upper: Option<&Path>, lower: Option<&Path>| View {
        upper: upper.map(Path::to_owned),
        lower: lower.map(Path::to_owned),
    };
    let whole = (view(Some(&a), None), view(Some(&b), None));
    let overlays = (view(Some(&one), Some(&a)), view(Some(&two), Some(&a)));
    let options = Options {
        renames: Renames::Apart,
        ..Options::default()
    };
    let ours = |(a, b): &(View, View)| -> Result<usize, Box<dyn Error>> {
        let is_file = |change: &&Change| {
            change
                .after
                .as_ref()
                .is_some_and(|entry| entry.kind == Kind::File)
        };
        Ok(changes(a, b, &options)?.iter().filter(is_file).count())
    };
    let lines = |program: &str, args: &[&str]| -> Result<usize, Box<dyn Error>> {
        let output = Command::new(program)
            .args(args)
            .args([&a, &b])
            .stderr(Stdio::null())
            .output()?;
        Ok(output
            .stdout
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .count())
    };
    let mut times: [Vec<Duration>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let runs: [&dyn Fn() -> Result<usize, Box<dyn Error>>; 4] = [
            &|| ours(&whole),
            &|| ours(&overlays),
            &|| {
                lines(
                    "git",
                    &["diff", "--no-index", "--no-renames", "--name-only"],
                )
            },
            &|| lines("diff", &["-rq"]),
        ];
        for (run, times) in runs.iter().zip(&mut times) {
            let start = Instant::now();
            let found = run()?;
            times.push(start.elapsed());
            if found != CHANGED {
                return Err(format!("{found} changes found, not {CHANGED}").into());
            }
        }
    }
    let names = [
        "changes, whole trees",
        "changes, two overlays",
        "git diff --no-index",
        "diff -rq",
    ];
    for (name, mut times) in names.iter().zip(times) {
        times.sort();
        let (least, median, most) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
        println!("{name:24} median {median:>9.1?}   {least:.1?} to {most:.1?}");
    }
    Ok(())
}

fn write(root: &Path, at: usize, text: &str) -> std::io::Result<()> {
    let dir: PathBuf = root.join(format!("d{}/e{}", at % 40, at / 40 % 50));
    fs::create_dir_all(&dir)?;
    fs::write(
        dir.join(format!("file{at}")),
        format!("line {at}\n").repeat(40) + text,
    )
}
