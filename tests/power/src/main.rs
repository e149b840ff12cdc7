//! Is anything lost that somebody was told, when the power goes?
//!
//! `make test-power`, or `cargo run --release -p power-test -- [--seeds N] [--seed S] [--kind KIND] [--copies N] [--dir D]
//! [--keep D]`, as root. Each seed: an ext4 of its own, the real daemon on it with sandboxes and clients that change files.
//! There are two kinds of cuts, in turns unless one is named:
//!
//! - `shutdown`: at a random moment the file system is shut down without its log (`FS_IOC_SHUTDOWN`), everything is killed,
//!   the disk is mounted again, and the next daemon is held against what the clients saw.
//! - `copy`: every write and flush of the disk is recorded; afterwards the disk is made again as it was at many moments,
//!   with what its device had not flushed kept, lost or torn, and on each a daemon is held against what clients had seen until
//!   then. One more daemon gets a copy of the pool's image that was made while it was written: it may tell of damage, and
//!   serve nothing that is wrong.
//!
//! Two writers that do not sync are in every cut and must lose some.

// One call has no safe wrapper: see `sys`.
#![deny(unsafe_code)]

mod check;
mod controls;
mod copies;
mod cycle;
mod disk;
mod fuse;
mod load;
mod naive;
mod processes;
mod seed;
mod stores;
#[expect(unsafe_code, reason = "an ioctl")]
mod sys;
mod tally;
mod tape;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use bench::Failure;

use tally::Tally;

struct Options {
    seeds: u64,
    first: u64,
    kind: Option<Kind>,
    copies: u64,
    dir: PathBuf,
    keep: Option<PathBuf>,
}

/// How the power is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shutdown,
    Copy,
}

impl Kind {
    fn of(seed: u64) -> Self {
        if seed.is_multiple_of(2) {
            Self::Copy
        } else {
            Self::Shutdown
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Copy => "copy",
        }
    }
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
        let kind = options.kind.unwrap_or_else(|| Kind::of(seed));
        let found = match kind {
            Kind::Shutdown => world.shutdown(seed),
            Kind::Copy => world.copies(seed, options.copies, options.keep.as_ref()),
        };
        let tally = match found {
            Ok(tally) => tally,
            Err(failure) => {
                processes::end_all()?;
                say(&world.log_tail());
                say(&again(seed, kind));
                return Err(failure);
            }
        };
        print(&format!(
            "seed {seed}, {} {}: {} announced settlements, {} cuts, {} events; {} lost, {} late; {:.1} s\n",
            tally.cycles,
            kind.name(),
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
            print(&format!("  {}\n", again(seed, kind)));
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

fn again(seed: u64, kind: Kind) -> String {
    let kind = kind.name();
    format!("again: cargo run --release -p power-test -- --kind {kind} --seed {seed} --seeds 1")
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        seeds: 100,
        first: 1,
        kind: None,
        copies: 4,
        dir: std::env::temp_dir(),
        keep: None,
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
            "--kind" => {
                let kinds = [Kind::Shutdown, Kind::Copy].into_iter();
                let kind = kinds.into_iter().find(|kind| kind.name() == value);
                options.kind =
                    Some(kind.ok_or("--kind is shutdown or copy; without it, in turns")?);
            }
            "--copies" => options.copies = number()?,
            "--dir" => options.dir = value.into(),
            "--keep" => options.keep = Some(value.into()),
            other => {
                return Err(format!(
                    "unknown option {other}; there are --seeds, --seed, --kind, --copies, --dir and --keep"
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
