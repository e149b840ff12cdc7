//! What does a durable append of 1 KiB cost, and how far is that from the least it can cost?
//!
//! Held against two limits on the same disk, in turns with them: one `pwrite` and `fdatasync` per append, and a bare
//! segment log (zero-filled file, one committing thread, a CRC per frame, one sync per batch) that can neither look an
//! event up nor refuse one. The aim: at 256 writers at least 0.4 of the segment log, and p99 at most three times p50.
//!
//! `cargo run --release -p durable-journal --example append_bench -- [--dir D] [--seconds S] [--rounds N] [--json]`

#![expect(
    clippy::print_stdout,
    reason = "a benchmark's answer goes to standard output"
)]

mod raw;
mod segment;
mod sqlite;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of one event.
const EVENT_BYTES: usize = 1024;
const WRITERS: [usize; 3] = [1, 16, 256];

struct Options {
    dir: PathBuf,
    run: Duration,
    rounds: usize,
    writers: Vec<usize>,
    json: bool,
}

/// Runs so many writers in a directory for so long.
type Engine = fn(&Path, usize, Duration) -> Run;

/// What one run of one engine took.
struct Run {
    latencies: Vec<Duration>,
    took: Duration,
}

/// A run in figures: appends per second, p50 and p99 in milliseconds.
#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    p50: f64,
    p99: f64,
}

impl Run {
    fn figures(mut self) -> Figures {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let at = |share: usize| self.latencies[(count * share / 100).min(count - 1)].as_secs_f64();
        Figures {
            rate: count as f64 / self.took.as_secs_f64(),
            p50: at(50) * 1e3,
            p99: at(99) * 1e3,
        }
    }
}

fn main() {
    let options = options();
    let engines: [(&str, Engine); 3] = [
        ("pwrite+fdatasync", raw::run),
        ("segment log", segment::run),
        ("journal (SQLite)", sqlite::run),
    ];
    if !options.json {
        println!(
            "{:<18}{:>8}{:>12}{:>10}{:>10}{:>10}{:>11}",
            "", "writers", "appends/s", "p50 ms", "p99 ms", "p99/p50", "x segment"
        );
    }
    for &writers in &options.writers {
        let mut figures = vec![Vec::new(); engines.len()];
        for _ in 0..options.rounds {
            for (engine, figures) in engines.iter().zip(&mut figures) {
                let dir = tempfile::Builder::new()
                    .prefix("journal-bench-")
                    .tempdir_in(&options.dir)
                    .expect("a directory to write in");
                figures.push((engine.1)(dir.path(), writers, options.run).figures());
            }
        }
        let medians: Vec<Figures> = figures.iter().map(|f| median(f)).collect();
        let segment = medians[1].rate;
        for ((name, _), m) in engines.iter().zip(&medians) {
            let (ratio, spread) = (m.rate / segment, m.p99 / m.p50);
            if options.json {
                println!(
                    "{{\"engine\":\"{name}\",\"writers\":{writers},\"appends_per_s\":{:.0},\"p50_ms\":{:.3},\
                     \"p99_ms\":{:.3},\"p99_to_p50\":{spread:.2},\"to_segment\":{ratio:.3}}}",
                    m.rate, m.p50, m.p99
                );
            } else {
                println!(
                    "{name:<18}{writers:>8}{:>12.0}{:>10.2}{:>10.2}{spread:>10.1}{ratio:>11.2}",
                    m.rate, m.p50, m.p99
                );
            }
        }
    }
}

fn median(figures: &[Figures]) -> Figures {
    let middle = |of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = figures.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Figures {
        rate: middle(|f| f.rate),
        p50: middle(|f| f.p50),
        p99: middle(|f| f.p99),
    }
}

fn options() -> Options {
    let mut options = Options {
        dir: std::env::temp_dir(),
        run: Duration::from_secs(3),
        rounds: 3,
        writers: WRITERS.to_vec(),
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option needs a value");
        match arg.as_str() {
            "--dir" => options.dir = value().into(),
            "--seconds" => options.run = Duration::from_secs_f64(number(&value())),
            "--rounds" => options.rounds = number(&value()),
            "--writers" => options.writers = value().split(',').map(number).collect(),
            "--json" => options.json = true,
            other => {
                println!("unknown option {other}");
                std::process::exit(2);
            }
        }
    }
    options
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| unreachable_input(text))
}

fn unreachable_input<T>(text: &str) -> T {
    println!("{text} is no number");
    std::process::exit(2);
}

/// Runs one async writer per number until the time is up; `append` makes one durable append.
fn drive<W, F>(count: usize, run: Duration, mut writer: impl FnMut(usize) -> W) -> Run
where
    W: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    // As in the daemon: callers share a thread, the committing thread has another.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let start = Instant::now();
    let tasks: Vec<_> = (0..count)
        .map(|n| {
            let mut append = writer(n);
            runtime.spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < run {
                    let before = Instant::now();
                    append().await;
                    latencies.push(before.elapsed());
                }
                latencies
            })
        })
        .collect();
    let latencies = runtime.block_on(async {
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("a writer that ends"));
        }
        all
    });
    Run {
        latencies,
        took: start.elapsed(),
    }
}

/// Returns a text that does not compress and differs by call.
fn noise(bytes: usize) -> String {
    (0..bytes)
        .map(|_| char::from(b'a' + rand::random::<u8>() % 26))
        .collect()
}
