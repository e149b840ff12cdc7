//! What the runs of a cell found, and the table of it.

use std::fmt::Write as _;

use crate::cell::Cell;

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An effect happened twice.
    Duplicated,
    /// An effect of a command that is told to have ended did not happen, or settled output is not there, byte for byte.
    LostOutput,
    /// The exit code, or the outcome, is not the true one.
    WrongCode,
    /// Journal and files, or journal and answers, differ; or the chain is broken.
    Disagreement,
    Process,
    Mount,
    Cgroup,
    /// The run could not be judged: something hangs, or a place was not reached.
    Broken,
}

/// One broken promise.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) fault: Fault,
    pub(crate) words: String,
}

/// What one run found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) findings: Vec<Finding>,
    /// Outcomes that are unknown and told as such, where that is allowed.
    pub(crate) told_lost: u64,
}

impl Verdict {
    pub(crate) fn find(&mut self, fault: Fault, words: impl Into<String>) {
        self.findings.push(Finding {
            fault,
            words: words.into(),
        });
    }
}

/// The sum of a cell's runs.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    faults: [u64; 8],
    told_lost: u64,
    pub(crate) millis: u128,
}

impl Tally {
    pub(crate) fn add(&mut self, verdict: &Verdict, millis: u128) {
        self.runs += 1;
        self.millis += millis;
        self.told_lost += verdict.told_lost;
        for finding in &verdict.findings {
            self.faults[finding.fault as usize] += 1;
        }
    }

    pub(crate) fn sum(&mut self, other: &Self) {
        self.runs += other.runs;
        self.millis += other.millis;
        self.told_lost += other.told_lost;
        for (mine, theirs) in self.faults.iter_mut().zip(other.faults) {
            *mine += theirs;
        }
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.iter().sum()
    }

    /// One line of the table.
    pub(crate) fn line(&self, name: &str) -> String {
        let mut line = format!("{name:<40} {:>5}", self.runs);
        for count in self.faults {
            // A String takes everything.
            let _written = write!(line, " {count:>6}");
        }
        let each = self.millis / u128::from(self.runs.max(1));
        let _written = write!(line, " {:>6} {each:>6}", self.told_lost);
        line
    }
}

/// The heads of the columns.
pub(crate) fn head() -> String {
    format!(
        "{:<40} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}\n{:<40} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "victim:point (harness)",
        "runs",
        "effect",
        "output",
        "wrong",
        "journ/",
        "leaked",
        "leaked",
        "leaked",
        "not",
        "told",
        "ms",
        "",
        "",
        "twice",
        "lost",
        "code",
        "files",
        "procs",
        "mounts",
        "groups",
        "judged",
        "lost",
        "each"
    )
}

/// The line that runs a seed again.
pub(crate) fn replay(cell: &Cell, seed: u64) -> String {
    format!(
        "kill-matrix --cell {}:{} --harness {} --seed {seed}",
        cell.victim.name(),
        cell.point.name(),
        cell.under.name()
    )
}
