//! From a [`RunSpec`] to a running process with its pipes or its terminal, or to words that say why not.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::OpId;
use protocol::table::RunSpec;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Rlimit};

use crate::harden::OP_CAPABILITIES;
use crate::sys::spawn::{self, Launch, Stack};
use crate::words::{describe, quoted};
use crate::{pty, trust, users};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Tells every process which operation it is of, as long as it keeps its environment. By this an operation's processes
/// are found that left its session and whose parents are gone.
pub(crate) const OP_VARIABLE: &str = "DURABLE_OP";

/// Returns the entry of the environment that all processes of `op` start with.
pub(crate) fn op_entry(op: &OpId) -> String {
    format!("{OP_VARIABLE}={op}")
}

/// Starts programs. What it needs of the sandbox's files it opened before the first sandboxed process ran.
pub(crate) struct Launcher {
    stack: RefCell<Stack>,
    null: OwnedFd,
    sacrifice: Option<Sacrifice>,
    nofile: Rlimit,
    has_ca: bool,
}

/// A process that was started, and our ends.
pub(crate) struct Child {
    pub(crate) pid: Pid,
    /// The pipe to its stdin, where input is wanted.
    pub(crate) stdin: Option<OwnedFd>,
    /// The pipe from its stdout, or the terminal.
    pub(crate) stdout: OwnedFd,
    /// The pipe from its stderr; none with a terminal.
    pub(crate) stderr: Option<OwnedFd>,
}

/// What the child gets as descriptors 0, 1 and 2, and what stays here.
struct Plumbing {
    theirs: [Option<OwnedFd>; 3],
    terminal: bool,
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

impl Launcher {
    /// Opens what every start needs; `nofile` is the limit of open files that operations get, and `has_ca` tells whether they
    /// are to trust one authority more than their image does.
    pub(crate) fn new(nofile: Rlimit, has_ca: bool) -> std::io::Result<Self> {
        let null = rustix::fs::openat2(
            CWD,
            c"/dev/null",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::NO_MAGICLINKS,
        )?;
        if !pty::is_device(&null, 1, 3) {
            return Err(std::io::Error::other("/dev/null is no null device"));
        }
        Ok(Self {
            stack: RefCell::new(Stack::new()?),
            null,
            sacrifice: Sacrifice::open(),
            nofile,
            has_ca,
        })
    }

    /// Says why `run` could not be started now; `None` if nothing speaks against it.
    pub(crate) fn check(&self, run: &RunSpec) -> Option<String> {
        let null = || self.null.as_fd();
        let launch = match self.prepare(run, [null(), null(), null()], false) {
            Ok(launch) => launch,
            Err(words) => return Some(words),
        };
        let result = spawn::check(&launch, &mut self.stack.borrow_mut());
        result.err().map(|failure| describe(failure, run))
    }

    /// Starts it as operation `op`. With an error nothing of it ran.
    pub(crate) fn start(&self, op: &OpId, run: &RunSpec) -> Result<Child, String> {
        let plumbing = self.plumb(run)?;
        let [a, b, c] = &plumbing.theirs;
        let stdio = [a, b, c].map(|fd| fd.as_ref().unwrap_or(&self.null).as_fd());
        let mut launch = self.prepare(run, stdio, plumbing.terminal)?;
        let inherited = format!("{OP_VARIABLE}=");
        launch
            .env
            .retain(|entry| !entry.as_bytes().starts_with(inherited.as_bytes()));
        launch.env.push(text(&op_entry(op), "the environment")?);
        if self.has_ca {
            let unset = trust::VARIABLES.iter();
            for (name, value) in unset.filter(|(name, _)| !run.env.contains_key(*name)) {
                let entry = format!("{name}={value}");
                launch.env.push(text(&entry, "the environment")?);
            }
        }
        let pid = self
            .spawn(&launch)
            .map_err(|failure| describe(failure, run))?;
        Ok(Child {
            pid,
            stdin: plumbing.stdin,
            stdout: plumbing.stdout,
            stderr: plumbing.stderr,
        })
    }

    /// Starts a files helper that speaks over `socket`. It is not of any operation.
    pub(crate) fn start_helper(
        &self,
        user: Option<&str>,
        socket: &impl AsFd,
    ) -> Result<Pid, String> {
        let run = RunSpec {
            argv: [protocol::paths::BIN, "__box", "files"]
                .map(str::to_owned)
                .to_vec(),
            cwd: "/".to_owned(),
            env: std::collections::BTreeMap::new(),
            user: user.map(str::to_owned),
            timeout_ms: None,
            tty: None,
            stdin: false,
            role: protocol::Role::Internal,
        };
        let stdio = [socket.as_fd(), socket.as_fd(), self.null.as_fd()];
        let launch = self.prepare(&run, stdio, false)?;
        self.spawn(&launch)
            .map_err(|failure| describe(failure, &run))
    }

