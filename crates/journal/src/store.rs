//! The contract that every engine keeps.
//!
//! A call is submitted when it is made, not when its future is first polled: two appends of one caller are written in the
//! order of the calls, whether or not the first is awaited. A dropped future withdraws nothing.

use std::fmt;
use std::pin::Pin;

use protocol::{Epoch, Event, EventId, Head, SandboxId, SandboxName, Seq, Stored, UnixMillis};
use tokio::sync::watch;

use crate::{Error, Failure, Raw, Report};

/// A future that any executor may run.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The most bytes of encoded events in one append. A bigger thing is a blob, not an event.
pub const MAX_APPEND_BYTES: usize = 16 << 20;

/// When an append must reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// At once.
    #[default]
    Now,
    /// With the next append that must, or after a few milliseconds. Its future still resolves only when it is durable.
    Relaxed,
}

/// An event to be written, with the id that resolves a lost reply.
#[derive(Debug, Clone, PartialEq)]
pub struct New {
    /// Its id. Never given to another event.
    pub id: EventId,
    /// What happened.
    pub event: Event,
}

impl From<Event> for New {
    /// Gives the event a random id.
    fn from(event: Event) -> Self {
        Self {
            id: EventId(rand::random()),
            event,
        }
    }
}

/// Events for one journal: all of them are written, next to each other, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// Whose journal.
    pub sandbox: SandboxId,
    /// The head before it: the first event gets the place after this.
    pub expected: Seq,
    /// The writer's lease.
    pub epoch: Epoch,
    /// The time written into the events, for people.
    pub at: UnixMillis,
    /// The events, at least one.
    pub events: Vec<New>,
    /// When it must reach the disk.
    pub durability: Durability,
}

impl Append {
    /// The first events of a journal that is still to get its number.
    pub(crate) fn first(at: UnixMillis, events: Vec<New>) -> Self {
        Self {
            sandbox: SandboxId(0),
            expected: Head::EMPTY.seq,
            epoch: Epoch(0).next(),
            at,
            events,
            durability: Durability::Now,
        }
    }
}

/// The right to write one journal, and the head it was taken at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Whose journal.
    pub sandbox: SandboxId,
    /// The new fencing number. Every older one is refused from now on.
    pub epoch: Epoch,
    /// The head at that moment. Nothing but this lease can move it on.
    pub head: Head,
}

/// Whose event stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// The one asked for: it was written, and this is the head it made.
    Mine(Head),
    /// Another one.
    Other(EventId),
    /// Nobody's: it was not written and may be tried again.
    None,
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mine(_) => "written",
            Self::Other(_) => "not written, another event stands there",
            Self::None => "not written",
        })
    }
}

/// The journals of one data directory.
///
/// * An answer is given only when what it tells is on stable storage, refusals included.
/// * After an I/O error on commit nobody knows what is on disk: the store answers every waiter with [`Error::Failed`],
///   refuses everything from then on and says so through [`failed`](Self::failed). The embedder ends, starts again and
///   asks [`resolve`](Self::resolve) about appends that were open.
pub trait Store: Send + Sync + 'static {
    /// Makes an empty journal under a name that no living journal has. The id is never given again, not even after [`remove`](Self::remove).
    fn create(&self, name: &SandboxName) -> BoxFuture<Result<SandboxId, Error>>;

    /// Makes a journal that begins with these events, and takes its first lease: all of it in one commit, or nothing.
    ///
    /// The lease that is returned is at the head that the events made. Refused with [`Error::NameTaken`], and as an append is.
    fn found(
        &self,
        name: &SandboxName,
        node: &str,
        at: UnixMillis,
        events: Vec<New>,
    ) -> BoxFuture<Result<Lease, Error>>;

    /// Takes the right to write: the epoch grows by one, and a holder of an older one is refused from then on.
    ///
    /// `node` is kept for people. Calling it again takes a further epoch.
    fn lease(&self, sandbox: SandboxId, node: &str) -> BoxFuture<Result<Lease, Error>>;

    /// Takes many leases in one commit, all or none; the answer is in the order asked for.
    fn lease_many(
        &self,
        sandboxes: &[SandboxId],
        node: &str,
    ) -> BoxFuture<Result<Vec<Lease>, Error>>;

    /// Writes events and returns the head they made.
    ///
    /// Epoch and expected place are compared in the store, in the statement that moves the head. Refused with
    /// [`Error::Fenced`] (looked at first), [`Error::WrongSequence`], [`Error::UnknownSandbox`], or, before anything is
    /// tried, [`Error::TooLarge`], [`Error::NothingToAppend`] and [`Error::Busy`].
    fn append(&self, append: Append) -> BoxFuture<Result<Head, Error>>;

    /// Says whether the event with this id stands at this place: the answer to a lost reply.
    fn resolve(
        &self,
        sandbox: SandboxId,
        seq: Seq,
        id: EventId,
    ) -> BoxFuture<Result<Resolution, Error>>;

    /// Returns the head.
    fn head(&self, sandbox: SandboxId) -> BoxFuture<Result<Head, Error>>;

    /// Returns events from a place on: at most `limit`, fewer where they are big, none only past the head.
    ///
    /// A damaged event is [`Error::Damaged`] when it is the first one asked for; events before it are returned without it.
    fn read(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Stored>, Error>>;

    /// Returns events from a place on as they are stored, for a copy elsewhere: as many as a [`read`](Self::read) gives. Their
    /// checksums and their chain are looked at on the way.
    fn export(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Raw>, Error>>;

    /// Appends a copy of events that were written elsewhere, and returns the head they made.
    ///
    /// Only a journal that nobody leased takes them; the lease that ends the copying is above their epochs. Refused with
    /// [`Error::Leased`], and with [`Error::Damaged`] where an event does not follow from the one before it, and nothing is written.
    fn import(&self, sandbox: SandboxId, events: Vec<Raw>) -> BoxFuture<Result<Head, Error>>;

    /// Lists the journals that nobody ever leased: what crashes left of a copy, or of a creation.
    fn unleased(&self) -> BoxFuture<Result<Vec<SandboxId>, Error>>;

    /// Follows the durable head. The sender goes away when the journal is removed or the store fails.
    fn tail(&self, sandbox: SandboxId) -> Result<watch::Receiver<Seq>, Error>;

    /// Lists the living journals in the order of their ids.
    fn list(&self) -> BoxFuture<Result<Vec<(SandboxId, SandboxName)>, Error>>;

    /// Removes a journal with its events and frees its name. Removing what is not there is [`Error::UnknownSandbox`].
    fn remove(&self, sandbox: SandboxId) -> BoxFuture<Result<(), Error>>;

    /// Reads a journal from end to end and says what is damaged and what can still be read.
    ///
    /// `witness` is the head that somebody else remembers: only with it can a tail be missed that went without a trace.
    fn verify(&self, sandbox: SandboxId, witness: Option<Head>)
    -> BoxFuture<Result<Report, Error>>;

    /// Tells when the store has failed for good.
    fn failed(&self) -> watch::Receiver<Option<Failure>>;
}
