//! Why a secret cannot be had: the reference, the reason and the remedy, and never a byte of a value.

use std::path::PathBuf;

use crate::source::SourceError;
use crate::value::MAX_BYTES;

/// The result of getting or keeping a secret.
pub type Result<T> = std::result::Result<T, Error>;

/// A secret cannot be had, or cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret {reference} cannot be {verb}: {why}")]
pub struct Error {
    /// The reference to it, as it may be shown.
    pub reference: String,
    /// What was to be done: `had`, `kept`, `removed`, `listed`.
    pub verb: &'static str,
    /// Why that failed, and what to do.
    pub why: Why,
}

/// Why a secret cannot be had or kept. Each says what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// There is no such variable.
    #[error(
        "the daemon's environment has no such variable; stop the daemon and start it with it set, or keep the value with \
         `durable secret set`"
    )]
    NotSet,
    /// There is nothing of that name in the store.
    #[error(
        "the store has none of that name; keep it with `durable secret set NAME` (`durable secret ls` shows all)"
    )]
    Unknown,
    /// The reference is none.
    #[error(transparent)]
    NoReference(#[from] SourceError),
    /// A file cannot be opened, read or written.
    #[error("cannot {doing} {path}: {because}; look at the path and who may use it", path = path.display())]
    File {
        /// The verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        because: String,
    },
    /// What is there is a device, a pipe, a directory or a socket.
    #[error("{path} is no regular file; name one", path = path.display())]
    NotRegular {
        /// What was named.
        path: PathBuf,
    },
    /// Others can read the file.
    #[error("others than its owner can use {path} (mode {mode:04o}); run `chmod 600` on it", path = path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is longer than a secret may be.
    #[error("it is longer than {MAX_BYTES} bytes; name the secret alone")]
    TooLong,
    /// There is no byte in it.
    #[error("it is empty; set it again, or look whether the reference is the right one")]
    Empty,
    /// The client program is not there.
    #[error(
        "the program {program} is not on the daemon's PATH; install it, or start the daemon with a PATH that has it"
    )]
    NoProgram {
        /// Its name.
        program: String,
    },
    /// The program could not be started or read from.
    #[error("the program {program} cannot be run: {because}; try it by hand: {by_hand}")]
    Run {
        /// Its name.
        program: String,
        /// What the system said.
        because: String,
        /// The command.
        by_hand: String,
    },
    /// The program ended in another way than with status 0.
    #[error("the program {program} ended with {status}; run it by hand to see why: {by_hand}")]
    Failed {
        /// Its name.
        program: String,
        /// The status or signal.
        status: String,
        /// The command.
        by_hand: String,
    },
    /// It did not answer in time.
    #[error("there was no answer within {secs} seconds; see by hand what it waits for: {by_hand}")]
    TimedOut {
        /// How long it was waited for.
        secs: u64,
        /// The command, or the file.
        by_hand: String,
    },
    /// A file of the store is damaged, or is no age file.
    #[error("{path} is damaged or no age file; set the secret again", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A file of the store was encrypted for somebody else.
    #[error(
        "{path} was not encrypted for the identity in {identity}; name the right one in DURABLE_AGE_IDENTITY, or set the \
         secret again",
        path = path.display(),
        identity = identity.display()
    )]
    OtherIdentity {
        /// The file.
        path: PathBuf,
        /// The file of the identity that was tried.
        identity: PathBuf,
    },
    /// The file that should hold the identity does not.
    #[error("{path} holds no age identity (AGE-SECRET-KEY-1…); put it back, or name another in DURABLE_AGE_IDENTITY", path = path.display())]
    NoIdentity {
        /// The file.
        path: PathBuf,
    },
    /// The store has secrets, and the identity that opens them is gone.
    #[error(
        "the store has secrets and {path}, the identity that opens them, is gone; put it back or name it in \
         DURABLE_AGE_IDENTITY (a new one is made when the store is empty)",
        path = path.display()
    )]
    IdentityGone {
        /// Where it should be.
        path: PathBuf,
    },
    /// The daemon ends.
    #[error("the daemon is stopping; try again when it runs")]
    Stopping,
}
