//! How often the rules of a sandbox may be used.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Rules that are counted at a time; a policy has a few dozen.
const MAX_RULES: usize = 1024;

/// Counts requests by rule.
#[derive(Default)]
pub(crate) struct Budgets {
    rules: Mutex<HashMap<String, Bucket>>,
}

/// Fills up evenly over a minute, so that a burst of a whole minute's requests is allowed and no more.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Budgets {
    /// Takes one request of a rule's budget; false where it is used up.
    pub(crate) fn take(&self, rule: &str, per_minute: u32, now: Instant) -> bool {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if rules.len() >= MAX_RULES {
            rules.clear();
        }
        let full = f64::from(per_minute);
        let bucket = rules.entry(rule.to_owned()).or_insert(Bucket {
            left: full,
            at: now,
        });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.left = (bucket.left + passed * full / 60.0).min(full);
        bucket.at = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_minute_holds_as_many_as_the_rule_says() {
        let budgets = Budgets::default();
        let start = Instant::now();
        let taken = (0..10).filter(|_| budgets.take("r", 4, start)).count();
        assert_eq!(taken, 4);
        assert!(budgets.take("other", 4, start));
        let later = start + Duration::from_secs(16);
        assert!(budgets.take("r", 4, later) && !budgets.take("r", 4, later));
    }
}
