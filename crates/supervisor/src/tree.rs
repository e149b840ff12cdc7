//! The processes of one operation, found by session, process group, ancestry and environment, for ending all of them.
//!
//! What was seen once is remembered, so that it is still found when its parents end between SIGTERM and SIGKILL. Not found
//! is who left the session, lost its parents and threw its environment away before anybody looked.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

/// One process as `/proc/PID/stat` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    start: u64,
    dead: bool,
}

/// A window on the sandbox's processes, opened before anything ran in it.
pub(crate) struct Proc {
    dir: OwnedFd,
}

impl Proc {
    pub(crate) fn open() -> std::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open("/proc", flags, Mode::empty())?;
        Ok(Self { dir })
    }

    /// The directory itself.
    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Returns the numbers of all processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        let entries = Dir::read_from(&self.dir).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok())
    }

    fn processes(&self) -> HashMap<i32, Process> {
        self.pids()
            .filter_map(|pid| Some((pid, self.process(pid)?)))
            .collect()
    }

    fn process(&self, pid: i32) -> Option<Process> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&self.dir, format!("{pid}/stat"), flags, Mode::empty()).ok()?;
        // The name, which the process chooses, is at most 64 bytes; all else is numbers.
        let mut buffer = [0; 1024];
        let length = rustix::io::read(&file, &mut buffer).ok()?;
        parse(pid, &String::from_utf8_lossy(&buffer[..length]))
    }

    /// Returns the environment that `pid` started with, unless nobody may look.
    pub(crate) fn environ(&self, pid: i32) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("{pid}/environ");
        let file = rustix::fs::openat(&self.dir, path, flags, Mode::empty()).ok()?;
        let mut environ = Vec::new();
        let read = File::from(file).take(MAX_ENVIRON).read_to_end(&mut environ);
        read.ok().map(|_| environ)
    }

    /// Whether `pid` started with this entry in its environment. One that may not be looked at did not.
    fn has_entry(&self, pid: i32, entry: &[u8]) -> bool {
        self.environ(pid)
            .is_some_and(|environ| environ.split(|byte| *byte == 0).any(|e| e == entry))
    }

    /// Returns `pid` and who it descends from, nearest first, with the session of each.
    pub(crate) fn ancestry(&self, pid: i32) -> Vec<(i32, i32)> {
        let mut chain = Vec::new();
        let mut next = pid;
        while next > 1 && chain.len() < 1000 {
            let Some(process) = self.process(next) else {
                break;
            };
            chain.push((process.pid, process.session));
            next = process.parent;
        }
        chain
    }
}

/// Whether `process` descends from `ancestor`. We adopt every orphan, so all that we started stays below us.
fn is_below(all: &HashMap<i32, Process>, process: &Process, ancestor: i32) -> bool {
    let mut next = Some(process);
    for _ in 0..all.len() {
        match next {
            Some(process) if process.parent == ancestor => return true,
            Some(process) => next = all.get(&process.parent),
            None => return false,
        }
    }
    false
}

/// More than any kernel lets a program start with.
const MAX_ENVIRON: u64 = 8 << 20;

/// The name is in parentheses and may hold anything; numbers follow the last one.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        dead: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// The processes of one operation.
pub(crate) struct Tree {
    root: i32,
    /// When the root was started; a later process with its number is another.
    root_start: Option<u64>,
    /// What its processes have in their environment.
    entry: Option<Vec<u8>>,
    known: HashMap<i32, u64>,
    /// Those that were found not to have it.
    foreign: HashMap<i32, u64>,
}

impl Tree {
    /// The tree below `root`, which leads a session of its own and was started with `entry` in its environment.
    pub(crate) fn new(root: Pid, entry: String, proc: &Proc) -> Self {
        let root = root.as_raw_pid();
        Self {
            root_start: proc.process(root).map(|p| p.start),
            entry: Some(entry.into_bytes()),
            ..Self::below(root)
        }
    }

    fn below(root: i32) -> Self {
        Self {
            root,
            root_start: None,
            entry: None,
            known: HashMap::new(),
            foreign: HashMap::new(),
        }
    }

    /// Takes in who is known by its environment alone.
    fn find_by_entry(&mut self, proc: &Proc, all: &HashMap<i32, Process>) {
        let Some(entry) = &self.entry else { return };
        let me = rustix::process::getpid().as_raw_pid();
        self.foreign
            .retain(|pid, start| all.get(pid).is_some_and(|p| p.start == *start));
        for process in all.values().filter(|p| !p.dead) {
            let is = |seen: &HashMap<i32, u64>| seen.get(&process.pid) == Some(&process.start);
            if is(&self.known) || is(&self.foreign) {
                continue;
            }
            let is_ours = is_below(all, process, me) && proc.has_entry(process.pid, entry);
            let seen = if is_ours {
                &mut self.known
            } else {
                &mut self.foreign
            };
            seen.insert(process.pid, process.start);
        }
    }

