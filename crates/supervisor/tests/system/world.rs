//! A world of its own for each test: a directory, a supervisor in it, and the daemon's end of the control socket.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use protocol::control::{FromSupervisor, MAX_DOORS, ToSupervisor, decode, encode};
use protocol::paths::{spool_file, state};
use protocol::table::{OpRow, RunSpec, Table};
use protocol::{Boot, Epoch, Head, Limits, Offset, OpId, Outcome, Role, Seq, Settlement, Stream};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// Everything here happens far faster; only a test that fails waits that long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn alone() -> Command {
    Command::new(env!("CARGO_BIN_EXE_supervisor-alone"))
}

pub(crate) fn id(id: &str) -> OpId {
    id.parse().unwrap()
}

pub(crate) fn head(seq: u64) -> Head {
    Head {
        seq: Seq(seq),
        hash: [u8::try_from(seq % 256).unwrap(); 32],
    }
}

/// A command line, to be changed where a test needs more.
pub(crate) fn argv(argv: &[&str]) -> RunSpec {
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C")];
    RunSpec {
        argv: argv.iter().map(|&a| a.to_owned()).collect(),
        cwd: "/tmp".to_owned(),
        env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        user: None,
        timeout_ms: None,
        tty: None,
        stdin: false,
        role: Role::Command,
    }
}

pub(crate) fn sh(command: &str) -> RunSpec {
    argv(&["/bin/bash", "-c", command])
}

