//! How long does a start take, from the call to a supervisor that serves? Held against `bwrap` and a bare spawn.
//!
//! `cargo run --release -p durable-isolation --example start_time [RUNS] [doors]`, as root. Needs the example
//! `mini_supervisor` beside it. With `doors` the sandboxes have some. Everything is interleaved; medians and the fifth and ninety-fifth percentile in milliseconds.

#![expect(clippy::print_stdout, reason = "a program, not a library")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use isolation::container::Container;
use isolation::{Level, StartSpec};
use protocol::{Image, Limits, SandboxId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let runs: u64 = std::env::args().nth(1).map_or(Ok(100), |n| n.parse())?;
    let doors = std::env::args().nth(2).is_some_and(|word| word == "doors");
    let supervisor = std::env::current_exe()?.with_file_name("mini_supervisor");
    let home = std::env::temp_dir().join(format!("isolation-start-{}", std::process::id()));
    std::fs::create_dir(&home)?;
    let level = Container::new(&home)?;
    let (mut warm, mut cold, mut bwrap, mut bare) = (vec![], vec![], vec![], vec![]);
    for nth in 0..runs {
        let spec = spec(&home, nth, &supervisor, doors)?;
        pause();
        let began = Instant::now();
        let running = level.start(&spec)?;
        if nth > 0 {
            warm.push(began.elapsed());
        }
        level.kill(&running)?;
        pause();
        let other = Container::new(&home)?;
        let began = Instant::now();
        let running = other.start(&spec)?;
        cold.push(began.elapsed());
        level.kill(&running)?;
        drop(other);
        pause();
        bwrap.push(time(&mut peer())?);
        pause();
        bare.push(time(&mut Command::new("/bin/true"))?);
    }
    drop(level);
    for (name, times) in [
        ("start, launcher ready", &mut warm),
        ("start, first", &mut cold),
        ("bwrap true", &mut bwrap),
        ("true", &mut bare),
    ] {
        times.sort();
        let at = |percent: usize| {
            times
                .get(times.len().saturating_sub(1) * percent / 100)
                .map_or(0.0, |t| t.as_secs_f64() * 1e3)
        };
        println!(
            "{name:24} median {:6.2}  p5 {:6.2}  p95 {:6.2}",
            at(50),
            at(5),
            at(95)
        );
    }
    std::fs::remove_dir_all(&home)?;
    Ok(())
}

/// Time for what the last run left in the background: the next launcher, the kernel's cleaning up.
fn pause() {
    std::thread::sleep(Duration::from_millis(60));
}

fn spec(home: &Path, nth: u64, supervisor: &Path, doors: bool) -> Outcome<StartSpec> {
    let own = home.join(nth.to_string());
    for dir in ["upper", "work", "state"] {
        std::fs::create_dir_all(own.join(dir))?;
    }
    Ok(StartSpec {
        sandbox: SandboxId(nth),
        hostname: "bench".to_owned(),
        image: Image::Host,
        binary: supervisor.to_owned(),
        exe_args: Vec::new(),
        harness_dir: None,
        upper: own.join("upper"),
        work: own.join("work"),
        state: own.join("state"),
        limits: Limits::default(),
        doors: doors.then(Vec::new),
        ca: None,
    })
}

fn peer() -> Command {
    let mut command = Command::new("bwrap");
    command.args("--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --unshare-all true".split(' '));
    command
}

fn time(command: &mut Command) -> Outcome<Duration> {
    let began = Instant::now();
    let status = command.stdout(Stdio::null()).status()?;
    let took = began.elapsed();
    if status.success() {
        Ok(took)
    } else {
        Err("the peer failed".into())
    }
}
