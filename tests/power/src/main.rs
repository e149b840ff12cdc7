//! Is anything lost that somebody was told, when the power goes?
//!
//! `make test-power`, or `cargo run --release -p power-test -- [--seeds N] [--seed S] [--dir D]`, as root. Each seed: an
//! ext4 of its own, the real daemon on it with sandboxes and clients that change files; at a random moment the file system
//! is shut down without its log (`FS_IOC_SHUTDOWN`), everything is killed, the disk is mounted again, and the next daemon is
//! held against what the clients saw. Two writers that do not sync are in every cut and must lose some.

// One call has no safe wrapper: see `sys`.
#![deny(unsafe_code)]

mod check;
mod controls;
mod cycle;
mod disk;
mod load;
mod processes;
mod seed;
mod stores;
#[expect(unsafe_code, reason = "an ioctl")]
mod sys;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use bench::Failure;

use tally::Tally;

struct Options {
    seeds: u64,
    first: u64,
    dir: PathBuf,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(usage) => {
            say(&usage);
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            say(&format!("error: {}", failure.chain()));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool, Failure> {
    // Before there are threads: what is mounted here is gone with us, however we end.
    match workspace::private_mounts() {
        Ok(workspace::Mounts::Private) => {}
        Ok(workspace::Mounts::Shared) => {
            return Err(Failure::wrong(
                "this test mounts file systems: it needs root",
            ));
        }
        Err(error) => return Err(Failure::cannot("get mounts of our own")(error)),
    }
    processes::adopt()?;
    let world = cycle::World::new(&options.dir)?;
    let mut total = Tally::default();
    for seed in options.first..options.first + options.seeds {
        let begun = Instant::now();
        let tally = match world.cycle(seed) {
            Ok(tally) => tally,
            Err(failure) => {
                processes::end_all()?;
                say(&world.log_tail());
                say(&again(seed));
                return Err(failure);
            }
        };
        print(&format!(
            "seed {seed}: {} announced settlements, {} cuts, {} events; {} lost, {} late; {:.1} s\n",
            tally.settlements,
            tally.cuts,
            tally.events,
            tally.lost,
            tally.late_exits,
            begun.elapsed().as_secs_f64()
        ));
        for violation in &tally.violations {
            print(&format!("  VIOLATION {violation}\n"));
        }
        if !tally.violations.is_empty() {
            print(&format!("  {}\n", again(seed)));
        }
        total.add(tally);
    }
    print(&total.report());
    if let Some(litter) = world.litter() {
        print(&format!("left behind: {litter}\n"));
        return Ok(false);
    }
    if let Some(why) = total.distrust() {
        print(&format!("{why}\n"));
        return Ok(false);
    }
    Ok(total.violations.is_empty())
}

fn again(seed: u64) -> String {
    format!("again: cargo run --release -p power-test -- --seed {seed} --seeds 1")
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seeds: 100,
        first: 1,
        dir: std::env::temp_dir(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{arg} {value} is no number"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = number()?,
            "--seed" => options.first = number()?,
            "--dir" => options.dir = value.into(),
            other => {
                return Err(format!(
                    "unknown option {other}; there are --seeds, --seed and --dir"
                ));
            }
        }
    }
    Ok(options)
}

/// What was found, on stdout.
#[expect(clippy::print_stdout, reason = "a test program's answer")]
fn print(text: &str) {
    print!("{text}");
}

/// What went wrong with the test itself, on stderr.
#[expect(clippy::print_stderr, reason = "a test program")]
fn say(text: &str) {
    eprintln!("{text}");
}