    /// Looks again; returns who is alive.
    pub(crate) fn look(&mut self, proc: &Proc) -> Vec<i32> {
        let all = proc.processes();
        self.find_by_entry(proc, &all);
        let ours = self.members(&all);
        self.known = ours.iter().map(|p| (p.pid, p.start)).collect();
        ours.iter().filter(|p| !p.dead).map(|p| p.pid).collect()
    }

    fn members(&self, all: &HashMap<i32, Process>) -> Vec<Process> {
        let number_is_ours = all
            .get(&self.root)
            .is_none_or(|leader| self.root_start.is_none_or(|start| start == leader.start));
        let mut ours: HashSet<i32> = all
            .values()
            .filter(|p| {
                let by_number =
                    p.pid == self.root || p.session == self.root || p.group == self.root;
                (by_number && number_is_ours) || self.known.get(&p.pid) == Some(&p.start)
            })
            .map(|p| p.pid)
            .collect();
        loop {
            let before = ours.len();
            let children: Vec<i32> = all
                .values()
                .filter(|p| ours.contains(&p.parent))
                .map(|p| p.pid)
                .collect();
            ours.extend(children);
            if ours.len() == before {
                break;
            }
        }
        all.values()
            .filter(|p| ours.contains(&p.pid))
            .copied()
            .collect()
    }

    /// Sends `signal` to everybody, looking again until nobody new turns up.
    pub(crate) fn signal(&mut self, proc: &Proc, signal: Signal) {
        // A tree that grows faster than this is one of many forks; SIGKILL comes again while it lives.
        const ROUNDS: usize = 20;
        let mut told = HashSet::new();
        for _ in 0..ROUNDS {
            let new: Vec<i32> = self
                .look(proc)
                .into_iter()
                .filter(|pid| told.insert(*pid))
                .collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                self.signal_one(pid, proc, signal);
            }
        }
    }

    fn signal_one(&self, pid: i32, proc: &Proc, signal: Signal) {
        let Some(pid) = Pid::from_raw(pid) else {
            return;
        };
        let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        // The handle may be of a later process with the same number; this one was seen, that one was not.
        let start = proc.process(pid.as_raw_pid()).map(|p| p.start);
        if start.is_some() && start == self.known.get(&pid.as_raw_pid()).copied() {
            // Gone in the meantime is as good as signalled.
            let _sent: Result<(), _> = rustix::process::pidfd_send_signal(&handle, signal);
        }
    }
}

/// Sends `signal` to everything below this process but itself.
pub(crate) fn signal_everything(proc: &Proc, signal: Signal) {
    if rustix::process::getpid().is_init() {
        // The kernel leaves PID 1 and other namespaces out of it.
        let _sent: std::io::Result<()> = crate::sys::kill(-1, signal.as_raw());
        return;
    }
    let me = rustix::process::getpid();
    let all = proc.processes();
    // Only ancestry counts here: the session may be that of whoever started us.
    let mut below = Tree::below(-1);
    let children = all.values().filter(|p| p.parent == me.as_raw_pid());
    below.known = children.map(|p| (p.pid, p.start)).collect();
    below.signal(proc, signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let rest = "S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0";
        let process = parse(5, &format!("5 (a) R 1 (b)) {rest}")).unwrap();
        let expected = Process {
            pid: 5,
            parent: 7,
            group: 8,
            session: 9,
            start: 12345,
            dead: false,
        };
        assert_eq!(process, expected);
    }

    fn process(pid: i32, parent: i32, session: i32, start: u64) -> (i32, Process) {
        let process = Process {
            pid,
            parent,
            group: session,
            session,
            start,
            dead: false,
        };
        (pid, process)
    }

    fn pids(tree: &Tree, all: &HashMap<i32, Process>) -> Vec<i32> {
        let mut pids: Vec<i32> = tree.members(all).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn children_that_left_the_session_are_found_and_remembered() {
        let mut tree = Tree {
            root_start: Some(5),
            ..Tree::below(10)
        };
        let all = HashMap::from([
            process(10, 1, 10, 5),
            process(11, 10, 10, 6),
            process(12, 11, 12, 7),
            process(13, 12, 12, 8),
            process(20, 1, 20, 9),
        ]);
        assert_eq!(pids(&tree, &all), [10, 11, 12, 13]);
        tree.known = HashMap::from([(12, 7), (13, 8)]);
        let later = HashMap::from([
            process(10, 1, 10, 99),
            process(12, 1, 12, 7),
            process(13, 12, 12, 100),
        ]);
        assert_eq!(pids(&tree, &later), [12, 13]);
    }
}
