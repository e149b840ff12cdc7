//! The cgroups of sandboxes: limits, and the certainty that a kill reaches everything.
//!
//! Version 2 and version 1 hierarchies are used side by side, as machines have them. In each, the groups are
//! `durable/<data directory>/<name>`. The name is not the sandbox's: moving a process into a group can take the kernel
//! ten milliseconds, so a group is made and entered before it is known for which sandbox (see `launch`).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::Limits;
use rustix::fs::Access;

use crate::Error;

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// How long the kernel may take to empty a group whose processes are all killed.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);
/// The period over which a share of CPU time is handed out, in microseconds.
const CPU_PERIOD: u64 = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One mounted hierarchy.
#[derive(Debug, Clone)]
struct Hierarchy {
    version: Version,
    /// Where a process goes that leaves its group.
    outside: PathBuf,
    /// The directory of this data directory's groups.
    base: PathBuf,
    /// Which of [`CONTROLLERS`] work in it.
    controllers: BTreeSet<&'static str>,
}

/// All hierarchies that can be used, and why others cannot.
#[derive(Debug, Clone, Default)]
pub(super) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    refused: Vec<String>,
}

impl Cgroups {
    /// Looks at what is mounted. `key` names the data directory.
    pub(super) fn detect(key: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut found = Self::default();
        for (version, root, controllers) in parse_mounts(&mounts) {
            if version == Version::One && controllers.is_empty() {
                continue;
            }
            match Hierarchy::prepare(version, &root, &own, controllers, key) {
                Ok(hierarchy) => found.hierarchies.push(hierarchy),
                Err(error) => found.refused.push(format!("{}: {error}", root.display())),
            }
        }
        found
    }

    /// Where a controller works.
    pub(super) fn place_of(&self, controller: &str) -> Option<&Path> {
        self.hierarchies
            .iter()
            .find(|h| h.controllers.contains(controller))
            .map(|h| h.base.as_path())
    }

    /// Whether one write kills a whole group.
    pub(super) fn has_kill(&self) -> bool {
        self.hierarchies.iter().any(|h| h.version == Version::Two)
    }

    /// Why a hierarchy that is there is not used.
    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Refuses limits that were asked for and cannot be held. The default limits are held where that is possible.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), Error> {
        let asked = [
            ("memory", limits.memory_bytes.is_some()),
            (
                "pids",
                limits.pids.is_some() && limits.pids != Limits::default().pids,
            ),
            ("cpu", limits.cpu_milli.is_some()),
        ];
        for (limit, asked) in asked {
            if asked && self.place_of(limit).is_none() {
                let why = match self.refused.first() {
                    Some(reason) => format!("no usable cgroup with that controller ({reason})"),
                    None => "no cgroup with that controller".to_owned(),
                };
                return Err(Error::Limit { limit, why });
            }
        }
        Ok(())
    }

    /// Names a group that nobody had before; none where there is no hierarchy. Nothing is made yet.
    pub(super) fn fresh(&self) -> Result<Option<Group>, Error> {
        if self.hierarchies.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.group(&fresh_name()?)))
    }

    /// Returns the group of this name, which may or may not exist.
    pub(super) fn group(&self, name: &str) -> Group {
        let dirs = self
            .hierarchies
            .iter()
            .map(|h| (h.clone(), h.base.join(name)))
            .collect();
        Group {
            name: name.to_owned(),
            dirs,
        }
    }

    /// Removes the directories above the groups, where no group is left.
    pub(super) fn leave(&self) {
        for hierarchy in &self.hierarchies {
            // In use by a sandbox, or by another data directory: then it stays.
            let _ignored = fs::remove_dir(&hierarchy.base);
            if let Some(ours) = hierarchy.base.parent() {
                let _ignored = fs::remove_dir(ours);
            }
        }
    }

    /// Returns the names of all groups that exist.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let entries = self
            .hierarchies
            .iter()
            .filter_map(|h| fs::read_dir(&h.base).ok())
            .flatten()
            .flatten();
        entries
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            .filter_map(|e| e.file_name().into_string().ok())
            .collect()
    }
}

