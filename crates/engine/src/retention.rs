//! Which cuts are given back: all of the latest are kept, then one for each hour, then one for each day. Pure.
//!
//! A cut with a label is kept until the label goes, and so is whatever the caller names. The clock decides here only what
//! is thrown away, never what is true.

use std::collections::HashSet;

use protocol::{CutId, UnixMillis};

use crate::state::Cut;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// For so long one cut an hour is kept.
const HOURLY_MS: u64 = 2 * DAY_MS;
/// For so long one cut a day is kept.
const DAILY_MS: u64 = 60 * DAY_MS;

/// Returns the cuts that are to go, oldest first. `cuts` are in order; `latest` of them all stay.
pub(crate) fn surplus<'a>(
    cuts: impl DoubleEndedIterator<Item = &'a Cut>,
    latest: usize,
    now: UnixMillis,
    needed: impl Fn(&CutId) -> bool,
) -> Vec<Cut> {
    let mut taken = HashSet::new();
    let mut gone: Vec<Cut> = cuts
        .rev()
        .enumerate()
        .filter(|(index, cut)| {
            let age = now.0.saturating_sub(cut.at_ms.0);
            let bucket = match age {
                _ if *index < latest => return false,
                ..HOURLY_MS => Some((HOUR_MS, cut.at_ms.0 / HOUR_MS)),
                HOURLY_MS..DAILY_MS => Some((DAY_MS, cut.at_ms.0 / DAY_MS)),
                _ => None,
            };
            // The youngest of its hour or day stays.
            let stays = bucket.is_some_and(|bucket| taken.insert(bucket));
            !stays && cut.label.is_none() && !needed(&cut.id)
        })
        .map(|(_, cut)| cut.clone())
        .collect();
    gone.reverse();
    gone
}

#[cfg(test)]
mod tests {
    use protocol::Seq;

    use super::*;

    const NOW: u64 = 100 * DAY_MS;

    fn cut(number: u64, age_ms: u64) -> Cut {
        Cut {
            workspace: "w".parse().unwrap(),
            id: format!("c{number}").parse().unwrap(),
            at: Seq(number),
            until: Seq(number),
            at_ms: UnixMillis(NOW - age_ms),
            label: None,
            quiet: true,
            still: true,
            abandoned: false,
            replicated: false,
        }
    }

    fn gone(cuts: &[Cut], latest: usize, needed: &str) -> Vec<u64> {
        let gone = surplus(cuts.iter(), latest, UnixMillis(NOW), |id| {
            id.as_str() == needed
        });
        gone.iter().map(|cut| cut.at.0).collect()
    }

    #[test]
    fn the_latest_all_stay_then_one_an_hour_then_one_a_day() {
        let minute = HOUR_MS / 60;
        let cuts = [
            cut(1, 70 * DAY_MS),
            cut(2, 9 * DAY_MS + 2 * minute),
            cut(3, 9 * DAY_MS - minute),
            cut(4, 9 * DAY_MS - 2 * minute),
            cut(5, 3 * HOUR_MS - minute),
            cut(6, 3 * HOUR_MS - 2 * minute),
            cut(7, 2 * minute),
            cut(8, minute),
        ];
        assert_eq!(gone(&cuts, 2, ""), [1, 3, 5]);
        assert_eq!(gone(&cuts, 8, ""), [] as [u64; 0]);
        assert_eq!(gone(&cuts, 2, "c3"), [1, 5]);
    }

    #[test]
    fn a_labeled_cut_stays_for_ever() {
        let mut cuts = [cut(1, 90 * DAY_MS), cut(2, 80 * DAY_MS), cut(3, 0)];
        cuts[0].label = Some("before".to_owned());
        assert_eq!(gone(&cuts, 1, ""), [2]);
    }
}
