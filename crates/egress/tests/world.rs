//! A gateway for one test, with everything around it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egress::{
    Approval, Approver, Ask, Authority, BoxFuture, Doors, Egress, Ledger, Owners, Parts,
    Placeholder, Recorded, Records, Resolver, Secrets, Word, Write,
};
use policy::Policy;
use protocol::{DenyReason, Event, OpId, Outgoing, Seq};
use secret::{FingerprintKey, Value};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};

/// Longer than anything here takes, and shorter than somebody's patience.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A journal in memory.
pub(crate) struct Journal {
    events: Mutex<Vec<Event>>,
    count: watch::Sender<usize>,
    pub(crate) broken: AtomicBool,
}

impl Journal {
    fn new() -> Self {
        Self {
            events: Mutex::default(),
            count: watch::Sender::new(0),
            broken: AtomicBool::new(false),
        }
    }

    fn add(&self, new: Vec<Event>) -> Result<Seq, String> {
        if self.broken.load(Ordering::SeqCst) {
            return Err("the disk is full".to_owned());
        }
        let mut events = self.events.lock().unwrap();
        events.extend(new);
        let count = events.len();
        drop(events);
        self.count.send_replace(count);
        Ok(Seq(count as u64))
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event.
    pub(crate) async fn wait<T>(&self, mut found: impl FnMut(&Event) -> Option<T>) -> T {
        let mut count = self.count.subscribe();
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                count.borrow_and_update();
                if let Some(found) = self.events().iter().find_map(&mut found) {
                    return found;
                }
                count.changed().await.unwrap();
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("the event did not come: {:#?}", self.events()),
        }
    }

    /// Waits for a refusal for this reason.
    pub(crate) async fn denied(&self, why: DenyReason) -> (Outgoing, String) {
        self.wait(|event| match event {
            Event::EgressDenied {
                request,
                reason,
                message,
                ..
            } if *reason == why => Some((request.clone(), message.clone())),
            _ => None,
        })
        .await
    }
}

impl Ledger for Journal {
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(async { self.add(events) })
    }

    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(async { self.add(events) })
    }
}

/// Every connection is the operation `build-1`'s.
struct OneOwner;

impl Owners for OneOwner {
    fn owner(&self, _: SocketAddr, _: SocketAddr) -> BoxFuture<'_, Result<Option<OpId>, String>> {
        Box::pin(async { Ok("build-1".parse().ok()) })
    }
}

/// Secrets by name; one that is missing cannot be had.
#[derive(Default)]
pub(crate) struct Held {
    values: Mutex<HashMap<String, Arc<Value>>>,
    placeholders: Mutex<Vec<Placeholder>>,
}

impl Held {
    pub(crate) fn set(&self, name: &str, value: &str) {
        let value = Arc::new(Value::new(value));
        self.values.lock().unwrap().insert(name.to_owned(), value);
    }

    pub(crate) fn take(&self, name: &str) {
        self.values.lock().unwrap().remove(name);
    }

    pub(crate) fn show(&self, name: &str, text: &str) {
        self.placeholders.lock().unwrap().push(Placeholder {
            secret: name.to_owned(),
            text: text.to_owned(),
        });
    }
}

impl Secrets for Held {
    fn resolve(&self, name: &str) -> BoxFuture<'_, Result<Arc<Value>, String>> {
        let found = self.values.lock().unwrap().get(name).cloned();
        Box::pin(async { found.ok_or_else(|| "it was taken from this sandbox".to_owned()) })
    }

    fn fingerprint(&self, value: &Value) -> String {
        value.fingerprint(&FingerprintKey::new([7; 32]))
    }

    fn placeholders(&self) -> Vec<Placeholder> {
        self.placeholders.lock().unwrap().clone()
    }
}

/// What is recorded, as a test says it: nothing where it says nothing.
#[derive(Default)]
pub(crate) struct Kept {
    words: Mutex<VecDeque<Result<Word, String>>>,
    asked: Mutex<Vec<Write>>,
}

impl Kept {
    /// Says what becomes of the next question.
    pub(crate) fn say(&self, word: Result<Word, String>) {
        self.words.lock().unwrap().push_back(word);
    }

    /// Returns what was asked.
    pub(crate) fn asked(&self) -> Vec<Write> {
        self.asked.lock().unwrap().clone()
    }
}

impl Records for Kept {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Result<Word, String>, String>> {
        self.asked.lock().unwrap().push(write);
        let word = self.words.lock().unwrap().pop_front();
        Box::pin(async { Ok(word.unwrap_or(Ok(Word::Leaves))) })
    }
}

