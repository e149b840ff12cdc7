//! Why a store says no.

use std::sync::Arc;

use protocol::{Epoch, ErrorCode, Head, SandboxId, SandboxName};

use crate::Damage;

/// Why a call was refused or not answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A living journal has the name.
    #[error("the name {name} is taken by sandbox {by}")]
    NameTaken {
        /// The name asked for.
        name: SandboxName,
        /// Who has it.
        by: SandboxId,
    },
    /// There is no such journal.
    #[error("there is no journal of sandbox {sandbox}")]
    UnknownSandbox {
        /// The id asked for.
        sandbox: SandboxId,
    },
    /// Somebody took the lease after the caller did.
    #[error("sandbox {sandbox} is written under epoch {current}, not under {given}")]
    Fenced {
        /// Whose journal.
        sandbox: SandboxId,
        /// The epoch given.
        given: Epoch,
        /// The epoch that holds.
        current: Epoch,
    },
    /// A copy of events was given to a journal that is written already.
    #[error(
        "the journal of sandbox {sandbox} is written under epoch {current} and takes no copies"
    )]
    Leased {
        /// Whose journal.
        sandbox: SandboxId,
        /// The epoch that holds.
        current: Epoch,
    },
    /// The journal's head is not where the caller thinks.
    #[error("the journal of sandbox {sandbox} ends at {}", head.seq)]
    WrongSequence {
        /// Whose journal.
        sandbox: SandboxId,
        /// The head that holds.
        head: Head,
    },
    /// An append without events.
    #[error("an append to sandbox {sandbox} holds no event")]
    NothingToAppend {
        /// Whose journal.
        sandbox: SandboxId,
    },
    /// An append above [`MAX_APPEND_BYTES`](crate::MAX_APPEND_BYTES).
    #[error("an append of {bytes} bytes to sandbox {sandbox} is over the limit of {limit}")]
    TooLarge {
        /// Whose journal.
        sandbox: SandboxId,
        /// Bytes of its encoded events.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// An event that cannot be encoded.
    #[error("an event for sandbox {sandbox} cannot be written as JSON: {why}")]
    Unencodable {
        /// Whose journal.
        sandbox: SandboxId,
        /// What the encoder says.
        why: String,
    },
    /// The disk is full. Nothing of the call is there, and it may be repeated.
    #[error("the disk of the journal is full")]
    NoSpace,
    /// More waits to be written than the store holds in memory.
    #[error("{waiting} calls wait to be written; try again later")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// What is stored is not what was written.
    #[error("the journal of sandbox {sandbox} is damaged: {damage}")]
    Damaged {
        /// Whose journal.
        sandbox: SandboxId,
        /// Where and what.
        damage: Damage,
    },
    /// The store failed and must be opened again.
    #[error("the journal store failed")]
    Failed(#[source] Failure),
    /// The store was closed.
    #[error("the journal store is closed")]
    Closed,
}

impl Error {
    /// Returns what the caller must do.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NameTaken { .. } | Self::Leased { .. } | Self::WrongSequence { .. } => {
                ErrorCode::Conflict
            }
            Self::UnknownSandbox { .. } => ErrorCode::NotFound,
            Self::Fenced { .. } => ErrorCode::Fenced,
            Self::NothingToAppend { .. } | Self::TooLarge { .. } | Self::Unencodable { .. } => {
                ErrorCode::Invalid
            }
            Self::NoSpace | Self::Busy { .. } | Self::Closed => ErrorCode::Unavailable,
            Self::Damaged { .. } => ErrorCode::Corrupt,
            Self::Failed(_) => ErrorCode::Internal,
        }
    }
}

/// Why a store failed for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    /// What was tried.
    pub what: &'static str,
    /// What the system said.
    pub why: Arc<str>,
}
