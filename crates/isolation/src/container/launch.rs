//! The outside: how the daemon spawns a launcher, waits with one in hand, and brings a sandbox up through it.
//!
//! Two things that take long need not know which sandbox is meant: executing the binary, and moving a process into cgroups
//! (the kernel waits for a grace period of its own, 7 to 14 ms where it was measured). So one launcher is kept ready.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::cgroup::{Cgroups, Group};
use super::plan::{Place, Plan, TreesCome};
use super::record::{self, Handle};
use super::trees::Opened;
use super::wire::{Failure, GO, HELLO, Link, MAX_FDS, ToLauncher};
use crate::{Error, Running, StartSpec};

/// A start that takes longer is hung; the machine may be very busy.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The supervisor's own messages, in the state directory.
const LOG: &str = "supervisor.log";
/// How much of its end goes into an error.
const LOG_TAIL: i64 = 2048;
/// Of the daemon's environment only these go to a launcher: the rest may hold keys.
const ENVIRONMENT: [&str; 2] = ["DURABLE_FAILPOINT", "DURABLE_FAILPOINT_SOCKET"];

/// What is executed as a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    binary: PathBuf,
    args: Vec<String>,
    /// Device, inode and change time: a replaced binary is another program.
    identity: (u64, u64, i64, i64),
}

impl Program {
    pub(super) fn new(binary: &Path, args: &[String]) -> Result<Self, Error> {
        let found = fs::metadata(binary)
            .map_err(|e| Error::step(format!("find the binary {}", binary.display()), e))?;
        Ok(Self {
            binary: binary.to_owned(),
            args: args.to_vec(),
            identity: (found.dev(), found.ino(), found.ctime(), found.ctime_nsec()),
        })
    }
}

/// A spawned launcher, in its cgroups. Dropped, it is killed and they are removed.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) program: Program,
    child: Child,
    link: Link,
    group: Option<Group>,
}

