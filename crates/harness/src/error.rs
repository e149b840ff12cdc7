//! What can be wrong with what a driver is given.

/// Why a driver cannot go on.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// No driver has this name.
    #[error("no harness is called `{name}` (there are: claude, pi)")]
    UnknownHarness {
        /// What was asked for.
        name: String,
    },
    /// The user's arguments ask for something that cannot be done durably.
    #[error("{harness} cannot be run with `{arg}` here: {why}")]
    Argument {
        /// Which harness.
        harness: &'static str,
        /// The argument.
        arg: String,
        /// Why not.
        why: &'static str,
    },
    /// A line of a transcript, not the last, is not what this harness writes.
    #[error("line {line} of the {harness} transcript is not readable: {why}")]
    Transcript {
        /// Which harness.
        harness: &'static str,
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        why: String,
    },
    /// A file of the user's own cannot be merged with ours.
    #[error("{path} is not a JSON object, so it cannot be extended")]
    NotMergeable {
        /// Which file.
        path: String,
    },
}
