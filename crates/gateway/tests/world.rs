//! A world for one test: its own directory, model server, relay and gateway; gone when it is dropped.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gateway::{
    BoxFuture, Gateway, Ledger, Models, RelayConfig, RelayHandle, Secret, Sender, Upstream,
};
use protocol::{Epoch, Event, EventId, OpId, Seq, SessionId, Stored, UnixMillis};
use tokio::sync::{oneshot, watch};

use crate::client::{Call, Reply};
use crate::process::{Process, command};

/// The key that must never be seen anywhere but at the upstream.
pub(crate) const KEY: &str = "sk-real-5up3r53cr3t";

pub(crate) fn upstream(url: &str) -> Option<Upstream> {
    (!url.is_empty()).then(|| Upstream::new(url, Some(Secret::new(KEY))).unwrap())
}

pub(crate) fn relay_handle(dir: &Path) -> RelayHandle {
    let mut command = command("relay", dir, dir, "60000");
    let authority = dir.join(AUTHORITY);
    if authority.exists() {
        let mut trust = OsString::from("SSL_CERT_FILE=");
        trust.push(authority);
        command.insert(1, trust);
    }
    RelayHandle::new(RelayConfig {
        socket: dir.join("relay.sock"),
        dir: dir.join("answers"),
        command,
    })
}

/// The certificate that the relay of a world trusts, where it is there.
pub(crate) const AUTHORITY: &str = "authority.pem";

/// Kills the process at the n-th write to the journal, before or after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kill {
    pub(crate) at: u64,
    pub(crate) before: bool,
}

impl Kill {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (at, before) = text.split_once(' ')?;
        Some(Self {
            at: at.parse().unwrap(),
            before: before == "before",
        })
    }

    pub(crate) fn text(kill: Option<Self>) -> String {
        kill.map_or_else(String::new, |kill| {
            format!(
                "{} {}",
                kill.at,
                if kill.before { "before" } else { "after" }
            )
        })
    }
}

/// A journal in a file, one event a line. Survives `kill -9`, which is all that is done to it.
pub(crate) struct FileLedger {
    dir: PathBuf,
    state: Mutex<State>,
    kill: Option<Kill>,
    /// No append at all succeeds while this is set.
    pub(crate) broken: AtomicBool,
    /// Durable appends wait while this is set.
    pub(crate) slow: watch::Sender<bool>,
}

struct State {
    file: File,
    events: Vec<Stored>,
    writes: u64,
}

impl FileLedger {
    pub(crate) fn open(dir: &Path, kill: Option<Kill>) -> Self {
        let path = dir.join("journal");
        let mut text = std::fs::read_to_string(&path).unwrap_or_default();
        // A write that the kill cut in half was never acknowledged.
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        text.truncate(whole);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.unwrap();
        file.set_len(whole as u64).unwrap();
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let events = (1..).zip(events).map(|(seq, event)| stored(seq, event));
        Self {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                file,
                events: events.collect(),
                writes: 0,
            }),
            kill,
            broken: AtomicBool::new(false),
            slow: watch::Sender::new(false),
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        let state = self.state.lock().unwrap();
        state
            .events
            .iter()
            .map(|stored| stored.event.clone())
            .collect()
    }

    pub(crate) fn models(&self) -> Models {
        let mut models = Models::default();
        for stored in &self.state.lock().unwrap().events {
            models.apply(stored);
        }
        models
    }

    /// Says who sends from now on, as the engine would: in the journal, then in effect.
    pub(crate) fn sender(&self, session: &str, attempt: u32) {
        let (id, op): (SessionId, OpId) = (session.parse().unwrap(), "harness".parse().unwrap());
        let event = if attempt == 1 {
            Event::SessionStarted {
                session: id,
                harness: "claude".to_owned(),
                args: Vec::new(),
                op,
                detail: serde_json::Value::Null,
            }
        } else {
            Event::SessionResumed {
                session: id,
                attempt,
                op,
                repaired: Vec::new(),
            }
        };
        self.write(vec![event]).unwrap();
        std::fs::write(self.dir.join("sender"), format!("{session} {attempt}")).unwrap();
    }

    fn write(&self, events: Vec<Event>) -> Result<Seq, String> {
        if self.broken.load(Ordering::SeqCst) {
            return Err("the disk is full".to_owned());
        }
        let mut state = self.state.lock().unwrap();
        state.writes += 1;
        let dies = self.kill.filter(|kill| kill.at == state.writes);
        if dies.is_some_and(|kill| kill.before) {
            kill_self();
        }
        let mut lines = Vec::new();
        for event in events {
            serde_json::to_writer(&mut lines, &event).unwrap();
            lines.push(b'\n');
            let seq = state.events.len() as u64 + 1;
            state.events.push(stored(seq, event));
        }
        state.file.write_all(&lines).unwrap();
        if dies.is_some() {
            kill_self();
        }
        Ok(Seq(state.events.len() as u64))
    }
}

