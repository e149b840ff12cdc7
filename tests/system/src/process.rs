//! Processes as `/proc` shows them.

use std::fs;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// One line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `Z` …
    pub state: char,
    /// Its parent.
    pub parent: i32,
    /// When it started, in ticks after boot.
    pub start: u64,
}

/// Returns every process id.
#[must_use]
pub fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// Reads a process's line.
#[must_use]
pub fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; fields are counted behind the last bracket.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// Whether it runs: a zombie does not.
#[must_use]
pub fn is_alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Returns a file of a process's directory, empty where it cannot be read.
#[must_use]
pub fn file(pid: i32, name: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

/// Returns the command line for people.
#[must_use]
pub fn command(pid: i32) -> String {
    let line = file(pid, "cmdline");
    let words: Vec<_> = line
        .split(|b| *b == 0)
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").trim().chars().take(160).collect()
}

/// Whether the environment that it started with holds this entry.
#[must_use]
pub fn has_entry(pid: i32, entry: &str) -> bool {
    file(pid, "environ")
        .split(|b| *b == 0)
        .any(|e| e == entry.as_bytes())
}

/// Returns the processes that started with this entry in their environment.
#[must_use]
pub fn with_entry(entry: &str) -> Vec<i32> {
    all()
        .into_iter()
        .filter(|pid| is_alive(*pid) && has_entry(*pid, entry))
        .collect()
}

/// Kills with SIGKILL and waits until it is gone. Returns whether there was anything to kill.
pub fn kill(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return false;
    };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    let killed = rustix::process::pidfd_send_signal(&handle, Signal::KILL).is_ok();
    wait(&handle, Duration::from_secs(30));
    killed
}

/// Sends SIGTERM and waits; returns whether it went.
pub fn terminate(pid: i32, limit: Duration) -> bool {
    let Some(pid) = Pid::from_raw(pid) else {
        return true;
    };
    let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    // Gone meanwhile is as good.
    let _sent = rustix::process::pidfd_send_signal(&handle, Signal::TERM);
    wait(&handle, limit)
}

/// Waits for the end of a process; returns whether it came.
pub fn wait(handle: impl std::os::fd::AsFd, limit: Duration) -> bool {
    let Ok(limit) = Timespec::try_from(limit) else {
        return false;
    };
    let mut polled = [PollFd::new(&handle, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)));
    matches!(ready, Ok(n) if n > 0)
}

/// Resident memory without what is shared with files, in bytes.
#[must_use]
pub fn anonymous_memory(pid: i32) -> u64 {
    let status = String::from_utf8_lossy(&file(pid, "status")).into_owned();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Open descriptors.
#[must_use]
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The most that was resident at any time, in bytes.
#[must_use]
pub fn peak_memory(pid: i32) -> u64 {
    let status = String::from_utf8_lossy(&file(pid, "status")).into_owned();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