impl Hierarchy {
    fn prepare(
        version: Version,
        root: &Path,
        own: &str,
        controllers: BTreeSet<&'static str>,
        key: &str,
    ) -> io::Result<Self> {
        let parent = match version {
            Version::Two => delegated(root, own)?,
            Version::One => root.to_owned(),
        };
        let base = parent.join("durable").join(key);
        make_base(version, &base)?;
        let controllers = match version {
            Version::One => controllers,
            Version::Two => {
                let works = fs::read_to_string(base.join("cgroup.subtree_control"))?;
                CONTROLLERS
                    .into_iter()
                    .filter(|c| works.split_whitespace().any(|w| w == *c))
                    .collect()
            }
        };
        Ok(Self {
            version,
            outside: root.to_owned(),
            base,
            controllers,
        })
    }
}

/// Where in a version 2 hierarchy we may make groups: at its root, or beside our own group where that was given to us.
fn delegated(root: &Path, own: &str) -> io::Result<PathBuf> {
    let writable = |dir: &Path| {
        [dir.to_owned(), dir.join("cgroup.procs")]
            .iter()
            .all(|p| rustix::fs::access(p, Access::WRITE_OK).is_ok())
    };
    if writable(root) {
        return Ok(root.to_owned());
    }
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    root.join(path)
        .ancestors()
        .skip(1)
        .take_while(|dir| dir.starts_with(root))
        .find(|dir| writable(dir))
        .map(Path::to_owned)
        .ok_or_else(|| io::Error::other("no group above ours is writable for this user"))
}

/// Returns version, mount point and known controllers of each cgroup mount in a `mountinfo`.
fn parse_mounts(mountinfo: &str) -> Vec<(Version, PathBuf, BTreeSet<&'static str>)> {
    mountinfo
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut right = right.split(' ');
            let version = match right.next()? {
                "cgroup2" => Version::Two,
                "cgroup" => Version::One,
                _ => return None,
            };
            let options = right.nth(1).unwrap_or_default();
            let controllers = CONTROLLERS
                .into_iter()
                .filter(|c| options.split(',').any(|o| o == *c))
                .collect();
            Some((version, PathBuf::from(left.split(' ').nth(4)?), controllers))
        })
        .collect()
}

/// A name that is never used twice in a boot of the machine: an old note must not lead to a new sandbox's group.
fn fresh_name() -> Result<String, Error> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let pid = std::process::id();
    let start = super::record::start_time(pid.cast_signed())?;
    Ok(format!(
        "{pid}-{start}-{}",
        SERIAL.fetch_add(1, Ordering::Relaxed)
    ))
}

/// Makes the directories above the groups.
fn make_base(version: Version, base: &Path) -> io::Result<()> {
    fs::create_dir_all(base)?;
    if version == Version::Two {
        let above: Vec<_> = base.ancestors().take(3).collect();
        for dir in above.iter().rev() {
            for controller in CONTROLLERS {
                // One that is not there, or that the parent keeps, is missing below; that is looked at later.
                let _ignored =
                    fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
    Ok(())
}

/// Makes a group. What is above it may have been removed by a daemon that ended meanwhile.
fn make_group(hierarchy: &Hierarchy, dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_base(hierarchy.version, &hierarchy.base)?;
            fs::create_dir(dir)
        }
        done => done,
    }
}

/// One sandbox's group in every hierarchy.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) name: String,
    dirs: Vec<(Hierarchy, PathBuf)>,
}

impl Group {
    /// Makes it, in all hierarchies or in none.
    pub(super) fn make(&self) -> Result<(), Error> {
        for (nth, (hierarchy, dir)) in self.dirs.iter().enumerate() {
            if let Err(error) = make_group(hierarchy, dir) {
                for (_, made) in &self.dirs[..nth] {
                    // Empty and ours since a moment; what could fail here, the next sweep finds.
                    let _ignored = fs::remove_dir(made);
                }
                return Err(Error::step(
                    format!("make the cgroup {}", dir.display()),
                    error,
                ));
            }
        }
        Ok(())
    }

    /// Moves a process in. The first of several writes may wait for the kernel for some milliseconds.
    pub(super) fn add(&self, pid: u32) -> Result<(), Error> {
        for (_, dir) in &self.dirs {
            let file = dir.join("cgroup.procs");
            fs::write(&file, pid.to_string())
                .map_err(|e| Error::step(format!("move the sandbox into {}", dir.display()), e))?;
        }
        Ok(())
    }

