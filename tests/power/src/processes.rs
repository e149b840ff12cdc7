//! Everything that descends from us, and its end: after a power cut no process is left.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bench::Failure;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

const WITHIN: Duration = Duration::from_secs(20);

/// Makes us the parent of whatever outlives its own.
pub(crate) fn adopt() -> Result<(), Failure> {
    set_child_subreaper(Some(getpid())).map_err(Failure::cannot("become the parent of orphans"))
}

/// Kills every descendant and returns when none is left.
pub(crate) fn end_all() -> Result<(), Failure> {
    let until = Instant::now() + WITHIN;
    loop {
        let descendants = descendants();
        if descendants.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Failure::wrong(format!(
                "processes do not end: {descendants:?}"
            )));
        }
        for pid in descendants {
            // Gone since we looked: as good.
            let _gone = kill_process(pid, Signal::KILL);
            // Not our child yet, or not dead yet: then in the next round.
            let _later = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until every descendant ended by itself; returns those that do not.
pub(crate) fn await_end() -> Option<Vec<Pid>> {
    let until = Instant::now() + WITHIN;
    loop {
        let descendants = descendants();
        if descendants.is_empty() {
            return None;
        }
        if Instant::now() >= until {
            return Some(descendants);
        }
        for pid in descendants {
            // Not our child, or not dead: then in a later round.
            let _later = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in the second field may hold anything, brackets too.
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![getpid().as_raw_nonzero().get()];
    while let Some(pid) = next.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            next.push(child);
            found.extend(Pid::from_raw(child));
        }
    }
    found
}
