//! The relay's own process: one lock, one socket, one task per connection and one per request.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::ModelRequestId;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use super::client::Progress;
use super::fetch::{HttpClient, client, fetch};
use super::frames::{self, Begin, FromRelay, Stage, ToRelay};
use super::{READY, reachable, spool};

/// Frames on their way to one daemon; a daemon that does not read stops only its own notices.
const OUTBOX: usize = 64;

/// What the relay is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// Where the answers lie.
    pub dir: PathBuf,
    /// How long it stays with no daemon and no request.
    pub idle: Duration,
}

impl Options {
    /// Returns options with the usual idle time of a minute.
    #[must_use]
    pub fn new(socket: PathBuf, dir: PathBuf) -> Self {
        Self {
            socket,
            dir,
            idle: Duration::from_secs(60),
        }
    }
}

/// Why a relay ended badly.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Another relay serves this socket.
    #[error("another relay serves {}", socket.display())]
    Busy {
        /// Which socket.
        socket: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {verb} {}", path.display())]
    Io {
        /// What was done.
        verb: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Runs the relay until it is idle for long enough. Prints a line when it listens, then lets go of its standard output.
///
/// # Errors
/// Another relay serves the socket, or the socket or directory cannot be made.
pub fn main(options: &Options) -> Result<(), HostError> {
    // A leader of a process group cannot leave its session; it was started by hand then, and stays in it.
    let _own_session = rustix::process::setsid();
    let socket = absolute(&options.socket)?;
    let dir = absolute(&options.dir)?;
    let lock = lock(&socket)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(refused("create", &dir))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(refused("start a runtime for", &socket))?;
    let served = LocalSet::new().block_on(&runtime, serve(&socket, dir, options.idle));
    // Last, so that the next relay does not find its predecessor's socket half removed.
    drop(lock);
    served
}

async fn serve(socket: &Path, dir: PathBuf, idle: Duration) -> Result<(), HostError> {
    let listener = listen(socket)?;
    announce();
    let relay = Rc::new(Relay {
        dir,
        client: client(),
        running: Mutex::default(),
        busy: watch::Sender::new(Busy::default()),
    });
    let mut busy = relay.busy.subscribe();
    loop {
        let state = *busy.borrow_and_update();
        let idle = if state.quit { Duration::ZERO } else { idle };
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                relay.count(|busy| busy.connections += 1);
                tokio::task::spawn_local(connection(Rc::clone(&relay), stream));
            }
            _ = busy.changed() => {}
            () = tokio::time::sleep(idle), if state.connections == 0 && state.requests == 0 => break,
        }
    }
    // A daemon that connected in this moment never got its hello, so it starts another relay.
    fs::remove_file(socket).map_err(refused("remove", socket))
}

#[derive(Debug, Clone, Copy, Default)]
struct Busy {
    connections: usize,
    requests: usize,
    quit: bool,
}

struct Relay {
    dir: PathBuf,
    client: HttpClient<Full<Bytes>>,
    running: Mutex<HashMap<ModelRequestId, Running>>,
    busy: watch::Sender<Busy>,
}

struct Running {
    progress: watch::Receiver<Progress>,
    /// Nobody wants its file: it goes when the answer has ended.
    forgotten: bool,
}

impl Relay {
    fn count(&self, change: impl FnOnce(&mut Busy)) {
        self.busy.send_modify(change);
    }

    fn running(&self, request: &ModelRequestId) -> Option<watch::Receiver<Progress>> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        Some(running.get(request)?.progress.clone())
    }

    /// Asks the upstream unless this id was asked before, by us or by a relay before us.
    fn begin(self: &Rc<Self>, begin: Begin) -> Option<watch::Receiver<Progress>> {
        let request = begin.request.clone();
        if let Some(progress) = self.running(&request) {
            return Some(progress);
        }
        let path = spool::path(&self.dir, &request);
        let (sender, receiver) = watch::channel(Progress::running());
        let writer = match spool::Writer::create(&path) {
            Ok(writer) => writer,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return None,
            Err(error) => {
                let error = format!("the answer cannot be kept: {error}");
                sender.send_modify(|p| p.become_stage(0, Stage::Broken { error }));
                return Some(receiver);
            }
        };
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Running {
            progress: receiver.clone(),
            forgotten: false,
        };
        running.insert(request.clone(), entry);
        self.count(|busy| busy.requests += 1);
        let relay = Rc::clone(self);
        tokio::task::spawn_local(async move {
            fetch(&relay.client, begin, writer, &sender).await;
            let mut running = relay.running.lock().unwrap_or_else(PoisonError::into_inner);
            if running.remove(&request).is_some_and(|it| it.forgotten) {
                relay.remove(&request);
            }
            relay.count(|busy| busy.requests -= 1);
        });
        Some(receiver)
    }

    /// Removes a file. A daemon reads the end in it a little earlier than it is durable, and may then be the faster one.
    fn forget(&self, request: &ModelRequestId) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        match running.get_mut(request) {
            Some(running) => running.forgotten = true,
            None => self.remove(request),
        }
    }

    fn remove(&self, request: &ModelRequestId) {
        // It may be gone already: forgetting twice is allowed.
        let _removed: io::Result<()> = fs::remove_file(spool::path(&self.dir, request));
    }

    fn list(&self) -> FromRelay {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        FromRelay::Listed {
            running: running.keys().cloned().collect(),
            kept: spool::kept(&self.dir),
        }
    }
}

