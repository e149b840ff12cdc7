//! A daemon of the real binary, on a data directory of ours.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Api, Failure};

/// A running `durable serve`. Dropped, it is killed; its sandboxes are not.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    data: PathBuf,
    /// From the call of the program to its word that it serves.
    pub ready_after: Duration,
}

/// Returns the program under test: `DURABLE_BIN`, or where `make build` leaves it.
#[must_use]
pub fn program() -> PathBuf {
    let usual = "target/x86_64-unknown-linux-gnu/release/durable";
    let program = std::env::var_os("DURABLE_BIN").map_or_else(|| usual.into(), PathBuf::from);
    std::path::absolute(&program).unwrap_or(program)
}

impl Daemon {
    /// Starts one and returns when it serves; what it has to say goes to `log`.
    ///
    /// # Errors
    /// It cannot be started, or says why it does not serve.
    pub fn start(program: &Path, data: &Path, log: &Path) -> Result<Self, Failure> {
        let what = || format!("start {} on {}", program.display(), data.display());
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(Failure::cannot(what()))?;
        let begun = Instant::now();
        let mut child = Command::new(program)
            .arg("--data")
            .arg(data)
            .args(["serve", "--announce"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(Failure::cannot(what()))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout)
                .read_line(&mut line)
                .map_err(Failure::cannot(what()))?;
        }
        let ready_after = begun.elapsed();
        let daemon = Self {
            child,
            data: data.to_owned(),
            ready_after,
        };
        if line.trim() == "ready" {
            Ok(daemon)
        } else {
            Err(Failure::wrong(format!("the daemon says: {}", line.trim())))
        }
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens a connection to it.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(&self) -> Result<Api, Failure> {
        Api::connect(&self.data)
    }

    /// Kills it, as `kill -9` does, and returns when it is gone.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.end(Signal::KILL)
    }

    /// Tells it to end, and returns when it is gone.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn terminate(mut self) -> Result<(), Failure> {
        self.end(Signal::TERM)
    }

    fn end(&mut self, signal: Signal) -> Result<(), Failure> {
        let pid = Pid::from_child(&self.child);
        // Not waited for yet, so the number cannot belong to somebody else.
        kill_process(pid, signal).map_err(Failure::cannot("signal the daemon"))?;
        self.child
            .wait()
            .map_err(Failure::cannot("wait for the daemon"))?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already, most often.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
