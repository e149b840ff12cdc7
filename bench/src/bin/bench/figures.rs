//! Samples and what is said about them.

use serde::Serialize;

/// Measured values of one thing, all in the same unit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(Vec<f64>);

/// A sample in figures.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figures {
    pub(crate) median: f64,
    /// The value that one in a hundred is worse than; the worst of fewer than a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<usize>,
}

impl Sample {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Returns its figures; `None` for an empty one.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let last = count.checked_sub(1)?;
        Some(Figures {
            median: sorted[count / 2],
            p99: Some(sorted[(count * 99 / 100).min(last)]),
            least: Some(sorted[0]),
            most: Some(sorted[last]),
            count: Some(count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_the_p99_are_values_that_were_measured() {
        let mut sample = Sample::default();
        assert!(sample.figures().is_none());
        for value in (1..=200).rev() {
            sample.push(f64::from(value));
        }
        let figures = sample.figures().unwrap();
        assert_eq!((figures.median, figures.p99), (101.0, Some(199.0)));
        assert_eq!((figures.least, figures.most), (Some(1.0), Some(200.0)));
        assert_eq!(figures.count, Some(200));
    }
}
