//! The one table: what was measured, on whom, and whether an aim was met.

use std::fmt::Write as _;

use serde::Serialize;

use crate::figures::{Figures, Sample};

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    /// Milliseconds; less is better.
    #[serde(rename = "ms")]
    Millis,
    /// Appends a second; more is better.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Mebibytes a second; more is better.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// Mebibytes; less is better.
    #[serde(rename = "MiB")]
    Mebibytes,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Millis => "ms",
            Self::PerSecond => "1/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Mebibytes => "MiB",
        }
    }
}

/// One thing measured on one of us.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    pub(crate) who: String,
    pub(crate) unit: Unit,
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    /// Ours divided by this one, by the medians.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ours_to_this: Option<f64>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<String>,
}

/// What we wanted to reach.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Aim {
    pub(crate) text: String,
    pub(crate) reached: f64,
    pub(crate) met: bool,
}

/// Everything about one question.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Group {
    pub(crate) what: String,
    pub(crate) lines: Vec<Line>,
    pub(crate) aims: Vec<Aim>,
}

impl Group {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            lines: Vec::new(),
            aims: Vec::new(),
        }
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, who: impl Into<String>, unit: Unit, sample: &Sample) {
        self.known(who, unit, sample.figures());
    }

    /// Adds a line whose figures somebody else worked out.
    pub(crate) fn known(&mut self, who: impl Into<String>, unit: Unit, figures: Option<Figures>) {
        self.lines.push(Line {
            who: who.into(),
            unit,
            ours_to_this: None,
            missing: figures.is_none().then(|| "not measured".to_owned()),
            figures,
        });
    }

    /// Adds a line of a peer, with the ratio of the first line of the same unit to it.
    pub(crate) fn peer(&mut self, who: impl Into<String>, unit: Unit, sample: &Sample) {
        let ours = self.median(0);
        self.line(who, unit, sample);
        if let Some(line) = self.lines.last_mut()
            && let (Some(ours), Some(theirs)) = (ours, line.figures)
        {
            line.ours_to_this = Some(ours / theirs.median);
        }
    }

    /// Adds a line for a peer that could not be measured.
    pub(crate) fn absent(&mut self, who: impl Into<String>, unit: Unit, why: impl Into<String>) {
        self.lines.push(Line {
            who: who.into(),
            unit,
            figures: None,
            ours_to_this: None,
            missing: Some(why.into()),
        });
    }

    pub(crate) fn median(&self, line: usize) -> Option<f64> {
        self.lines.get(line)?.figures.map(|f| f.median)
    }

    /// Adds an aim that is met at or below `limit`.
    pub(crate) fn at_most(&mut self, text: impl Into<String>, reached: f64, limit: f64) {
        self.aims.push(Aim {
            text: text.into(),
            reached,
            met: reached <= limit,
        });
    }

    /// Adds an aim that is met at or above `limit`.
    pub(crate) fn at_least(&mut self, text: impl Into<String>, reached: f64, limit: f64) {
        self.aims.push(Aim {
            text: text.into(),
            reached,
            met: reached >= limit,
        });
    }
}

const HEAD: &str = "                                                   median       p99     least      most     n  ours/this";

/// Writes the table.
pub(crate) fn table(groups: &[Group]) -> String {
    let mut out = format!("{HEAD}\n");
    // Writing to a string cannot fail.
    for group in groups {
        let _ok = writeln!(out, "{}", group.what);
        for line in &group.lines {
            let _ok = match line.figures {
                Some(f) => writeln!(
                    out,
                    "  {:38} {:>5} {:>10} {:>9} {:>9} {:>9} {:>5}  {:>9}",
                    line.who,
                    line.unit.name(),
                    number(Some(f.median)),
                    number(f.p99),
                    number(f.least),
                    number(f.most),
                    f.count.map(|n| n.to_string()).unwrap_or_default(),
                    line.ours_to_this
                        .map(|r| format!("{r:.2}"))
                        .unwrap_or_default()
                ),
                None => writeln!(
                    out,
                    "  {:38} {:>5} {}",
                    line.who,
                    line.unit.name(),
                    line.missing.as_deref().unwrap_or_default()
                ),
            };
        }
        for aim in &group.aims {
            let verdict = if aim.met { "aim met" } else { "aim missed" };
            let _ok = writeln!(out, "  {verdict}: {} (is {:.2})", aim.text, aim.reached);
        }
    }
    out
}

fn number(value: Option<f64>) -> String {
    match value {
        None => String::new(),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 100.0 => format!("{value:.1}"),
        Some(value) if value.abs() >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_aim_is_told_and_the_ratio_is_ours_to_the_peers() {
        let (mut ours, mut theirs) = (Sample::default(), Sample::default());
        ours.push(3.0);
        theirs.push(2.0);
        let mut group = Group::new("exec");
        group.line("durable", Unit::Millis, &ours);
        group.peer("peer", Unit::Millis, &theirs);
        group.at_most("at most 1 × peer", 1.5, 1.0);
        let text = table(&[group]);
        assert!(text.contains("     1.50\n"), "{text}");
        assert!(
            text.contains("aim missed: at most 1 × peer (is 1.50)"),
            "{text}"
        );
    }
}
