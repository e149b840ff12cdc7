//! Taking more than is given.

use std::sync::{Arc, Barrier};

use super::Make::Run;
use super::{Attempt, Host, Result};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "start processes without end",
        make: Run(processes),
    },
    Attempt {
        name: "take memory without end",
        make: Run(memory),
    },
];

fn processes(host: &Host) -> Result {
    let Some(limit) = host.pids else {
        return Result::untried(
            "this sandbox has no limit that is held: `durable doctor` says what for",
        );
    };
    // A thread counts as a process does, and ends with us.
    let end = Arc::new(Barrier::new(usize::MAX));
    for count in 0..limit.saturating_mul(2) {
        let end = Arc::clone(&end);
        let begun = std::thread::Builder::new()
            .stack_size(64 << 10)
            .spawn(move || {
                end.wait();
            });
        if let Err(error) = begun {
            return Result::held(format!("after {count} it was: {error}"));
        }
    }
    Result::open(format!(
        "{} run side by side, where {limit} are allowed",
        limit.saturating_mul(2)
    ))
}

/// Whoever tries this is killed, and has told so.
fn memory(host: &Host) -> Result {
    let Some(limit) = host.memory.and_then(|limit| usize::try_from(limit).ok()) else {
        return Result::untried(
            "this sandbox has no limit that is held: `durable doctor` says what for",
        );
    };
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let piece = 8 << 20;
    while taken.len() * piece < limit.saturating_mul(2) {
        let mut bytes = Vec::new();
        if let Err(error) = bytes.try_reserve_exact(piece) {
            return Result::held(error.to_string());
        }
        bytes.resize(piece, 1_u8);
        taken.push(std::hint::black_box(bytes));
    }
    Result::open(format!(
        "{} bytes were had, where {limit} are allowed",
        taken.len() * piece
    ))
}
