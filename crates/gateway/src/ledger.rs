//! The seam to the journal: what the gateway needs of it and no more.

use std::future::Future;
use std::pin::Pin;

use protocol::{Event, Seq, SessionId, Stored};

/// A boxed future, so that the trait can be used as an object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Who sends model requests from this sandbox at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sender {
    /// The running session; none for a harness that the user started by hand.
    pub session: Option<SessionId>,
    /// The session's attempt, from 1; 0 outside a session.
    pub attempt: u32,
}

/// One sandbox's journal.
///
/// The events of one call lie next to each other in the journal. An error means that nothing more can be written (the
/// lease is gone, the disk is full): the gateway then stops showing anything new to clients.
pub trait Ledger: Send + Sync + 'static {
    /// Appends; resolves to the place of the last event when all of them are durable, and with them everything whose
    /// [`Ledger::append_relaxed`] resolved before.
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>>;

    /// Appends; resolves to the place of the last event when their place is certain. They may become durable later.
    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>>;

    /// Returns events from `from` to `to` inclusive, in order. May return fewer (a page), but at least one where there is one.
    fn read(&self, from: Seq, to: Seq) -> BoxFuture<'_, Result<Vec<Stored>, String>>;

    /// Returns who sends now. Must agree with the journal: `SessionStarted` and `SessionResumed` are appended before
    /// the harness that they speak of can send anything.
    fn sender(&self) -> Sender;
}
