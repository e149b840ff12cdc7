//! The note of a sandbox's PID 1 in its state directory, and the only ways in which it is used.
//!
//! It has to outlive the daemon, not the machine: after a reboot nothing of it holds, so it is not flushed. PID 1 can
//! write the directory, so a note is believed only as far as the process named in it can be seen to be PID 1 of a sandbox.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::{Error, Running};

const FILE: &str = "running.json";

/// Writes the note; it is whole or not there.
pub(super) fn write(state: &Path, running: &Running) -> Result<(), Error> {
    let steps = || -> io::Result<()> {
        let new = state.join("running.json.new");
        fs::write(&new, serde_json::to_vec(running)?)?;
        fs::rename(new, state.join(FILE))
    };
    steps().map_err(|e| Error::step(format!("record PID 1 in {}", state.display()), e))
}

/// Removes the note.
pub(super) fn remove(state: &Path) {
    // Already gone is as good; a note of a dead process is never believed.
    let _ignored = fs::remove_file(state.join(FILE));
}

/// Returns what the note says, whether or not it still holds.
pub(super) fn read(state: &Path) -> Option<Running> {
    serde_json::from_slice(&fs::read(state.join(FILE)).ok()?).ok()
}

/// Returns what the note names, if that lives.
pub(super) fn find(state: &Path) -> Option<Running> {
    read(state).filter(|running| Handle::open(running).is_some())
}

/// The boot that this machine is in.
pub(super) fn machine_boot() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(path).map_err(|e| Error::step(format!("read {path}"), e))?;
    Ok(id.trim().to_owned())
}

/// When process `pid` started, in clock ticks after boot.
pub(super) fn start_time(pid: i32) -> Result<u64, Error> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).map_err(|e| Error::step(format!("read {path}"), e))?;
    start_time_of(&stat)
        .ok_or_else(|| Error::step(format!("understand {path}"), io::ErrorKind::InvalidData))
}

/// The name in the second field may hold blanks and brackets, so fields are counted behind the last bracket.
fn start_time_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// A hold on one process that no other can take the place of.
#[derive(Debug)]
pub(super) struct Handle(OwnedFd);

impl Handle {
    /// Opens a process that is known to be there, such as one's own child.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(rustix::process::pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Opens PID 1 of a sandbox, if it lives and is what was recorded.
    pub(super) fn open(running: &Running) -> Option<Self> {
        if machine_boot().ok()? != running.machine_boot {
            return None;
        }
        let handle = Self::of(running.pid).ok()?;
        // After the handle: a pid that was taken over meanwhile belongs to a younger process.
        let same = start_time(running.pid).ok()? == running.start_time;
        (same && is_nested_init(running.pid) && !handle.has_ended()).then_some(handle)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.wait(Duration::ZERO).unwrap_or(false)
    }

    /// Waits for the end; returns whether it came. PID 1 ends only when every process of its namespace is gone.
    pub(super) fn wait(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)))?;
        Ok(ready > 0)
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(self.0.as_fd(), Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether this is process 1 of a pid namespace below ours.
fn is_nested_init(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default();
    let ids: Vec<_> = ids.split_whitespace().collect();
    ids.len() > 1 && ids.last() == Some(&"1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::SandboxId;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 0";
        assert_eq!(start_time_of(&format!("7 (a) b) ( c) {tail}")), Some(4242));
    }

    #[test]
    fn a_note_is_not_believed_for_a_process_that_is_no_sandbox() {
        let dir = tempfile::tempdir().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let note = Running {
            sandbox: SandboxId(1),
            pid,
            start_time: start_time(pid).unwrap(),
            machine_boot: machine_boot().unwrap(),
            group: None,
        };
        write(dir.path(), &note).unwrap();
        assert_eq!(find(dir.path()), None);
    }
}
