//! What a run found, over all of its cuts.

use std::fmt::Write as _;

use crate::controls::{CONTROLS, Control};
use crate::load::When;

/// From so many copies on, devices must have lost something that nobody told them to flush.
const MANY: u64 = 50;

/// Counts, and everything that must not be.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) cycles: u64,
    pub(crate) sandboxes: u64,
    pub(crate) events: u64,
    pub(crate) intents: u64,
    pub(crate) settlements: u64,
    pub(crate) cuts: u64,
    pub(crate) forks: u64,
    pub(crate) pushes: u64,
    /// Operations that nobody was told of: told as lost after the cut.
    pub(crate) lost: u64,
    /// Operations that nobody was told of: told with their exit code after the cut.
    pub(crate) late_exits: u64,
    /// Operations that were asked for and of which nothing is left.
    pub(crate) not_journaled: u64,
    /// What was told while the power went, and is not there.
    pub(crate) gone_while: u64,
    /// Cuts after which the disk is a copy.
    pub(crate) copies: u64,
    /// Blocks that a device had taken and not flushed, and lost.
    pub(crate) device_lost: u64,
    pub(crate) naive: NaiveCopies,
    pub(crate) violations: Vec<String>,
    controls: [Fate; CONTROLS.len()],
}

/// What became of copies of the pool that were made while it was written.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct NaiveCopies {
    pub(crate) copies: u64,
    /// No daemon starts on them.
    pub(crate) refused: u64,
    /// Files of an operation, in its cut or the sandbox, that are what they should be.
    pub(crate) whole: u64,
    /// Such files of which it is told that they are not.
    pub(crate) told: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Fate {
    acknowledged: u64,
    lost: u64,
    cuts_that_lost: u64,
}

impl Tally {
    /// An empty tally of one cut.
    pub(crate) fn of_one(sandboxes: usize) -> Self {
        Self {
            cycles: 1,
            sandboxes: sandboxes as u64,
            ..Self::default()
        }
    }

    pub(crate) fn violation(&mut self, sandbox: &str, what: &str) {
        self.violations.push(format!("sandbox {sandbox}: {what}"));
    }

    /// Says of each violation where it was seen.
    pub(crate) fn of(mut self, place: &str) -> Self {
        for violation in &mut self.violations {
            *violation = format!("{place}: {violation}");
        }
        self
    }

    /// Notes that something which was announced is not there.
    pub(crate) fn gone(&mut self, when: When, sandbox: &str, what: &str) {
        match when {
            When::Before => self.violation(sandbox, what),
            When::While => self.gone_while += 1,
        }
    }

    pub(crate) fn control(&mut self, nth: usize, acknowledged: u64, found: u64) {
        let lost = acknowledged.saturating_sub(found);
        let fate = &mut self.controls[nth];
        fate.acknowledged += acknowledged;
        fate.lost += lost;
        fate.cuts_that_lost += u64::from(lost > 0);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.cycles += other.cycles;
        self.sandboxes += other.sandboxes;
        self.events += other.events;
        self.intents += other.intents;
        self.settlements += other.settlements;
        self.cuts += other.cuts;
        self.forks += other.forks;
        self.pushes += other.pushes;
        self.lost += other.lost;
        self.late_exits += other.late_exits;
        self.not_journaled += other.not_journaled;
        self.gone_while += other.gone_while;
        self.copies += other.copies;
        self.device_lost += other.device_lost;
        self.naive.copies += other.naive.copies;
        self.naive.refused += other.naive.refused;
        self.naive.whole += other.naive.whole;
        self.naive.told += other.naive.told;
        self.violations.extend(other.violations);
        for (mine, theirs) in self.controls.iter_mut().zip(other.controls) {
            mine.acknowledged += theirs.acknowledged;
            mine.lost += theirs.lost;
            mine.cuts_that_lost += theirs.cuts_that_lost;
        }
    }

    /// What the controls say about the test itself; `None` where it can be believed.
    pub(crate) fn distrust(&self) -> Option<String> {
        if self.settlements == 0 || self.cuts == 0 {
            return Some("nothing was announced that could be lost".to_owned());
        }
        let lost = |control| {
            let nth = CONTROLS.iter().position(|known| *known == control)?;
            Some(self.controls[nth].cuts_that_lost)
        };
        if lost(Control::Synced) != Some(0) {
            return Some(
                "the writer that syncs lost something: the cut is no honest one".to_owned(),
            );
        }
        let trusting = (self.copies >= MANY).then_some(Control::Direct);
        [Control::Plain, Control::SqliteOff]
            .into_iter()
            .chain(trusting)
            .find(|control| lost(*control) == Some(0))
            .map(|control| format!("{} lost nothing: the cuts prove nothing", control.name()))
    }

    pub(crate) fn report(&self) -> String {
        let mut out = format!(
            "{} cuts of power, {} of them in copies; {} sandboxes\nannounced: {} events, {} intents, {} settlements, {} cuts, {} forks, {} pushes\n\
             not announced: {} operations told as lost, {} told with their exit code, {} that left no trace\n\
             told in the very moment of the cut, and not there: {}\n\
             blocks that devices had not been told to flush, and lost: {}\n\
             copies of the pool while it was written: {}, no daemon starts on {}; in the others {} files are whole, {} told as lost\n",
            self.cycles,
            self.copies,
            self.sandboxes,
            self.events,
            self.intents,
            self.settlements,
            self.cuts,
            self.forks,
            self.pushes,
            self.lost,
            self.late_exits,
            self.not_journaled,
            self.gone_while,
            self.device_lost,
            self.naive.copies,
            self.naive.refused,
            self.naive.whole,
            self.naive.told
        );
        for (control, fate) in CONTROLS.iter().zip(self.controls) {
            // Writing to a string cannot fail.
            let _ok = writeln!(
                out,
                "control: {:24} acknowledged {:7}, lost {:7}, in {} of {} cuts",
                control.name(),
                fate.acknowledged,
                fate.lost,
                fate.cuts_that_lost,
                self.cycles
            );
        }
        let _ok = writeln!(out, "violations: {}", self.violations.len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_unsynced_writer_lost_nothing_is_not_believed() {
        let mut tally = Tally::default();
        assert!(tally.distrust().unwrap().contains("nothing"));
        (tally.settlements, tally.cuts) = (1, 1);
        tally.control(0, 10, 4);
        tally.control(1, 10, 10);
        tally.control(2, 10, 10);
        assert!(tally.distrust().unwrap().contains("SQLite"));
        tally.control(2, 10, 9);
        assert_eq!(tally.distrust(), None);
        // More may be there than was acknowledged, never less.
        tally.control(1, 10, 11);
        assert_eq!(tally.distrust(), None);
        tally.copies = MANY;
        assert!(tally.distrust().unwrap().contains("O_DIRECT"));
        tally.control(3, 10, 9);
        assert_eq!(tally.distrust(), None);
        tally.control(1, 10, 9);
        assert!(tally.distrust().unwrap().contains("syncs"));
    }
}