fn kill_self() -> ! {
    use rustix::process::{Signal, getpid, kill_process};
    kill_process(getpid(), Signal::KILL).unwrap();
    loop {
        std::thread::park();
    }
}

fn stored(seq: u64, event: Event) -> Stored {
    Stored {
        seq: Seq(seq),
        id: EventId([0; 16]),
        epoch: Epoch(1),
        at: UnixMillis(0),
        event,
        hash: [0; 32],
    }
}

impl Ledger for FileLedger {
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(async move {
            let mut slow = self.slow.subscribe();
            slow.wait_for(|slow| !slow)
                .await
                .map_err(|e| e.to_string())?;
            self.write(events)
        })
    }

    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(async move { self.write(events) })
    }

    fn read(&self, from: Seq, to: Seq) -> BoxFuture<'_, Result<Vec<Stored>, String>> {
        Box::pin(async move {
            let state = self.state.lock().unwrap();
            let wanted = state.events.iter().filter(|s| s.seq >= from && s.seq <= to);
            // Small pages, so that paging is tried.
            Ok(wanted.take(3).cloned().collect())
        })
    }

    fn sender(&self) -> Sender {
        let text = std::fs::read_to_string(self.dir.join("sender")).unwrap_or_default();
        match text.split_once(' ') {
            Some((session, attempt)) => Sender {
                session: Some(session.parse().unwrap()),
                attempt: attempt.parse().unwrap(),
            },
            None => Sender::default(),
        }
    }
}

/// Serves `gateway.sock` in `dir` on this thread until `until` is over.
pub(crate) fn serve<F: Future<Output = ()>>(
    dir: &Path,
    ledger: Arc<FileLedger>,
    relay: RelayHandle,
    upstream: Option<Upstream>,
    until: impl FnOnce(Arc<Gateway>) -> F,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let socket = dir.join("gateway.sock");
        let fresh = dir.join("gateway.new");
        let _absent = std::fs::remove_file(&fresh);
        let listener = tokio::net::UnixListener::bind(&fresh).unwrap();
        let models = ledger.models();
        let gateway = Gateway::open(ledger, relay, models, upstream);
        std::fs::rename(&fresh, &socket).unwrap();
        tokio::select! {
            () = Arc::clone(&gateway).serve(listener) => {}
            () = until(Arc::clone(&gateway)) => {}
        }
        gateway.close().await;
    });
}