impl Launcher {
    pub(super) fn spawn(cgroups: &Cgroups, program: Program) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::step(format!("spawn {}", program.binary.display()), e);
        let (link, theirs) = Link::pair().map_err(failed)?;
        let kept = ENVIRONMENT
            .iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?)));
        let child = Command::new(&program.binary)
            .args(&program.args)
            .env_clear()
            .envs(kept)
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let mut launcher = Self {
            program,
            child,
            link,
            group: None,
        };
        if let Some(group) = cgroups.fresh()? {
            // Told before they are made: if we are killed at any moment from here, the launcher removes them.
            let park = ToLauncher::Park {
                groups: group.exits(),
            };
            launcher
                .link
                .send_json(&park)
                .map_err(|e| Error::step("talk to the launcher", e))?;
            let group = launcher.group.insert(group);
            group.make()?;
            group.add(launcher.child.id())?;
        }
        Ok(launcher)
    }

    pub(super) fn group_name(&self) -> Option<&str> {
        self.group.as_ref().map(|group| group.name.as_str())
    }

    /// Whether it still waits.
    pub(super) fn waits(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts the sandbox and returns when it serves.
    pub(super) fn start(mut self, spec: &StartSpec, plan: Plan) -> Result<Running, Error> {
        let log = open_log(&spec.state)?;
        let limits = plan.limits.clone();
        let (ids, trees, come) = (plan.ids, plan.trees.clone(), plan.trees_come);
        let start = serde_json::to_vec(&ToLauncher::Start(Box::new(plan))).map_err(io::Error::from);
        start
            .and_then(|start| self.link.send(&start, &[log.as_fd()]))
            .map_err(|e| Error::step("talk to the launcher", e))?;
        if let Some(group) = &self.group {
            group.limit(&limits)?;
        }
        let hello = self.receive(&log)?;
        let Some(pid) = hello.pid.filter(|_| hello.bytes == HELLO) else {
            return Err(Error::step(
                "understand the launcher",
                io::ErrorKind::InvalidData,
            ));
        };
        let init = Handle::of(pid).map_err(|e| Error::step("hold PID 1", e))?;
        let steps = || -> Result<Running, Error> {
            ids.write(pid)?;
            let mounts = match come {
                TreesCome::FromDaemon => self.open_trees(pid, &trees, ids.root())?,
                TreesCome::FromPaths => Vec::new(),
            };
            let running = Running {
                sandbox: spec.sandbox,
                pid,
                start_time: record::start_time(pid)?,
                machine_boot: record::machine_boot()?,
                group: self.group.as_ref().map(|g| g.name.clone()),
            };
            // From `go` on the sandbox no longer needs us, so it must be findable before.
            record::write(&spec.state, &running)?;
            failpoint::hit("isolation.recorded");
            let fds: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
            self.link
                .send(GO, &fds)
                .map_err(|e| Error::step("talk to PID 1", e))?;
            drop(fds);
            drop(mounts);
            self.receive(&log)?;
            Ok(running)
        };
        let done = steps();
        if done.is_err() {
            // The error is what counts; a process that outlives this keeps its cgroup, where a sweep finds it.
            let _ignored = init.kill().and_then(|()| init.wait(START_WITHIN));
            record::remove(&spec.state);
        } else {
            self.group = None;
        }
        done
    }

    fn open_trees(
        &self,
        pid: i32,
        trees: &[super::plan::Tree],
        root: u32,
    ) -> Result<Vec<OwnedFd>, Error> {
        let path = format!("/proc/{pid}/ns/user");
        let userns = File::open(&path).map_err(|e| Error::step(format!("open {path}"), e))?;
        if trees.len() > MAX_FDS {
            return Err(Error::step(
                "hand over that many trees",
                io::ErrorKind::InvalidInput,
            ));
        }
        let mut mounts = Vec::with_capacity(trees.len());
        for tree in trees {
            let Opened { mount, same_owners } = tree.open(Some(userns.as_fd()))?;
            if tree.place == Place::State && !same_owners {
                give_to(&tree.source, root).map_err(|e| {
                    Error::step(format!("give {} to the sandbox", tree.source.display()), e)
                })?;
            }
            mounts.push(mount);
        }
        Ok(mounts)
    }

    /// Receives a message that is no failure.
    fn receive(&self, log: &File) -> Result<super::wire::Message, Error> {
        let message = self
            .link
            .receive(Some(START_WITHIN))
            .map_err(|e| Error::step("wait for the sandbox to start", e))?
            .ok_or_else(|| Error::Inside {
                message: format!("the supervisor ended before it served{}", tail(log)),
                remedy: None,
            })?;
        if message.bytes.len() > 1 {
            let failure = serde_json::from_slice::<Failure>(&message.bytes)
                .map_err(|e| Error::step("understand the launcher", io::Error::from(e)))?;
            return Err(Error::Inside {
                message: failure.message,
                remedy: failure.remedy,
            });
        }
        Ok(message)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // A launcher that forked PID 1 has ended by itself; this only takes its status.
        let _ignored = self.child.kill();
        let _ignored = self.child.wait();
        if let Some(group) = self.group.take() {
            // An undo of our own; what it misses a sweep finds.
            let _ignored = group.end();
        }
    }
}

fn open_log(state: &Path) -> Result<File, Error> {
    let path = state.join(LOG);
    File::options()
        .create(true)
        .append(true)
        .read(true)
        .open(&path)
        .map_err(|e| Error::step(format!("open {}", path.display()), e))
}

fn tail(mut log: &File) -> String {
    let mut bytes = Vec::new();
    let length = i64::try_from(log.metadata().map_or(0, |m| m.len())).unwrap_or(0);
    let read = log
        .seek(SeekFrom::End(-length.min(LOG_TAIL)))
        .and_then(|_| log.read_to_end(&mut bytes));
    match read {
        Ok(n) if n > 0 => format!(
            "; its log ends: {}",
            String::from_utf8_lossy(&bytes).trim().escape_debug()
        ),
        _ => String::new(),
    }
}

/// Gives a directory tree to a host user; links in it are not followed.
fn give_to(path: &Path, id: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(id), Some(id))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(&entry?.path(), id)?;
        }
    }
    Ok(())
}
