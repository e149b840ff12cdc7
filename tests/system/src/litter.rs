//! What is left of a world: processes, mounts, loop devices, cgroups. Found from outside, never by asking the system.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process;

/// What was found.
#[derive(Debug, Default, Clone)]
pub struct Litter {
    /// Living processes: id and command.
    pub processes: Vec<(i32, String)>,
    /// Lines of the host's mount table, and loop devices.
    pub mounts: Vec<String>,
    /// Directories of cgroups.
    pub cgroups: Vec<PathBuf>,
}

impl Litter {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.processes.is_empty() && self.mounts.is_empty() && self.cgroups.is_empty()
    }

    /// What is left, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        for (pid, command) in &self.processes {
            parts.push(format!("process {pid} ({command})"));
        }
        parts.extend(self.mounts.iter().map(|m| format!("mount {m}")));
        let groups = self.cgroups.iter();
        parts.extend(groups.map(|g| format!("cgroup {}", g.display())));
        parts.join("; ")
    }
}

/// Where a world is, as its processes show it.
#[derive(Debug, Clone)]
pub struct Marks {
    /// Its directory; in the command line or the environment of all that belong to it.
    pub root: PathBuf,
    /// Its data directory, which names its cgroups.
    pub data: PathBuf,
}

impl Marks {
    fn key(&self) -> String {
        let data = fs::canonicalize(&self.data).unwrap_or_else(|_| self.data.clone());
        let hash = blake3::hash(data.as_os_str().as_encoded_bytes());
        hash.to_hex()[..12].to_owned()
    }

    /// Finds the living processes of a world.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let root = self.root.to_string_lossy().into_owned();
        let group = format!("/durable/{}", self.key());
        let mine = std::process::id().cast_signed();
        process::all()
            .into_iter()
            .filter(|pid| *pid != mine && process::is_alive(*pid))
            .filter(|pid| {
                ["cmdline", "environ"]
                    .iter()
                    .any(|name| holds(&process::file(*pid, name), root.as_bytes()))
                    || holds(&process::file(*pid, "cgroup"), group.as_bytes())
            })
            .collect()
    }

    /// Finds the cgroups of a world, deepest first; without the directories above its groups where `only_groups`.
    #[must_use]
    pub fn cgroups(&self, only_groups: bool) -> Vec<PathBuf> {
        let key = self.key();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let roots = mounts.lines().filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let kind = right.split(' ').next()?;
            let point = left.split(' ').nth(4)?;
            kind.starts_with("cgroup").then(|| PathBuf::from(point))
        });
        let mut found = Vec::new();
        for root in roots {
            let base = root.join("durable").join(&key);
            directories(&base, &mut found, !only_groups);
        }
        found
    }

    /// Looks for everything.
    #[must_use]
    pub fn look(&self) -> Litter {
        let processes = self.processes().into_iter();
        Litter {
            processes: processes.map(|pid| (pid, process::command(pid))).collect(),
            mounts: self.mounts(),
            cgroups: self.cgroups(false),
        }
    }

    /// Finds the host's mounts and the loop devices of a world.
    #[must_use]
    pub fn mounts(&self) -> Vec<String> {
        let root = self.root.to_string_lossy().into_owned();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut found: Vec<String> = table
            .lines()
            .filter(|line| line.contains(&root))
            .map(str::to_owned)
            .collect();
        for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
            let backing = entry.path().join("loop/backing_file");
            let backing = fs::read_to_string(backing).unwrap_or_default();
            if backing.contains(&root) {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.push(format!("{name} on {}", backing.trim()));
            }
        }
        found
    }

    /// Kills and removes all of it. For worlds whose test has failed; a clean world has nothing to remove.
    pub fn remove(&self) {
        for _ in 0..10 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in left {
                process::kill(pid);
            }
        }
        for group in self.cgroups(false) {
            // Not empty yet: the kernel takes a moment; the directory itself harms nobody.
            let _removed = fs::remove_dir(group);
        }
    }
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|w| w == wanted)
}

fn directories(path: &Path, found: &mut Vec<PathBuf>, itself: bool) {
    let Ok(entries) = fs::read_dir(path) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.path().is_dir() {
            directories(&entry.path(), found, true);
        }
    }
    if itself {
        found.push(path.to_owned());
    }
}
