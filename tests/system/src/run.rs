//! Running programs with their output drained, a limit on their time, and no child left behind.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};

use crate::{Res, process, trouble};

/// A program that takes longer than this hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    ended: bool,
}

/// One output stream, read as it comes.
struct Drain {
    shared: Arc<(Mutex<Buffer>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

fn lock(buffer: &Mutex<Buffer>) -> MutexGuard<'_, Buffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drain {
    fn new(mut from: impl Read + Send + 'static) -> Self {
        let shared = Arc::<(Mutex<Buffer>, Condvar)>::default();
        let ours = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let read = from.read(&mut chunk).unwrap_or(0);
                let mut buffer = lock(&ours.0);
                buffer.bytes.extend_from_slice(&chunk[..read]);
                buffer.ended = read == 0;
                ours.1.notify_all();
                if read == 0 {
                    return;
                }
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Waits until so many bytes came; `false` where the stream ended or the time was up before.
    fn wait(&self, bytes: usize, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut buffer = lock(&self.shared.0);
        while buffer.bytes.len() < bytes {
            let left = until.saturating_duration_since(Instant::now());
            if buffer.ended || left.is_zero() {
                return false;
            }
            buffer = self
                .shared
                .1
                .wait_timeout(buffer, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    fn take(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ended = thread.join();
        }
        std::mem::take(&mut lock(&self.shared.0).bytes)
    }
}

/// A program that runs. Dropped, it is killed.
pub struct Client {
    child: Child,
    line: String,
    out: Drain,
    err: Drain,
    ended: bool,
}

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Done {
    /// Its exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: Vec<u8>,
    /// Its stderr.
    pub stderr: Vec<u8>,
}

impl Done {
    /// stdout as text.
    #[must_use]
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// stderr as text.
    #[must_use]
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Returns itself where it ended with 0.
    ///
    /// # Errors
    /// It did not.
    pub fn ok(self) -> Res<Self> {
        if self.code == Some(0) {
            return Ok(self);
        }
        Err(trouble(format!(
            "ended with {:?}: {}",
            self.code,
            self.err().trim()
        )))
    }

    /// Reads stdout as one JSON object.
    ///
    /// # Errors
    /// It is none.
    pub fn json(&self) -> Res<serde_json::Value> {
        serde_json::from_slice(&self.stdout).map_err(|e| {
            trouble(format!(
                "no JSON ({e}) on stdout: {:?}; stderr: {}",
                self.out().chars().take(200).collect::<String>(),
                self.err().trim()
            ))
        })
    }
}

impl Client {
    /// Starts it; stdin is what the command says, stdout and stderr are drained.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command) -> Res<Self> {
        let line = format!("{command:?}");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| trouble(format!("cannot start {line}: {e}")))?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(trouble("no pipes"));
        };
        Ok(Self {
            child,
            line,
            out: Drain::new(out),
            err: Drain::new(err),
            ended: false,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Takes the pipe to its stdin, where there is one.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Waits for so many bytes on stdout; `false` where it ended before.
    pub fn wait_out(&self, bytes: usize, limit: Duration) -> bool {
        self.out.wait(bytes, limit)
    }

    /// Returns what it wrote to stdout so far.
    #[must_use]
    pub fn so_far(&self) -> Vec<u8> {
        lock(&self.out.shared.0).bytes.clone()
    }

    /// Returns the end of what it wrote to stderr so far.
    #[must_use]
    pub fn words(&self) -> String {
        let text = String::from_utf8_lossy(&lock(&self.err.shared.0).bytes).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        process::kill(self.pid());
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It takes longer than `limit`; it is killed then.
    pub fn finish_within(mut self, limit: Duration) -> Res<Done> {
        let pid = Pid::from_raw(self.pid()).ok_or_else(|| trouble("no pid"))?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        if !process::wait(&handle, limit) {
            let (out, err) = (self.so_far(), lock(&self.err.shared.0).bytes.clone());
            return Err(trouble(format!(
                "it hangs after {} s: {}; {} bytes of stdout, stderr: {}",
                limit.as_secs(),
                self.line.chars().take(400).collect::<String>(),
                out.len(),
                String::from_utf8_lossy(&err).trim()
            )));
        }
        self.ended = true;
        let status = self.child.wait()?;
        Ok(Done {
            code: status.code(),
            stdout: self.out.take(),
            stderr: self.err.take(),
        })
    }

    /// Waits for its end within [`PATIENCE`].
    ///
    /// # Errors
    /// It hangs.
    pub fn finish(self) -> Res<Done> {
        self.finish_within(PATIENCE)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself.
            let _killed = self.child.kill();
            let _status = self.child.wait();
        }
    }
}

/// Runs a command to its end within [`PATIENCE`], with nothing on stdin.
///
/// # Errors
/// It cannot be started, or hangs.
pub fn run(mut command: Command) -> Res<Done> {
    command.stdin(Stdio::null());
    Client::start(command)?.finish()
}
