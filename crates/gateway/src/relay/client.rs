//! The daemon's side of the relay: connects, starts it where there is none, and hands out how far each request is.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::ModelRequestId;

use bytes::BytesMut;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{oneshot, watch};

use super::frames::{self, Begin, FromRelay, Stage, ToRelay};
use super::{READY, reachable, spool};

/// Starts of a relay before it is given up. More than one is only needed while another one is just ending.
const STARTS: u32 = 50;
/// Between two starts: the end of somebody else's process cannot be awaited.
const START_PAUSE: Duration = Duration::from_millis(20);
/// What a relay sees of the daemon's environment; a key may stand in the rest.
const ENVIRONMENT: [&str; 6] = [
    "PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RUST_BACKTRACE",
    "DURABLE_FAILPOINT",
    "DURABLE_FAILPOINT_SOCKET",
];

/// Where the relay of a data directory is, and how it is started.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// Its socket.
    pub socket: PathBuf,
    /// Where the answers lie.
    pub dir: PathBuf,
    /// Program and arguments that run [`crate::relay::main`] on the two.
    pub command: Vec<OsString>,
}

/// Why the relay cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// It could not be started.
    #[error("the relay at {} does not start", socket.display())]
    Start {
        /// Its socket.
        socket: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The connection to it ended.
    #[error("the relay at {} went away", socket.display())]
    Gone {
        /// Its socket.
        socket: PathBuf,
    },
}

/// What a request is in the relay's words, or that the relay does not answer any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// The relay was asked and has not answered.
    Asked,
    /// In the relay's hands.
    At(Stage),
    /// Not in its hands: what the file holds is all there will be.
    NotRunning,
    /// The connection ended.
    Gone,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes in its file.
    pub(crate) length: u64,
    /// How far it is.
    pub(crate) state: State,
}

impl Progress {
    pub(crate) fn running() -> Self {
        Self {
            length: 0,
            state: State::At(Stage::Running),
        }
    }

    pub(crate) fn become_stage(&mut self, length: u64, stage: Stage) {
        self.length = length;
        self.state = State::At(stage);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == State::At(Stage::Running)
    }

    pub(crate) fn message(self, request: &ModelRequestId) -> Option<FromRelay> {
        let State::At(stage) = self.state else {
            return None;
        };
        Some(FromRelay::Progress {
            request: request.clone(),
            length: self.length,
            stage,
        })
    }
}

/// The relay of a data directory. Cheap to clone; connects when it is first needed and again when that connection ended.
#[derive(Clone)]
pub struct RelayHandle {
    config: Arc<RelayConfig>,
    link: Arc<tokio::sync::Mutex<Option<Link>>>,
}

