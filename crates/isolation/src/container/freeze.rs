//! Stopping every process of a sandbox for an instant, and making sure that they go on.
//!
//! Whoever stopped them may be killed before it lets them go on. So a small process of its own is told first, which lets them
//! go on when it sees the end of the one that stopped them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// How long processes may take to stop: they do when they leave the kernel, which one that waits for a disk does later. A cut
/// of running processes is better than a long halt.
const WITHIN: Duration = Duration::from_millis(500);

/// Stops and lets go on, with the process that watches over it.
#[derive(Debug, Default)]
pub(super) struct Freezer {
    program: Mutex<Option<(PathBuf, Vec<String>)>>,
    guard: Mutex<Option<Guard>>,
}

#[derive(Debug)]
struct Guard {
    child: Child,
    /// None once it is to end.
    orders: Option<ChildStdin>,
}

impl Freezer {
    /// Names the program that calls [`guard`].
    pub(super) fn set_guard(&self, binary: &Path, args: &[String]) {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        *program = Some((binary.to_owned(), args.to_vec()));
    }

    /// Stops what is in a version 2 group. `false`: it runs, for it did not stop in time or nobody would watch over it.
    pub(super) fn freeze(&self, group: &Path) -> bool {
        if self.tell('+', group).is_err() {
            return false;
        }
        if fs::write(group.join("cgroup.freeze"), "1").is_ok() && frozen(group).unwrap_or(false) {
            failpoint::hit("frozen");
            return true;
        }
        self.thaw(group);
        false
    }

    /// Lets it go on.
    pub(super) fn thaw(&self, group: &Path) {
        thaw(group);
        // A guard that is gone has let it go on as well.
        let _gone = self.tell('-', group);
    }

    fn tell(&self, order: char, group: &Path) -> io::Result<()> {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{order}{}\n", group.display());
        if let Some(running) = &mut *guard
            && running.tell(&line).is_ok()
        {
            return Ok(());
        }
        *guard = None;
        let program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((binary, args)) = &*program else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut spawned = Guard::spawn(binary, args)?;
        spawned.tell(&line)?;
        *guard = Some(spawned);
        Ok(())
    }
}

impl Guard {
    fn spawn(binary: &Path, args: &[String]) -> io::Result<Self> {
        let mut child = Command::new(binary)
            .args(args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is sent to the daemon's terminal or group is not for it.
            .process_group(0)
            .spawn()?;
        let orders = child.stdin.take();
        Ok(Self { child, orders })
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        orders.write_all(line.as_bytes())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It sees the end of its orders, lets everything go on and ends.
        drop(self.orders.take());
        let _ended = self.child.wait();
    }
}

/// The guard itself: reads orders, and lets go on what is still stopped when there will be no more.
///
/// # Errors
/// Its orders cannot be read; what was stopped goes on.
pub fn guard(orders: impl io::Read) -> io::Result<()> {
    let mut stopped = BTreeSet::new();
    let read = || -> io::Result<()> {
        for line in io::BufReader::new(orders).lines() {
            let line = line?;
            if let Some(group) = line.strip_prefix('+') {
                stopped.insert(PathBuf::from(group));
            } else if let Some(group) = line.strip_prefix('-') {
                stopped.remove(Path::new(group));
            }
        }
        Ok(())
    };
    let end = read();
    for group in &stopped {
        thaw(group);
    }
    end
}

fn thaw(group: &Path) {
    // One that is gone has nothing to go on.
    let _gone = fs::write(group.join("cgroup.freeze"), "0");
}

/// Waits until everything in the group has stopped.
fn frozen(group: &Path) -> io::Result<bool> {
    let mut events = File::open(group.join("cgroup.events"))?;
    let until = Instant::now() + WITHIN;
    loop {
        let mut text = String::new();
        io::Seek::rewind(&mut events)?;
        events.read_to_string(&mut text)?;
        if text.lines().any(|line| line == "frozen 1") {
            return Ok(true);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        // The kernel tells of a change of the file in this way.
        let mut polled = [PollFd::new(&events, PollFlags::PRI)];
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&left)))?;
    }
}
