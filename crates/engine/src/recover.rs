//! What becomes of each open operation when a daemon or a supervisor comes back: a pure decision.
//!
//! The journal says what was intended, the supervisor's table what was done. The supervisor was fenced before it was asked,
//! so "unknown to it" means "never started, and cannot start any more".

use protocol::table::OpRow;
use protocol::{Boot, Replay, Settlement};

use crate::state::{Op, OpState};

/// What is to be done with one open operation.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It runs: go on listening.
    Adopt {
        /// Which run.
        attempt: u32,
    },
    /// It ended and nobody was told.
    Settle {
        /// Which run.
        attempt: u32,
        /// How.
        settlement: Settlement,
    },
    /// It was never started: start it now, exactly once.
    Start {
        /// The first run that was never begun.
        attempt: u32,
    },
    /// It was started and its end is unknown.
    Lost {
        /// Which run was lost.
        attempt: u32,
        /// What the caller allowed.
        replay: Replay,
    },
}

/// Decides about one open operation. `row` is what the supervisor's table says, `live` the boot that runs now.
///
/// Returns `None` for a settled operation.
#[must_use]
pub fn verdict(op: &Op, row: Option<&OpRow>, live: Option<Boot>) -> Option<Verdict> {
    let (spec, journaled) = match &op.state {
        OpState::Intended { spec } => (spec, 0),
        OpState::Running { spec, attempt, .. } => (spec, *attempt),
        OpState::Settled { .. } => return None,
    };
    Some(match row {
        Some(row) => match &row.settlement {
            Some(settlement) => Verdict::Settle {
                attempt: row.attempt,
                settlement: settlement.clone(),
            },
            None if live == Some(row.boot) => Verdict::Adopt {
                attempt: row.attempt,
            },
            None => Verdict::Lost {
                attempt: row.attempt,
                replay: spec.replay,
            },
        },
        // The start was seen, the row is gone: the table lost it. Nothing is known, so nothing is run again.
        None if journaled > 0 => Verdict::Lost {
            attempt: journaled,
            replay: spec.replay,
        },
        None => Verdict::Start { attempt: 1 },
    })
}

#[cfg(test)]
mod tests {
    use protocol::{Offset, OpSpec, Origin, Outcome, Role, Seq, UnixMillis};

    use super::*;

    fn spec() -> Box<OpSpec> {
        Box::new(
            serde_json::from_value(serde_json::json!({"argv": ["x"], "replay": "safe"})).unwrap(),
        )
    }

    fn op(state: OpState) -> Op {
        Op {
            intent: Seq(1),
            intent_at: UnixMillis(0),
            origin: Origin::Api,
            role: Role::Command,
            fingerprint: [0; 16],
            cut_before: None,
            state,
        }
    }

    fn row(boot: u64, attempt: u32, settled: bool) -> OpRow {
        let settlement = settled.then_some(Settlement {
            outcome: Outcome::Exited { exit_code: 3 },
            stdout_bytes: Offset(1),
            stderr_bytes: Offset(0),
            duration_ms: 1,
            error: None,
        });
        OpRow {
            op: "a".parse().unwrap(),
            attempt,
            boot: Boot(boot),
            settlement,
            announced: false,
        }
    }

    #[test]
    fn the_table_of_verdicts() {
        let intended = op(OpState::Intended { spec: spec() });
        let running = op(OpState::Running {
            spec: spec(),
            boot: Boot(2),
            attempt: 1,
        });
        let lost = Some(Verdict::Lost {
            attempt: 1,
            replay: Replay::Safe,
        });
        // Never reached the supervisor.
        assert_eq!(
            verdict(&intended, None, Some(Boot(2))),
            Some(Verdict::Start { attempt: 1 })
        );
        assert_eq!(
            verdict(&intended, None, None),
            Some(Verdict::Start { attempt: 1 })
        );
        // Started, with or without the journal knowing.
        for op in [&intended, &running] {
            let adopt = Some(Verdict::Adopt { attempt: 1 });
            assert_eq!(verdict(op, Some(&row(2, 1, false)), Some(Boot(2))), adopt);
            assert_eq!(verdict(op, Some(&row(2, 1, false)), Some(Boot(3))), lost);
            assert_eq!(verdict(op, Some(&row(2, 1, false)), None), lost);
            let settled = verdict(op, Some(&row(2, 1, true)), None);
            assert!(
                matches!(settled, Some(Verdict::Settle { attempt: 1, .. })),
                "{settled:?}"
            );
        }
        // The journal saw a start that the table does not know.
        assert_eq!(verdict(&running, None, Some(Boot(2))), lost);
    }
}