impl RelayHandle {
    /// Names the relay; nothing is started yet.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self {
            config: Arc::new(config),
            link: Arc::default(),
        }
    }

    /// Removes the files of all requests that `wanted` does not want; of one that is running, when it has ended.
    ///
    /// For the start of a daemon, when it knows every journal: a sandbox that was removed leaves its answers behind.
    /// Does nothing where there is neither a relay nor a file.
    ///
    /// # Errors
    /// The relay does not start.
    pub async fn sweep(
        &self,
        wanted: impl Fn(&ModelRequestId) -> bool + Send,
    ) -> Result<(), RelayError> {
        if self.kept().is_empty() {
            return Ok(());
        }
        let kept = self.list().await?;
        for request in kept.iter().filter(|request| !wanted(request)) {
            self.forget(request).await?;
        }
        // Answered after them, so they are gone.
        self.list().await.map(drop)
    }

    /// Returns the requests that have a file, as the directory shows them.
    pub(crate) fn kept(&self) -> Vec<ModelRequestId> {
        spool::kept(&self.config.dir)
    }

    /// Returns the requests that have a file, when the relay has done all that it was told before.
    async fn list(&self) -> Result<Vec<ModelRequestId>, RelayError> {
        let (sender, receiver) = oneshot::channel();
        let mut link = self.link.lock().await;
        let live = self.connect(&mut link, Start::IfNone).await?;
        lock(&live.shared).lists.push_back(sender);
        live.send(&ToRelay::List, &[], &self.config.socket).await?;
        drop(link);
        receiver.await.map_err(|_| self.gone())
    }

    /// Lets the relay end as soon as nothing runs in it. For a daemon that ends in order; a running answer is read on.
    pub async fn quit(&self) {
        let mut link = self.link.lock().await;
        if let Ok(live) = self.connect(&mut link, Start::Never).await {
            // Where it is gone already, that was wanted.
            let _sent: Result<(), RelayError> =
                live.send(&ToRelay::Quit, &[], &self.config.socket).await;
        }
        *link = None;
    }

    /// Hands over a request; starts a relay where there is none.
    pub(crate) async fn begin(
        &self,
        begin: Begin,
    ) -> Result<watch::Receiver<Progress>, RelayError> {
        let body = begin.body.clone();
        let request = begin.request.clone();
        let begin = ToRelay::Begin {
            begin,
            body_bytes: body.len() as u64,
        };
        let mut link = self.link.lock().await;
        let live = self.connect(&mut link, Start::IfNone).await?;
        let progress = live.watch(&request);
        live.send(&begin, &body, &self.config.socket).await?;
        Ok(progress)
    }

    /// Asks after a request that was handed over before. Starts no relay: a new one would not know it.
    pub(crate) async fn attach(
        &self,
        request: &ModelRequestId,
    ) -> Result<watch::Receiver<Progress>, RelayError> {
        let mut link = self.link.lock().await;
        let live = self.connect(&mut link, Start::Never).await?;
        let progress = live.watch(request);
        let attach = ToRelay::Attach {
            request: request.clone(),
        };
        live.send(&attach, &[], &self.config.socket).await?;
        Ok(progress)
    }

    /// Removes the file of a request that the journal holds whole.
    pub(crate) async fn forget(&self, request: &ModelRequestId) -> Result<(), RelayError> {
        let mut link = self.link.lock().await;
        match self.connect(&mut link, Start::Never).await {
            Ok(live) => {
                let forget = ToRelay::Forget {
                    request: request.clone(),
                };
                live.send(&forget, &[], &self.config.socket).await
            }
            Err(_no_relay) => {
                // Nobody writes there then.
                let _removed: io::Result<()> = std::fs::remove_file(self.spool(request));
                Ok(())
            }
        }
    }

    /// Returns the file of a request.
    pub(crate) fn spool(&self, request: &ModelRequestId) -> PathBuf {
        spool::path(&self.config.dir, request)
    }

    fn gone(&self) -> RelayError {
        RelayError::Gone {
            socket: self.config.socket.clone(),
        }
    }

    async fn connect<'a>(
        &self,
        link: &'a mut Option<Link>,
        start: Start,
    ) -> Result<&'a mut Link, RelayError> {
        let live = match link.take().filter(|link| !lock(&link.shared).gone) {
            Some(live) => live,
            None => self.open(start).await?,
        };
        Ok(link.insert(live))
    }

    async fn open(&self, start: Start) -> Result<Link, RelayError> {
        let socket = &self.config.socket;
        let mut last = match Link::open(socket).await {
            Ok(link) => return Ok(link),
            Err(error) => error,
        };
        if start == Start::Never {
            return Err(self.gone());
        }
        for _ in 0..STARTS {
            let started = spawn(&self.config.command).await;
            match Link::open(socket).await {
                Ok(link) => return Ok(link),
                Err(error) => last = started.err().unwrap_or(error),
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        Err(RelayError::Start {
            socket: socket.clone(),
            source: last,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    IfNone,
    Never,
}

/// Starts a relay and waits until it listens or has ended.
async fn spawn(command: &[OsString]) -> io::Result<()> {
    let Some((program, args)) = command.split_first() else {
        return Err(io::Error::other("no command to start it with"));
    };
    let environment = ENVIRONMENT
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(out) = child.stdout.take() {
        // Its line, or the end where another relay was faster. The child itself is reaped by tokio when it ends.
        let mut lines = BufReader::new(out).lines();
        while let Some(line) = lines.next_line().await? {
            if line.ends_with(READY) {
                break;
            }
        }
    }
    Ok(())
}

/// One connection.
struct Link {
    writer: OwnedWriteHalf,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    gone: bool,
    requests: HashMap<ModelRequestId, watch::Sender<Progress>>,
    lists: VecDeque<oneshot::Sender<Vec<ModelRequestId>>>,
}

impl Link {
    async fn open(socket: &Path) -> io::Result<Self> {
        let (_dir, path) = reachable(socket)?;
        let (mut reader, writer) = UnixStream::connect(path).await?.into_split();
        let mut buffer = BytesMut::new();
        match frames::read(&mut reader, &mut buffer).await? {
            Some(FromRelay::Hello) => {}
            Some(_) => return Err(io::Error::other("it did not say hello")),
            None => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        let shared = Arc::<Mutex<Shared>>::default();
        tokio::spawn(listen(reader, buffer, Arc::clone(&shared)));
        Ok(Self { writer, shared })
    }

    fn watch(&self, request: &ModelRequestId) -> watch::Receiver<Progress> {
        let (sender, receiver) = watch::channel(Progress {
            length: 0,
            state: State::Asked,
        });
        let mut shared = lock(&self.shared);
        if shared.gone {
            sender.send_modify(|p| p.state = State::Gone);
        } else {
            shared.requests.insert(request.clone(), sender);
        }
        receiver
    }

    async fn send(
        &mut self,
        message: &ToRelay,
        raw: &[u8],
        socket: &Path,
    ) -> Result<(), RelayError> {
        let sent = frames::write(&mut self.writer, message, raw).await;
        sent.map_err(|_| {
            // Half a message may be out: this connection is of no use any more.
            lock(&self.shared).end();
            RelayError::Gone {
                socket: socket.to_owned(),
            }
        })
    }
}

impl Shared {
    fn end(&mut self) {
        self.gone = true;
        self.lists.clear();
        for (_, progress) in self.requests.drain() {
            progress.send_modify(|p| p.state = State::Gone);
        }
    }
}

async fn listen(mut reader: OwnedReadHalf, mut buffer: BytesMut, shared: Arc<Mutex<Shared>>) {
    while let Ok(Some(message)) = frames::read(&mut reader, &mut buffer).await {
        let mut shared = lock(&shared);
        match message {
            FromRelay::Hello => {}
            FromRelay::Progress {
                request,
                length,
                stage,
            } => {
                let running = stage == Stage::Running;
                if let Some(progress) = shared.requests.get(&request) {
                    progress.send_modify(|p| p.become_stage(length, stage));
                }
                if !running {
                    shared.requests.remove(&request);
                }
            }
            FromRelay::NotRunning { request } => {
                if let Some(progress) = shared.requests.remove(&request) {
                    progress.send_modify(|p| p.state = State::NotRunning);
                }
            }
            FromRelay::Listed { kept, .. } => {
                if let Some(waiting) = shared.lists.pop_front() {
                    // Whoever asked may have given up.
                    let _told = waiting.send(kept);
                }
            }
        }
    }
    lock(&shared).end();
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
