//! How fast is a durable append of 1 KiB to the journal? The journal's own benchmark answers; see there for the limits.
//!
//! The aims: at 256 writers at least 0.4 of a bare segment log with group commit, p99 at most three times p50.

use std::path::Path;
use std::process::Command;

use bench::Failure;
use serde::Deserialize;

use crate::figures::Figures;
use crate::table::{Group, Unit};

#[derive(Deserialize)]
struct Figure {
    engine: String,
    writers: usize,
    appends_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

pub(crate) fn run(dir: &Path, seconds: f64, rounds: usize) -> Result<Vec<Group>, Failure> {
    let what = "run append-bench, which is built with this program";
    let program = std::env::current_exe()
        .map_err(Failure::cannot(what))?
        .with_file_name("append-bench");
    let output = Command::new(program)
        .arg("--json")
        .arg("--dir")
        .arg(dir)
        .args([
            "--seconds",
            &seconds.to_string(),
            "--rounds",
            &rounds.to_string(),
        ])
        .output()
        .map_err(Failure::cannot(what))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::wrong(format!(
            "append-bench: {}: {said}",
            output.status
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Figure>, _>>()
        .map_err(Failure::cannot("understand append-bench"))?;
    // The journal first: the others' ratios are to it.
    let (ours, limits): (Vec<Figure>, Vec<Figure>) = figures
        .into_iter()
        .partition(|figure| figure.engine.starts_with("journal"));
    Ok(ours.iter().map(|ours| group(ours, &limits)).collect())
}

fn group(ours: &Figure, limits: &[Figure]) -> Group {
    let writers = ours.writers;
    let limits: Vec<&Figure> = limits
        .iter()
        .filter(|limit| limit.writers == writers)
        .collect();
    let mut group = Group::new(format!(
        "durable appends of 1 KiB by {writers} writers, and how long one takes"
    ));
    for figure in std::iter::once(&ours).chain(&limits) {
        group.known(figure.engine.clone(), Unit::PerSecond, Some(figure.rate()));
        if let Some(line) = group.lines.last_mut()
            && figure.engine != ours.engine
        {
            line.ours_to_this = Some(ours.appends_per_s / figure.appends_per_s);
        }
    }
    for figure in std::iter::once(&ours).chain(&limits) {
        group.known(figure.engine.clone(), Unit::Millis, Some(figure.latency()));
    }
    if writers == 256
        && let Some(segment) = limits
            .iter()
            .find(|limit| limit.engine.starts_with("segment"))
    {
        let ratio = ours.appends_per_s / segment.appends_per_s;
        group.at_least("appends ≥ 0.4 × segment log", ratio, 0.4);
        group.at_most("p99 of an append ≤ 3 × p50", ours.p99_ms / ours.p50_ms, 3.0);
    }
    group
}

impl Figure {
    fn rate(&self) -> Figures {
        Figures {
            median: self.appends_per_s,
            p99: None,
            least: None,
            most: None,
            count: None,
        }
    }

    fn latency(&self) -> Figures {
        Figures {
            median: self.p50_ms,
            p99: Some(self.p99_ms),
            ..self.rate()
        }
    }
}
