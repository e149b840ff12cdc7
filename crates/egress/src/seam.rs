//! The seams to the world: what the gateway needs of a sandbox's journal, supervisor, secrets and people, and no more.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::{ApprovalId, AskedBody, Event, OpId, Outgoing, Passed, RecordedAnswer, Seq};

/// A boxed future, so that the traits can be used as objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One sandbox's journal. An error means that nothing more can be written: then nothing more leaves either.
pub trait Ledger: Send + Sync + 'static {
    /// Appends; resolves to the place of the last event when all of them are durable, and with them everything whose
    /// [`Ledger::append_relaxed`] resolved before.
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>>;

    /// Appends; resolves to the place of the last event when their place is certain. They may become durable later.
    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>>;
}

/// Who holds the other end of a connection.
pub trait Owners: Send + Sync + 'static {
    /// Returns the operation whose process connected from `client` to `server`, both as the sandbox sees them; none where
    /// nobody is found. An error means that nobody could be asked.
    fn owner(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> BoxFuture<'_, Result<Option<OpId>, String>>;
}

/// A stand-in that programs inside see in place of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// The secret, by its name in the policy.
    pub secret: String,
    /// The text that stands for it.
    pub text: String,
}

/// The secrets that this sandbox may use at this moment.
pub trait Secrets: Send + Sync + 'static {
    /// Returns a secret's value by its name in the policy. Fails where it cannot be had, also because the sandbox's lease
    /// on it is over; the text says why and what to do, and never the value.
    fn resolve(&self, name: &str) -> BoxFuture<'_, Result<Arc<secret::Value>, String>>;

    /// Returns what the journal tells one version of a value from another by.
    fn fingerprint(&self, value: &secret::Value) -> String;

    /// Returns the stand-ins that programs of this sandbox were given.
    fn placeholders(&self) -> Vec<Placeholder> {
        Vec::new()
    }
}

/// A request that is about to leave and may change something outside.
#[derive(Debug, Clone)]
pub struct Write {
    /// What it is, and whose.
    pub request: Outgoing,
    /// Nobody could be asked whose it is.
    pub is_unasked: bool,
    /// BLAKE3 of what a repetition must have in its head, in hex; none for one that cannot be repeated: a WebSocket, a
    /// connection that is passed on as it is.
    pub head: Option<String>,
    /// Its body, once that was taken in.
    pub body: Option<Passed>,
}

/// An answer that is recorded, as the sandbox saw it.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Its head.
    pub answer: RecordedAnswer,
    /// Its body.
    pub body: Bytes,
}

/// What becomes of a [`Write`].
#[derive(Debug)]
pub enum Word {
    /// It leaves. Nobody runs its operation again, so nothing is kept.
    Leaves,
    /// It leaves, and its answer is recorded.
    Recorded,
    /// It may repeat one of a lost run: ask again with its body, of which no more than so many bytes need be taken in.
    Body {
        /// The length of the body that is expected.
        most: u64,
    },
    /// It repeats one of a lost run, which is journaled: here is its answer.
    Answered(Recorded),
}

/// What is recorded of operations that may be run again after a loss.
pub trait Records: Send + Sync + 'static {
    /// Says what becomes of a request. `Ok(Err(why))`: it must not leave, because its operation, which is run again, does something
    /// else than its lost run. An error means that it is not known.
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Result<Word, String>, String>>;
}

/// A request that waits for a person.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What it is.
    pub request: Outgoing,
    /// The rule that wants somebody asked.
    pub rule: String,
    /// Of everything that was judged, so that an answer holds for this request and no other.
    pub digest: String,
    /// What is known of its body; none where it has none.
    pub body: Option<AskedBody>,
    /// How long it may wait.
    pub timeout: Duration,
}

/// A word that was given, for the one request that got it: used up by the append in which that request's effect begins. Dropped
/// before, it is still there for the next request of its digest.
#[derive(Debug, Clone)]
pub struct Pass {
    /// The approval.
    pub approval: ApprovalId,
    /// While it is held, nobody else gets it.
    pub held: Arc<()>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub enum Approval {
    /// It may go: by a word for it alone, or by one that has become a rule.
    Allowed(Option<Pass>),
    /// It may not.
    Refused {
        /// In the person's words.
        why: String,
    },
    /// Nobody answered in time.
    TimedOut,
}

/// Where requests wait for people: durable, shown and answered by whoever implements it.
pub trait Approver: Send + Sync + 'static {
    /// Waits for the answer. Dropping the future means that the client has gone.
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Approval>;
}

/// From names to addresses, on the host.
pub trait Resolver: Send + Sync + 'static {
    /// Returns a name's addresses, in the order in which they are to be tried.
    fn resolve(&self, name: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>>;
}

/// The host's own resolver (`getaddrinfo`), so that its hosts file and name service switch hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, name: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        let name = name.to_owned();
        Box::pin(async move {
            tokio::task::spawn_blocking(move || {
                let found = (name.as_str(), 0).to_socket_addrs()?;
                Ok(found.map(|address| address.ip()).collect())
            })
            .await
            .map_err(io::Error::other)?
        })
    }
}
