//! What a model is told where there is no result of a command to show it. Facts only: what is known and what is not.

use protocol::Outcome;

/// The result of a call as a model is to read it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

impl Told {
    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            is_error: true,
        }
    }
}

const NO_OUTPUT: &str = "It had written no output.";

fn so_far(output: &str) -> String {
    if output.trim().is_empty() {
        NO_OUTPUT.to_owned()
    } else {
        format!("Output so far:\n{output}")
    }
}

/// A command whose end nobody saw.
pub(crate) fn lost(output: &str) -> Told {
    Told::error(format!(
        "The outcome of this command is unknown: the sandbox stopped while it ran. It may or may not have taken effect; \
         check before you run it again. {}",
        so_far(output)
    ))
}

/// A command that still runs, with nobody waiting for it.
pub(crate) fn running(id: &str, output: &str) -> Told {
    Told {
        text: format!(
            "The command is still running in the background (operation {id}). It is not shown here how it goes on; do not \
             start a second copy while it runs. {}",
            so_far(output)
        ),
        is_error: false,
    }
}

/// A command of which it is known that it never ran.
pub(crate) fn not_started() -> Told {
    Told::error(
        "The command was not started: it was interrupted before that, and has had no effect. Run it again if it is still needed.",
    )
}

/// A tool of the harness's own, which was killed with the harness.
pub(crate) fn interrupted(only_reads: bool) -> Told {
    Told::error(if only_reads {
        "The call was interrupted before its result was recorded. It changes nothing, so it can be made again."
    } else {
        "The call was interrupted before its result was recorded. It may or may not have taken effect; check before you \
         make it again."
    })
}

/// Returns a note as a harness takes it for words: not for a command, a file, or an option of its own.
pub(crate) fn literal(note: &str) -> String {
    const MEANS_MORE: [char; 7] = ['/', '@', '!', '#', '&', '-', '\\'];
    let note = note.trim();
    // A single word could be a subcommand.
    if note.starts_with(MEANS_MORE) || !note.contains(char::is_whitespace) {
        format!("Hand-off note:\n\n{note}")
    } else {
        note.to_owned()
    }
}

/// The exit status by which a shell, and so the shim, tells of an end.
pub(crate) fn exit_code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Exited { exit_code } => *exit_code,
        Outcome::Signaled { signal } => 128_u8.saturating_add(*signal),
        Outcome::TimedOut => 124,
        Outcome::Cancelled | Outcome::Lost => 137,
    }
}