    /// The directories, each with the group into which to go before removing it.
    pub(super) fn exits(&self) -> Vec<(PathBuf, PathBuf)> {
        self.dirs
            .iter()
            .map(|(h, dir)| (dir.clone(), h.outside.clone()))
            .collect()
    }

    /// Sets the limits.
    pub(super) fn limit(&self, limits: &Limits) -> Result<(), Error> {
        for (hierarchy, dir) in &self.dirs {
            for (file, value, needed) in settings(hierarchy, limits) {
                let path = dir.join(file);
                if !needed && !path.exists() {
                    continue;
                }
                fs::write(&path, &value)
                    .map_err(|e| Error::step(format!("write {value} to {}", path.display()), e))?;
            }
        }
        Ok(())
    }

    /// Kills every process in it and removes it. Returns how many processes and directories there were.
    pub(super) fn end(&self) -> Result<(usize, usize), Error> {
        let mut processes = BTreeSet::new();
        let until = Instant::now() + EMPTY_WITHIN;
        let mut removed = 0;
        for (hierarchy, dir) in &self.dirs {
            loop {
                match fs::remove_dir(dir) {
                    Ok(()) => {
                        removed += 1;
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                    Err(error) if Instant::now() >= until => {
                        return Err(Error::step(
                            format!("remove the cgroup {}", dir.display()),
                            error,
                        ));
                    }
                    Err(_) => {
                        processes.extend(kill_all(hierarchy.version, dir));
                        // A version 1 group tells nobody that it became empty.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
        Ok((processes.len(), removed))
    }

    /// Where one write stops everything in it: its directory in a version 2 hierarchy.
    pub(super) fn freezable(&self) -> Option<PathBuf> {
        let mut dirs = self.dirs.iter();
        let (_, dir) = dirs.find(|(h, _)| h.version == Version::Two)?;
        Some(dir.clone())
    }

    /// Kills what is in it, without waiting.
    pub(super) fn kill(&self) {
        for (hierarchy, dir) in &self.dirs {
            if hierarchy.version == Version::Two && fs::write(dir.join("cgroup.kill"), "1").is_ok()
            {
                return;
            }
        }
    }
}

fn kill_all(version: Version, dir: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    // 0 stands for a process of a pid namespace that we cannot see; it is not ours to name.
    let pids: Vec<i32> = listed
        .lines()
        .filter_map(|l| l.parse().ok())
        .filter(|p| *p > 0)
        .collect();
    if version == Version::Two && fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return pids;
    }
    for pid in &pids {
        let Ok(handle) = super::record::Handle::of(*pid) else {
            continue;
        };
        // Between listing and opening the pid may have gone to a stranger: only a process that is still listed is killed.
        let again = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        if again.lines().any(|l| l.parse() == Ok(*pid)) {
            // Gone by itself is as good; anything else is seen by the caller, whose group does not become empty.
            let _ignored = handle.kill();
        }
    }
    pids
}

/// File, value and whether the file must be there, for each limit that this hierarchy holds.
fn settings(hierarchy: &Hierarchy, limits: &Limits) -> Vec<(&'static str, String, bool)> {
    let mut out = Vec::new();
    let has = |controller| hierarchy.controllers.contains(controller);
    let two = hierarchy.version == Version::Two;
    if let Some(bytes) = limits.memory_bytes.filter(|_| has("memory")) {
        if two {
            out.push(("memory.max", bytes.to_string(), true));
            out.push(("memory.swap.max", "0".to_owned(), false));
        } else {
            out.push(("memory.limit_in_bytes", bytes.to_string(), true));
            out.push(("memory.memsw.limit_in_bytes", bytes.to_string(), false));
        }
    }
    if let Some(pids) = limits.pids.filter(|_| has("pids")) {
        out.push(("pids.max", pids.to_string(), true));
    }
    if let Some(milli) = limits.cpu_milli.filter(|_| has("cpu")) {
        let quota = milli.saturating_mul(CPU_PERIOD / 1000);
        if two {
            out.push(("cpu.max", format!("{quota} {CPU_PERIOD}"), true));
        } else {
            out.push(("cpu.cfs_period_us", CPU_PERIOD.to_string(), true));
            out.push(("cpu.cfs_quota_us", quota.to_string(), true));
        }
    }
    out
}

#[cfg(test)]
mod tests;