/// Puts an answer together from the events that hold it.
pub(crate) fn recorded(events: &[Event]) -> Option<Recorded> {
    let mut body = Vec::new();
    for event in events {
        match event {
            Event::EffectOutput { data, .. } => body.extend_from_slice(data),
            Event::EffectSettled {
                answer: Some(answer),
                ..
            } => {
                return Some(Recorded {
                    answer: answer.clone(),
                    body: body.into(),
                });
            }
            _ => {}
        }
    }
    None
}

/// People who answer what they are asked over a channel.
struct People(mpsc::UnboundedSender<(Ask, oneshot::Sender<Approval>)>);

impl Approver for People {
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Approval> {
        let (answer, answered) = oneshot::channel();
        let timeout = ask.timeout;
        self.0.send((ask, answer)).unwrap();
        Box::pin(async move {
            match tokio::time::timeout(timeout, answered).await {
                Ok(Ok(approval)) => approval,
                _ => Approval::TimedOut,
            }
        })
    }
}

/// Names that lead somewhere; all others lead to 127.0.0.1.
#[derive(Default)]
pub(crate) struct Leads {
    to: Mutex<HashMap<String, Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Leads {
    pub(crate) fn set(&self, name: &str, to: &[&str]) {
        let to = to.iter().map(|ip| ip.parse().unwrap()).collect();
        self.to.lock().unwrap().insert(name.to_owned(), to);
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Resolver for Leads {
    fn resolve(&self, name: &str) -> BoxFuture<'_, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let found = self.to.lock().unwrap().get(name).cloned();
        let found = found.unwrap_or_else(|| vec![IpAddr::from([127, 0, 0, 1])]);
        Box::pin(async move { Ok(found) })
    }
}

/// The gateway and what is around it.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) egress: Arc<Egress>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) secrets: Arc<Held>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) leads: Arc<Leads>,
    pub(crate) asked: tokio::sync::Mutex<mpsc::UnboundedReceiver<(Ask, oneshot::Sender<Approval>)>>,
    /// Where the proxy door is.
    pub(crate) proxy: SocketAddr,
    /// Where names are asked, at any address of 127.0.0.0/8.
    pub(crate) dns: u16,
}

impl World {
    /// Opens doors at these ports under a policy.
    pub(crate) fn new(policy: &str, ports: &[u16]) -> Self {
        let listen = |address: SocketAddr| std::net::TcpListener::bind(address).unwrap();
        Self::with_doors(
            policy,
            Doors {
                tcp: ports.iter().map(|port| listen(door(*port))).collect(),
                proxy: Some(listen(SocketAddr::from(([127, 0, 0, 2], 0)))),
                dns: Some(std::net::UdpSocket::bind("0.0.0.0:0").unwrap()),
            },
        )
    }

    /// Serves doors that are open already.
    pub(crate) fn with_doors(policy: &str, doors: Doors) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Arc::new(Authority::open(&dir.path().join("ca")).unwrap());
        let (journal, secrets, leads) = (
            Arc::new(Journal::new()),
            Arc::<Held>::default(),
            Arc::<Leads>::default(),
        );
        let kept = Arc::<Kept>::default();
        let (people, asked) = mpsc::unbounded_channel();
        let egress = Egress::open(Parts {
            authority: authority.clone(),
            policy: Arc::new(Policy::parse(policy).unwrap()),
            ledger: journal.clone(),
            owners: Arc::new(OneOwner),
            secrets: secrets.clone(),
            records: kept.clone(),
            approver: Arc::new(People(people)),
            resolver: leads.clone(),
        });
        let proxy = doors.proxy.as_ref().unwrap().local_addr().unwrap();
        let dns = doors.dns.as_ref().unwrap().local_addr().unwrap().port();
        tokio::spawn(egress.clone().serve(doors));
        Self {
            dir,
            egress,
            authority,
            journal,
            secrets,
            kept,
            leads,
            asked: tokio::sync::Mutex::new(asked),
            proxy,
            dns,
        }
    }

    /// Puts another policy in place.
    pub(crate) fn set_policy(&self, policy: &str) {
        self.egress
            .set_policy(Arc::new(Policy::parse(policy).unwrap()));
    }

    /// Returns what a person is asked next, and where the answer goes.
    pub(crate) async fn asked(&self) -> (Ask, oneshot::Sender<Approval>) {
        let mut asked = self.asked.lock().await;
        tokio::time::timeout(PATIENCE, asked.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// Everything that was written anywhere, to look for what must not be there.
    pub(crate) fn written(&self) -> String {
        let mut written = serde_json::to_string(&self.journal.events()).unwrap();
        written.push_str(self.authority.cert_pem());
        written
    }
}

/// Where the door of a port is.
pub(crate) fn door(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 2], port))
}