/// A directory with a supervisor, both gone on drop.
pub(crate) struct World {
    dir: tempfile::TempDir,
    limits: Limits,
    process: Option<Child>,
    /// What the supervisor is started by.
    pub(crate) prefix: Vec<String>,
    has_doors: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        let mut world = Self::unstarted(limits);
        world.start(&[]);
        world
    }

    /// One with doors, and an authority to trust.
    pub(crate) fn with_doors() -> Self {
        let mut world = Self::unstarted(Limits::default());
        world.has_doors = true;
        world.start(&[]);
        world
    }

    pub(crate) fn unstarted(limits: Limits) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("durable-supervisor-")
            .tempdir_in("/tmp")
            .unwrap();
        Self {
            dir,
            limits,
            process: None,
            prefix: Vec::new(),
            has_doors: false,
        }
    }

    /// Starts the supervisor and waits until it serves.
    pub(crate) fn start(&mut self, env: &[(&str, &str)]) {
        let mut process = self.spawn(env);
        let mut byte = [0];
        let mut ready = process.stdout.take().unwrap();
        ready.read_exact(&mut byte).unwrap();
        self.process = Some(process);
    }

    pub(crate) fn spawn(&self, env: &[(&str, &str)]) -> Child {
        let alone = alone().get_program().to_os_string();
        let mut line = self.prefix.iter().map(OsString::from).chain([alone]);
        Command::new(line.next().unwrap())
            .args(line)
            .arg("supervise")
            .arg(self.path(""))
            .arg(serde_json::to_string(&self.limits).unwrap())
            .args(self.has_doors.then_some("doors"))
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Connects without a word.
    pub(crate) fn connect(&self) -> Daemon {
        let socket = UnixStream::connect(self.path("state").join(state::CONTROL)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Daemon {
            socket,
            input: BytesMut::new(),
            accepted: BTreeMap::new(),
            reach: BTreeMap::new(),
        }
    }

    /// Connects and fences.
    pub(crate) fn daemon(&self, epoch: u64) -> Daemon {
        let mut daemon = self.connect();
        daemon.fence(epoch);
        daemon
    }

    /// Opens a connection for one request; returns its answer and what came with it.
    pub(crate) fn ask(&self, request: &ToSupervisor) -> (FromSupervisor, Vec<OwnedFd>) {
        let mut daemon = self.connect();
        daemon.send(request);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DOORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 64 << 10];
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(&daemon.socket, parts, &mut ancillary, flags).unwrap();
        daemon.input.extend_from_slice(&bytes[..got.bytes]);
        let mut fds = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = part {
                fds.extend(came);
            }
        }
        let answer = daemon.hear().expect("no answer");
        assert_eq!(daemon.hear(), None, "the connection goes on");
        (answer, fds)
    }

    pub(crate) fn table(&self) -> Table {
        let bytes = std::fs::read(self.path("state").join(state::TABLE)).unwrap();
        Table::read(&bytes).unwrap().0
    }

    pub(crate) fn spooled(&self, op: &str, stream: Stream) -> Vec<u8> {
        let path = self.path("state").join(spool_file(&id(op), 1, stream));
        std::fs::read(path).unwrap_or_default()
    }

    pub(crate) fn stdout(&self, op: &str) -> String {
        String::from_utf8(self.spooled(op, Stream::Stdout)).unwrap()
    }

    /// Kills the supervisor; and, since nothing else does without a namespace, what it leaves running.
    pub(crate) fn kill_9(&mut self) {
        let mut process = self.process.take().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        let children = std::fs::read_to_string(children).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        for child in children.split_whitespace() {
            let group = rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap();
            let signal = rustix::process::Signal::KILL;
            // One that leads no group is the supervisor in a namespace, or has ended.
            let _killed = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Waits for the supervisor to end by itself; returns its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.process.take().unwrap().wait().unwrap().code()
    }

    /// A number out of the supervisor's `/proc/PID/status`, in kB where it is of memory.
    pub(crate) fn status(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find(|l| l.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// How many descriptors the supervisor has; 0, said out loud, for a user who may not look.
    pub(crate) fn open_files(&self) -> usize {
        let Ok(files) = std::fs::read_dir(format!("/proc/{}/fd", self.pid())) else {
            eprintln!("skipped: only root can count the supervisor's descriptors");
            return 0;
        };
        files.count()
    }

    /// Waits for something outside of the supervisor's own messages.
    pub(crate) fn until(&self, what: &str, mut is: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        // Its operations end with it only in a namespace of their own.
        if let Ok(socket) = UnixStream::connect(self.path("state").join(state::CONTROL)) {
            let mut wire = BytesMut::new();
            for message in [
                ToSupervisor::Fence {
                    epoch: Epoch(1 << 60),
                },
                ToSupervisor::Shutdown { grace_ms: 0 },
            ] {
                encode(&message, &mut wire).unwrap();
            }
            let _sent = (&socket).write_all(&wire);
            let _heard = (&socket).read_to_end(&mut Vec::new());
        }
        let _killed = process.kill();
        let _status = process.wait();
    }
}

/// The daemon's end.
pub(crate) struct Daemon {
    socket: UnixStream,
    input: BytesMut,
    pub(crate) accepted: BTreeMap<OpId, (u64, bool)>,
    pub(crate) reach: BTreeMap<OpId, (u32, u64, u64)>,
}

/// What a fence brings.
pub(crate) struct Fenced {
    pub(crate) boot: Boot,
    pub(crate) ops: Vec<OpRow>,
    pub(crate) witness: Head,
}

impl Daemon {
    pub(crate) fn send(&mut self, message: &ToSupervisor) {
        let mut wire = BytesMut::new();
        encode(message, &mut wire).unwrap();
        self.socket.write_all(&wire).unwrap();
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// The next message; `None` when the connection has ended.
    pub(crate) fn hear(&mut self) -> Option<FromSupervisor> {
        loop {
            if let Some(message) = decode(&mut self.input).unwrap() {
                self.note(&message);
                return Some(message);
            }
            let mut buffer = [0; 64 << 10];
            match self.socket.read(&mut buffer) {
                Ok(0) => return None,
                Ok(length) => self.input.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("waited in vain: {error}"),
            }
        }
    }

    fn note(&mut self, message: &FromSupervisor) {
        match message {
            FromSupervisor::StdinAccepted { op, offset, closed } => {
                self.accepted.insert(op.clone(), (offset.0, *closed));
            }
            FromSupervisor::Output {
                op,
                attempt,
                stdout,
                stderr,
            } => {
                let new = (*attempt, stdout.0, stderr.0);
                let old = self.reach.insert(op.clone(), new).unwrap_or((0, 0, 0));
                let shrank = old.0 == new.0 && (old.1 > new.1 || old.2 > new.2);
                assert!(!shrank, "output of {op} shrank");
            }
            _ => {}
        }
    }

    /// Skips messages until one is wanted.
    pub(crate) fn wait<T>(&mut self, mut wanted: impl FnMut(&FromSupervisor) -> Option<T>) -> T {
        loop {
            let message = self.hear().expect("the supervisor ended the connection");
            if let Some(wanted) = wanted(&message) {
                return wanted;
            }
        }
    }

    pub(crate) fn fence(&mut self, epoch: u64) -> Fenced {
        self.send(&ToSupervisor::Fence {
            epoch: Epoch(epoch),
        });
        self.wait(|message| match message {
            FromSupervisor::Fenced { boot, ops, witness } => Some(Fenced {
                boot: *boot,
                ops: ops.clone(),
                witness: *witness,
            }),
            _ => None,
        })
    }

    pub(crate) fn start(&mut self, op: &str, run: RunSpec) {
        self.start_attempt(op, 1, run);
    }

    pub(crate) fn start_attempt(&mut self, op: &str, attempt: u32, run: RunSpec) {
        self.send(&ToSupervisor::Start {
            op: id(op),
            attempt,
            run,
            witness: head(1),
        });
    }

    pub(crate) fn started(&mut self, op: &str) {
        let wanted = id(op);
        self.wait(|message| match message {
            FromSupervisor::Started { op, .. } => (*op == wanted).then_some(()),
            FromSupervisor::Settled { op, settlement, .. } if *op == wanted => {
                panic!("{op} settled without a start: {settlement:?}")
            }
            _ => None,
        });
    }

    pub(crate) fn settled(&mut self, op: &str) -> Settlement {
        let wanted = id(op);
        self.wait(|message| match message {
            FromSupervisor::Settled { op, settlement, .. } if *op == wanted => {
                Some(settlement.clone())
            }
            _ => None,
        })
    }

    /// Starts it and waits for its end.
    pub(crate) fn run(&mut self, op: &str, run: RunSpec) -> Settlement {
        self.start(op, run);
        self.settled(op)
    }

    pub(crate) fn announce(&mut self, op: &str, seq: u64) {
        self.send(&ToSupervisor::Announce {
            op: id(op),
            witness: head(seq),
        });
    }

    pub(crate) fn stdin(&mut self, op: &str, offset: u64, data: &[u8], eof: bool) {
        self.send(&ToSupervisor::Stdin {
            op: id(op),
            offset: Offset(offset),
            data: Bytes::copy_from_slice(data),
            eof,
        });
    }

    /// Sends all of `data` and its end, as a daemon does: never further than a window beyond what was accepted.
    pub(crate) fn feed(&mut self, op: &str, data: &[u8]) {
        const WINDOW: usize = 1 << 20;
        let mut sent = 0;
        loop {
            let accepted = self.accepted.get(&id(op)).map_or(0, |a| a.0);
            let accepted = usize::try_from(accepted).unwrap();
            let end = data.len().min(accepted + WINDOW).min(sent + (200 << 10));
            if end > sent || data.is_empty() {
                self.stdin(op, sent as u64, &data[sent..end], end == data.len());
                sent = end;
            }
            if sent == data.len() {
                return;
            }
            if sent == accepted + WINDOW {
                self.hear().expect("the supervisor ended the connection");
            }
        }
    }

    /// Waits until so much stdout is there.
    pub(crate) fn output(&mut self, op: &str, bytes: u64) {
        let wanted = id(op);
        self.wait(|message| match message {
            FromSupervisor::Output { op, stdout, .. } => {
                (*op == wanted && stdout.0 >= bytes).then_some(())
            }
            FromSupervisor::Settled { op, settlement, .. } if *op == wanted => {
                panic!("{op} settled: {settlement:?}")
            }
            _ => None,
        });
    }

    pub(crate) fn check(&mut self, run: RunSpec) -> Option<String> {
        self.send(&ToSupervisor::Check { token: 7, run });
        self.wait(|message| match message {
            FromSupervisor::Checked { token: 7, problem } => Some(problem.clone()),
            _ => None,
        })
    }
}

pub(crate) fn exited(settlement: &Settlement) -> u8 {
    match settlement.outcome {
        Outcome::Exited { exit_code } => exit_code,
        _ => panic!("it did not exit: {settlement:?}"),
    }
}

/// Where a supervisor stops and waits at a failpoint.
pub(crate) struct Failpoint {
    listener: UnixListener,
    path: PathBuf,
    name: String,
}

impl Failpoint {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let path = dir.join("failpoint.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Self {
            listener,
            path,
            name: name.to_owned(),
        }
    }

    pub(crate) fn env(&self) -> [(&str, &str); 2] {
        [
            ("DURABLE_FAILPOINT", &self.name),
            ("DURABLE_FAILPOINT_SOCKET", self.path.to_str().unwrap()),
        ]
    }

    /// Waits until the supervisor stands there. It goes on when the returned connection is dropped.
    pub(crate) fn reached(&self) -> UnixStream {
        let (mut socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        assert!(line.starts_with(self.name.as_bytes()));
        socket
    }
}

/// Whether a process with this text in its command line is alive.
pub(crate) fn is_alive(text: &str) -> bool {
    let mine = std::process::id();
    std::fs::read_dir("/proc").unwrap().any(|entry| {
        let name = entry.unwrap().file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            return false;
        };
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        pid != mine && String::from_utf8_lossy(&line).contains(text)
    })
}
