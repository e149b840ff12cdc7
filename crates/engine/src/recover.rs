//! What becomes of each open operation when a daemon or a supervisor comes back: a pure decision.
//!
//! The journal says what was intended, the supervisor's table what was done. The supervisor was fenced before it was asked,
//! so "unknown to it" means "never started, and cannot start any more".

use protocol::table::OpRow;
use protocol::{Boot, Outcome, Replay, Settlement};

use crate::state::{Op, OpState};

/// Whether what an operation wrote is still there although no cut holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// The machine has not gone down since: the kernel kept every write.
    Kept,
    /// The machine went down: what was not in a cut may be gone, while the outcome is on disk.
    Doubtful,
}

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
        /// The exit code, where that is known and only the files are not.
        exit_code: Option<u8>,
    },
}

/// Decides about one open operation. `row` is what the supervisor's table says, `live` the boot that runs now, `files` what
/// can be said of writes that are in no cut.
///
/// Returns `None` for a settled operation.
#[must_use]
pub fn verdict(op: &Op, row: Option<&OpRow>, live: Option<Boot>, files: Files) -> Option<Verdict> {
    let (spec, journaled) = match &op.state {
        OpState::Intended { spec } => (spec, 0),
        OpState::Running { spec, attempt, .. } => (spec, *attempt),
        OpState::Settled { .. } => return None,
    };
    Some(match row {
        Some(row) => match &row.settlement {
            // To tell of an exit code while its files are gone would be a lie: files and journal are one cut.
            Some(Settlement {
                outcome: Outcome::Exited { exit_code },
                ..
            }) if live.is_none() && files == Files::Doubtful => Verdict::Lost {
                attempt: row.attempt,
                replay: spec.replay,
                exit_code: Some(*exit_code),
            },
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
                exit_code: None,
            },
        },
        // The start was seen, the row is gone: the table lost it. Nothing is known, so nothing is run again.
        None if journaled > 0 => Verdict::Lost {
            attempt: journaled,
            replay: spec.replay,
            exit_code: None,
        },
        None => Verdict::Start { attempt: 1 },
    })
}

#[cfg(test)]
mod tests {
    use protocol::{Offset, OpSpec, Origin, Role, Seq, UnixMillis};

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
            branch: 0,
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
            exit_code: None,
        });
        let verdict = |op: &Op, row: Option<&OpRow>, live| verdict(op, row, live, Files::Kept);
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

    #[test]
    fn an_exit_code_without_its_files_is_lost() {
        let running = op(OpState::Running {
            spec: spec(),
            boot: Boot(2),
            attempt: 1,
        });
        let decide = |row: &OpRow, live| verdict(&running, Some(row), live, Files::Doubtful);
        let lost = Some(Verdict::Lost {
            attempt: 1,
            replay: Replay::Safe,
            exit_code: Some(3),
        });
        assert_eq!(decide(&row(2, 1, true), None), lost);
        // A supervisor that lives was started after the machine came up: its operations' files are there.
        let settled = decide(&row(2, 1, true), Some(Boot(2)));
        assert!(
            matches!(settled, Some(Verdict::Settle { .. })),
            "{settled:?}"
        );
        // No success is claimed by the others.
        let mut cancelled = row(2, 1, true);
        if let Some(settlement) = &mut cancelled.settlement {
            settlement.outcome = Outcome::Cancelled;
        }
        let settled = decide(&cancelled, None);
        assert!(
            matches!(settled, Some(Verdict::Settle { .. })),
            "{settled:?}"
        );
    }
}
