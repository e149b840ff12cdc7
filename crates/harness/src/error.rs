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
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// The model endpoint and the harness do not fit.
    #[error("{harness} cannot use this model endpoint: {why}")]
    Model {
        /// Which harness.
        harness: &'static str,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// A file of the user's own cannot be merged with ours.
    #[error("{path} is not a JSON object, so it cannot be extended; mend or remove it")]
    NotMergeable {
        /// Which file.
        path: String,
    },
}
