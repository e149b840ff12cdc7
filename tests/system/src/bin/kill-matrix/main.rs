//! The kill matrix: everybody who can be killed, at every point of an operation's life, many times with different seeds.
//!
//! `kill-matrix --seeds N [--cell VICTIM:POINT] [--harness claude|pi|none] [--seed S] [--base N] [--jobs N] [--renew N]`
//!
//! Prints one line a cell and a verdict; ends with 1 if any promise was broken, and says how to run that seed again.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people to look at"
)]

mod agent;
mod cell;
mod check;
mod far;
mod leave;
mod plain;
mod program;
mod report;
mod stage;
mod strike;

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use system_tests::{Res, trouble};

use cell::{Cell, Under, Wanted};
use report::{Fault, Tally, Verdict, head, replay};
use stage::Stage;

struct Options {
    seeds: u64,
    seed: Option<u64>,
    base: u64,
    jobs: usize,
    /// Runs in one world before its end is looked at.
    renew: u32,
    wanted: Wanted,
}

fn options(mut args: impl Iterator<Item = String>) -> Res<Options> {
    let mut options = Options {
        seeds: 20,
        seed: None,
        base: 1,
        jobs: 2,
        renew: 40,
        wanted: Wanted::default(),
    };
    while let Some(name) = args.next() {
        let value = args
            .next()
            .ok_or_else(|| trouble(format!("{name} needs a value")))?;
        match name.as_str() {
            "--seeds" => options.seeds = value.parse()?,
            "--seed" => options.seed = Some(value.parse()?),
            "--base" => options.base = value.parse()?,
            "--jobs" => options.jobs = value.parse()?,
            "--renew" => options.renew = value.parse()?,
            "--cell" => options.wanted.cell(&value)?,
            "--harness" => options.wanted.under = Some(value.parse()?),
            _ => return Err(trouble(format!("{name} is not known"))),
        }
    }
    Ok(options)
}

/// One run that is to be done.
struct Job {
    cell: usize,
    seed: u64,
}

/// What all workers share.
struct Board {
    renew: u32,
    cells: Vec<Cell>,
    jobs: Mutex<VecDeque<Job>>,
    scores: Mutex<Vec<Score>>,
}

#[derive(Clone, Default)]
struct Score {
    left: u64,
    tally: Tally,
    replay: Option<String>,
}

impl Board {
    fn take(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.pop_front()
    }

    fn note(&self, job: &Job, verdict: &Verdict, millis: u128) {
        let cell = &self.cells[job.cell];
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        let score = &mut scores[job.cell];
        score.tally.add(verdict, millis);
        score.left = score.left.saturating_sub(1);
        if !verdict.findings.is_empty() {
            let line = replay(cell, job.seed);
            eprintln!("{cell} seed {}:", job.seed);
            for finding in &verdict.findings {
                eprintln!("  {:?}: {}", finding.fault, finding.words);
            }
            eprintln!("  again: {line}");
            score.replay.get_or_insert(line);
        }
        if score.left == 0 {
            println!("{}", score.tally.line(&cell.to_string()));
        }
    }

    /// What the end of a world shows belongs to the last run in it.
    fn note_late(&self, job: &Job, verdict: &Verdict) {
        if verdict.findings.is_empty() {
            return;
        }
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        let score = &mut scores[job.cell];
        score.tally.add(verdict, 0);
        score.tally.runs -= 1;
        let cell = &self.cells[job.cell];
        eprintln!("{cell} seed {}, at the end of its world:", job.seed);
        for finding in &verdict.findings {
            eprintln!("  {:?}: {}", finding.fault, finding.words);
        }
        score.replay.get_or_insert(replay(cell, job.seed));
    }

    fn work(&self, worker: usize) {
        let mut stage: Option<Stage> = None;
        let mut last = None;
        while let Some(job) = self.take() {
            let cell = &self.cells[job.cell];
            let begun = Instant::now();
            let verdict = self
                .one(worker, &mut stage, cell, job.seed)
                .unwrap_or_else(|trouble| {
                    let mut verdict = Verdict::default();
                    verdict.find(Fault::Broken, trouble.to_string());
                    verdict
                });
            self.note(&job, &verdict, begun.elapsed().as_millis());
            if !verdict.findings.is_empty() {
                // What it left would be counted again and again.
                stage = None;
            } else if stage.as_ref().is_some_and(|s| s.runs() >= self.renew) {
                self.end(&mut stage, &job);
            }
            last = Some(job);
        }
        if let Some(job) = last {
            self.end(&mut stage, &job);
        }
    }

    fn end(&self, stage: &mut Option<Stage>, job: &Job) {
        if let Some(stage) = stage.take() {
            let mut verdict = Verdict::default();
            stage.end(&mut verdict);
            self.note_late(job, &verdict);
        }
    }

    fn one(
        &self,
        worker: usize,
        stage: &mut Option<Stage>,
        cell: &Cell,
        seed: u64,
    ) -> Res<Verdict> {
        let stage = match stage {
            Some(stage) => stage,
            None => stage.insert(Stage::new(worker)?),
        };
        match cell.under {
            Under::Plain if cell.point.leaves() => leave::run(stage, cell, seed),
            Under::Plain => plain::run(stage, cell, seed),
            Under::Pi | Under::Claude => agent::run(stage, cell, seed),
        }
    }
}

fn matrix(options: &Options) -> Res<bool> {
    if !rustix::process::geteuid().is_root() {
        return Err(trouble(
            "the matrix needs root: it looks into mount namespaces and processes of sandboxes",
        ));
    }
    system_tests::world::binary()?;
    let cells = options.wanted.cells();
    if cells.is_empty() {
        return Err(trouble(
            "there is no such cell: `harness` and `mid-model-stream` need --harness pi or claude",
        ));
    }
    let mut jobs = VecDeque::new();
    let mut scores = vec![Score::default(); cells.len()];
    for (number, cell) in cells.iter().enumerate() {
        let runs = options.seed.map_or_else(|| cell.runs(options.seeds), |_| 1);
        scores[number].left = runs;
        for run in 0..runs {
            let seed = options.seed.unwrap_or(options.base + run);
            jobs.push_back(Job { cell: number, seed });
        }
    }
    let board = Board {
        renew: options.renew,
        cells,
        jobs: Mutex::new(jobs),
        scores: Mutex::new(scores),
    };
    println!("{}", head());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..options.jobs.max(1) {
            let board = &board;
            scope.spawn(move || board.work(worker));
        }
    });
    let scores = board
        .scores
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let mut total = Tally::default();
    for score in &scores {
        total.sum(&score.tally);
    }
    println!("{}", total.line("all"));
    for line in scores.iter().filter_map(|score| score.replay.as_ref()) {
        println!("again: {line}");
    }
    let clean = total.faults() == 0;
    println!(
        "{}: {} runs of {} cells in {} s",
        if clean { "clean" } else { "BROKEN" },
        total.runs,
        scores.len(),
        begun.elapsed().as_secs()
    );
    Ok(clean)
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| matrix(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("kill-matrix: {trouble}");
            ExitCode::from(2)
        }
    }
}