async fn connection(relay: Rc<Relay>, stream: UnixStream) {
    let (mut reader, mut writer) = stream.into_split();
    let (outbox, mut out) = mpsc::channel::<FromRelay>(OUTBOX);
    let mut tasks = JoinSet::new();
    tasks.spawn_local(async move {
        while let Some(message) = out.recv().await {
            if frames::write(&mut writer, &message, &[]).await.is_err() {
                break;
            }
        }
    });
    let mut buffer = BytesMut::new();
    if outbox.send(FromRelay::Hello).await.is_ok() {
        while let Ok(Some(message)) = frames::read(&mut reader, &mut buffer).await {
            let (request, progress) = match message {
                ToRelay::Begin {
                    mut begin,
                    body_bytes,
                } => {
                    // A daemon that dies before the last byte has asked for nothing.
                    match frames::read_raw(&mut reader, &mut buffer, body_bytes).await {
                        Ok(body) => begin.body = body,
                        Err(_) => break,
                    }
                    (begin.request.clone(), relay.begin(begin))
                }
                ToRelay::Attach { request } => {
                    let progress = relay.running(&request);
                    (request, progress)
                }
                ToRelay::List => {
                    if outbox.send(relay.list()).await.is_err() {
                        break;
                    }
                    continue;
                }
                ToRelay::Forget { request } => {
                    relay.forget(&request);
                    continue;
                }
                ToRelay::Quit => {
                    relay.count(|busy| busy.quit = true);
                    continue;
                }
            };
            match progress {
                Some(progress) => {
                    tasks.spawn_local(tell(request, progress, outbox.clone()));
                }
                None => {
                    let answer = FromRelay::NotRunning { request };
                    if outbox.send(answer).await.is_err() {
                        break;
                    }
                }
            }
        }
    }
    tasks.abort_all();
    relay.count(|busy| busy.connections -= 1);
}

/// Tells one daemon how far one request is, until it has ended.
async fn tell(
    request: ModelRequestId,
    mut progress: watch::Receiver<Progress>,
    outbox: mpsc::Sender<FromRelay>,
) {
    loop {
        let now = progress.borrow_and_update().clone();
        let ended = !now.is_running();
        if let Some(message) = now.message(&request)
            && outbox.send(message).await.is_err()
        {
            return;
        }
        if ended || progress.changed().await.is_err() {
            return;
        }
    }
}

/// Takes the lock that makes this the only relay of a socket; held while the file is open.
fn lock(socket: &Path) -> Result<File, HostError> {
    let path = socket.with_added_extension("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(refused("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(HostError::Busy {
            socket: socket.to_owned(),
        }),
        Err(fs::TryLockError::Error(source)) => Err(refused("lock", &path)(source)),
    }
}

/// Listens at a place of its own first, so that nobody can connect before the mode is right.
fn listen(socket: &Path) -> Result<UnixListener, HostError> {
    let fresh = socket.with_added_extension("new");
    // Left behind by a relay that was killed in this very moment, if it is there.
    let _removed: io::Result<()> = fs::remove_file(&fresh);
    let (_dir, path) = reachable(&fresh).map_err(refused("listen on", socket))?;
    let listener = UnixListener::bind(path).map_err(refused("listen on", socket))?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&fresh, socket))
        .map_err(refused("listen on", socket))?;
    Ok(listener)
}

/// Tells the daemon that started us, then keeps nothing of its standard streams.
fn announce() {
    let mut out = io::stdout();
    // Nobody reads it where the relay was started by hand.
    let _told: io::Result<()> = writeln!(out, "{READY}").and_then(|()| out.flush());
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _replaced = (
            rustix::stdio::dup2_stdin(&null),
            rustix::stdio::dup2_stdout(&null),
            rustix::stdio::dup2_stderr(&null),
        );
    }
    // The directory we were started in may want to be removed or unmounted.
    let _moved: io::Result<()> = std::env::set_current_dir("/");
}

fn absolute(path: &Path) -> Result<PathBuf, HostError> {
    std::path::absolute(path).map_err(refused("find", path))
}

fn refused(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_owned();
    move |source| HostError::Io { verb, path, source }
}