    fn spawn(&self, launch: &Launch<'_>) -> Result<Pid, spawn::Failure> {
        let inherit = |is_child| self.sacrifice.as_ref().map(|s| s.set(is_child));
        inherit(true);
        let started = spawn::start(launch, &mut self.stack.borrow_mut());
        inherit(false);
        started
    }

    fn plumb(&self, run: &RunSpec) -> Result<Plumbing, String> {
        if let Some(size) = run.tty {
            let identity = users::resolve(run.user.as_deref())?;
            let terminal = pty::open(size, identity.as_ref())
                .map_err(|e| format!("no terminal could be opened: {e}"))?;
            let copy = |fd: &OwnedFd| {
                rustix::io::fcntl_dupfd_cloexec(fd, 3)
                    .map_err(|e| format!("no terminal could be opened: {e}"))
            };
            return Ok(Plumbing {
                theirs: [
                    Some(copy(&terminal.slave)?),
                    Some(copy(&terminal.slave)?),
                    Some(terminal.slave),
                ],
                terminal: true,
                stdin: None,
                stdout: terminal.master,
                stderr: None,
            });
        }
        let (stdout, out) = pipe()?;
        let (stderr, err) = pipe()?;
        nonblocking(&stdout)?;
        nonblocking(&stderr)?;
        let (input, stdin) = if run.stdin {
            let (input, stdin) = pipe()?;
            nonblocking(&stdin)?;
            (Some(input), Some(stdin))
        } else {
            (None, None)
        };
        Ok(Plumbing {
            theirs: [input, Some(out), Some(err)],
            terminal: false,
            stdin,
            stdout,
            stderr: Some(stderr),
        })
    }

    fn prepare<'a>(
        &'a self,
        run: &RunSpec,
        stdio: [BorrowedFd<'a>; 3],
        terminal: bool,
    ) -> Result<Launch<'a>, String> {
        let argv0 = run.argv.first().map_or("", String::as_str);
        if argv0.is_empty() {
            return Err("no program is named".to_owned());
        }
        // Our own directory is the state directory; nothing may be looked up from there.
        if !run.cwd.starts_with('/') {
            return Err(format!(
                "working directory {} does not start with `/`",
                quoted(&run.cwd)
            ));
        }
        let env = run
            .env
            .iter()
            .map(|(name, value)| {
                if name.is_empty() || name.contains('=') {
                    return Err(format!("{} cannot name a variable", quoted(name)));
                }
                text(&format!("{name}={value}"), "the environment")
            })
            .collect::<Result<_, _>>()?;
        Ok(Launch {
            programs: programs(argv0, run)?,
            argv: run
                .argv
                .iter()
                .map(|a| text(a, "an argument"))
                .collect::<Result<_, _>>()?,
            env,
            cwd: text(&run.cwd, "the working directory")?,
            identity: users::resolve(run.user.as_deref())?,
            capabilities: OP_CAPABILITIES,
            stdio,
            terminal,
            nofile: self.nofile,
        })
    }
}

/// Has the kernel take operations before us when memory is short: we are their only witness. Children inherit the number,
/// so we carry theirs for the moment of a start; afterwards neither we nor they could be sure to be allowed to set it.
struct Sacrifice {
    file: OwnedFd,
    own: i32,
}

impl Sacrifice {
    /// How much sooner operations are taken, of 1000.
    const SOONER: i32 = 500;

    fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/self/oom_score_adj", flags, Mode::empty()).ok()?;
        let mut text = [0; 16];
        let length = rustix::io::read(&file, &mut text).ok()?;
        let own = std::str::from_utf8(&text[..length]).ok()?.trim().parse();
        Some(Self {
            file,
            own: own.ok()?,
        })
    }

    fn set(&self, is_child: bool) {
        let number = if is_child {
            (self.own + Self::SOONER).min(1000)
        } else {
            self.own
        };
        // Only the order of the unlucky depends on it.
        let _written: Result<usize, _> =
            rustix::io::pwrite(&self.file, number.to_string().as_bytes(), 0);
    }
}

/// The files to try for `argv0`, in the order of the operation's own PATH.
fn programs(argv0: &str, run: &RunSpec) -> Result<Vec<CString>, String> {
    if argv0.contains('/') {
        return Ok(vec![text(argv0, "the program")?]);
    }
    let path = run.env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    path.split(':')
        .map(|dir| {
            let dir = if dir.is_empty() { "." } else { dir };
            text(&format!("{dir}/{argv0}"), "PATH")
        })
        .collect()
}

fn text(text: &str, what: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("{what} contains a zero byte: {}", quoted(text)))
}

fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
        .map_err(|e| format!("no pipe could be opened: {}", std::io::Error::from(e)))
}

/// Only our end: the flag belongs to the open file, which the two ends do not share.
fn nonblocking(fd: &OwnedFd) -> Result<(), String> {
    rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK)
        .map_err(|e| format!("a pipe could not be set up: {}", std::io::Error::from(e)))
}