/// A gateway on a thread of the test's own process.
pub(crate) struct Daemon {
    pub(crate) ledger: Arc<FileLedger>,
    pub(crate) gateway: Arc<Gateway>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(dir: &Path, relay: &Path, url: &str) -> Self {
        let ledger = Arc::new(FileLedger::open(dir, None));
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::channel();
        let (dir, relay) = (dir.to_owned(), relay_handle(relay));
        let (upstream, served) = (upstream(url), Arc::clone(&ledger));
        let thread = std::thread::spawn(move || {
            serve(&dir, served, relay, upstream, |gateway| {
                tell.send(gateway).unwrap();
                async move {
                    let _dropped = stopped.await;
                }
            });
        });
        Self {
            ledger,
            gateway: told.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Waits until nothing is open.
    pub(crate) fn settled(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(self.gateway.settled());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) url: String,
    model: Process,
}

impl World {
    /// Starts a model server with this script.
    pub(crate) fn new(script: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("gateway-")
            .tempdir()
            .unwrap();
        std::fs::write(dir.path().join("script"), script).unwrap();
        let path = |name| dir.path().join(name).display().to_string();
        let args = ["--script", &path("script"), "--log", &path("model.log")].join("\n");
        let mut model = Process::start("model-server", dir.path(), dir.path(), &args);
        let line = model.line("{\"").unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        let url = told["url"].as_str().unwrap().to_owned();
        Self { dir, url, model }
    }

    /// One command, then a last word.
    pub(crate) fn one_command() -> Self {
        Self::new(
            r#"[{"text":"I will look at it now, step by step.","tools":[{"command":"ls"}]},{"text":"Done."}]"#,
        )
    }

    /// The same; the first answer stops in the middle until it is released.
    pub(crate) fn held() -> Self {
        Self::new(
            r#"[{"text":"I will look at it now, step by step.","tools":[{"command":"ls"}],"hold":true},{"text":"Done."}]"#,
        )
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(self.path(), self.path(), &self.url)
    }

    pub(crate) fn daemon_with(&self, url: &str) -> Daemon {
        Daemon::start(self.path(), self.path(), url)
    }

    /// Another sandbox: its own journal and socket, the same relay.
    pub(crate) fn daemon_in(&self, dir: &Path) -> Daemon {
        Daemon::start(dir, self.path(), &self.url)
    }

    pub(crate) fn post(&self, body: &str) -> Call {
        self.post_to("/v1/messages?beta=true", body)
    }

    pub(crate) fn post_to(&self, path: &str, body: &str) -> Call {
        Call::send(&self.path().join("gateway.sock"), "POST", path, body).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        Call::send(&self.path().join("gateway.sock"), "GET", path, "")
            .unwrap()
            .finish()
            .unwrap()
    }

    fn control(&self, method: &str, path: &str) -> String {
        let address = self.url.strip_prefix("http://").unwrap();
        let stream = Box::new(TcpStream::connect(address).unwrap());
        Call::on(stream, method, path, "")
            .unwrap()
            .finish()
            .unwrap()
            .text()
    }

    pub(crate) fn release(&self) {
        self.control("POST", "/__control/release");
    }

    /// Waits until the model server has seen so much; returns its log.
    pub(crate) fn wait(&self, what: &str) -> Vec<serde_json::Value> {
        let text = self.control("GET", &format!("/__control/wait?{what}"));
        serde_json::from_str(&text).unwrap()
    }

    /// What the model server was asked.
    pub(crate) fn asked(&self) -> Vec<serde_json::Value> {
        self.wait("requests=0")
    }

    /// Returns the relay's files.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path().join("answers")).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }

    /// Waits for what another process does and tells nobody.
    pub(crate) fn until(&self, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "it did not happen"
            );
            std::thread::yield_now();
        }
    }

    /// Kills the relay with `kill -9` and waits for its end.
    pub(crate) fn kill_relay(&self) {
        kill_relay(self.path());
    }

    pub(crate) fn kill_model(&mut self) {
        self.model.kill_9();
    }
}

pub(crate) fn relay_pid(dir: &Path) -> Option<rustix::process::Pid> {
    let stream = UnixStream::connect(dir.join("relay.sock")).ok()?;
    Some(rustix::net::sockopt::socket_peercred(&stream).unwrap().pid)
}

pub(crate) fn kill_relay(dir: &Path) {
    use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let Some(pid) = relay_pid(dir) else { return };
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&pidfd, Signal::KILL).unwrap();
    let mut poll = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    // Whatever stops the machine for a moment interrupts it.
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut poll, None)).unwrap();
}

impl Drop for World {
    fn drop(&mut self) {
        kill_relay(self.path());
    }
}

/// Returns an Anthropic request with these messages.
pub(crate) fn anthropic(messages: &serde_json::Value) -> String {
    serde_json::json!({
        "model": "m", "max_tokens": 100, "stream": true, "system": "be brief",
        "tools": [{ "name": "Bash", "description": "a shell", "input_schema": { "type": "object" } }],
        "messages": messages,
    })
    .to_string()
}

/// Returns an Anthropic request with one user message.
pub(crate) fn say(text: &str) -> String {
    anthropic(&serde_json::json!([{ "role": "user", "content": text }]))
}

/// Returns the journaled answers in order: output joined, and the settlement.
pub(crate) fn answers(events: &[Event]) -> VecDeque<(Vec<u8>, Option<Event>)> {
    let mut answers: Vec<(protocol::ModelRequestId, Vec<u8>, Option<Event>)> = Vec::new();
    for event in events {
        match event {
            Event::ModelRequested { request, .. } => {
                answers.push((request.clone(), Vec::new(), None))
            }
            Event::ModelOutput {
                request,
                offset,
                data,
            } => {
                let answer = answers.iter_mut().find(|a| a.0 == *request).unwrap();
                assert_eq!(offset.0, answer.1.len() as u64, "a gap in the journal");
                answer.1.extend(data);
            }
            Event::ModelSettled { request, .. } => {
                let answer = answers.iter_mut().find(|a| a.0 == *request).unwrap();
                assert_eq!(answer.2, None, "settled twice");
                answer.2 = Some(event.clone());
            }
            _ => {}
        }
    }
    answers
        .into_iter()
        .map(|(_, output, settled)| (output, settled))
        .collect()
}
