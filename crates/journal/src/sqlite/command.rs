//! What callers ask of the writer, and the answers that wait for its commit.

use protocol::{Epoch, Head, SandboxId, SandboxName, Seq, UnixMillis};
use tokio::sync::oneshot;

use crate::encoded::{Encoded, encode};
use crate::{Append, Error, Lease, Raw};

pub(super) type Reply<T> = oneshot::Sender<Result<T, Error>>;

/// One call.
pub(super) enum Command {
    Create {
        name: SandboxName,
        reply: Reply<SandboxId>,
    },
    Found {
        name: SandboxName,
        node: String,
        /// For whatever number the journal gets.
        first: Entry,
        reply: Reply<Lease>,
    },
    Lease {
        sandboxes: Vec<SandboxId>,
        node: String,
        reply: Reply<Vec<Lease>>,
    },
    Append {
        entry: Entry,
        reply: Reply<Head>,
    },
    Import {
        sandbox: SandboxId,
        /// With their kinds.
        events: Vec<(Raw, &'static str)>,
        reply: Reply<Head>,
    },
    Remove {
        sandbox: SandboxId,
        reply: Reply<()>,
    },
}

/// An append whose events are encoded.
pub(super) struct Entry {
    pub(super) sandbox: SandboxId,
    pub(super) expected: Seq,
    pub(super) epoch: Epoch,
    pub(super) at: UnixMillis,
    pub(super) events: Vec<Encoded>,
}

impl Entry {
    /// Encodes an append.
    pub(super) fn new(append: &Append) -> Result<Self, Error> {
        Ok(Self {
            sandbox: append.sandbox,
            expected: append.expected,
            epoch: append.epoch,
            at: append.at,
            events: encode(append)?,
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.events.iter().map(|event| event.payload.len()).sum()
    }
}

/// A call's answer, to be given when the commit is on disk.
pub(super) enum Answer {
    Create(Reply<SandboxId>, Result<SandboxId, Error>),
    Found(Reply<Lease>, Result<Lease, Error>),
    Lease(Reply<Vec<Lease>>, Result<Vec<Lease>, Error>),
    Append(Reply<Head>, Result<Head, Error>),
    Remove(Reply<()>, Result<(), Error>),
}

impl Answer {
    /// Gives it. A caller that went away needs none.
    pub(super) fn give(self) {
        match self {
            Self::Create(reply, result) => drop(reply.send(result)),
            Self::Found(reply, result) => drop(reply.send(result)),
            Self::Lease(reply, result) => drop(reply.send(result)),
            Self::Append(reply, result) => drop(reply.send(result)),
            Self::Remove(reply, result) => drop(reply.send(result)),
        }
    }

    /// Gives this error in its place.
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Create(reply, _) => drop(reply.send(Err(error))),
            Self::Found(reply, _) => drop(reply.send(Err(error))),
            Self::Lease(reply, _) => drop(reply.send(Err(error))),
            Self::Append(reply, _) => drop(reply.send(Err(error))),
            Self::Remove(reply, _) => drop(reply.send(Err(error))),
        }
    }
}

impl Command {
    /// Returns how many events it holds.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::Append { entry, .. } | Self::Found { first: entry, .. } => entry.events.len(),
            Self::Import { events, .. } => events.len(),
            Self::Create { .. } | Self::Lease { .. } | Self::Remove { .. } => 0,
        }
    }

    /// Answers it with an error.
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Create { reply, .. } => drop(reply.send(Err(error))),
            Self::Found { reply, .. } => drop(reply.send(Err(error))),
            Self::Lease { reply, .. } => drop(reply.send(Err(error))),
            Self::Append { reply, .. } | Self::Import { reply, .. } => drop(reply.send(Err(error))),
            Self::Remove { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}
