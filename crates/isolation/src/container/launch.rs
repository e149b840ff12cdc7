//! The outside: how the daemon spawns a launcher, waits with one in hand, and brings a sandbox up through it.
//!
//! Most of what takes long need not know which sandbox is meant: executing the binary, moving a process into cgroups (the
//! kernel waits for a grace period of its own, 7 to 14 ms where it was measured), making namespaces. So one PID 1 is kept
//! ready, in namespaces without ids and still without a root of its own.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::cgroup::{Cgroups, Group};
use super::nofile;
use super::plan::{Place, Plan, TreesCome};
use super::record::{self, Handle};
use super::trees::Opened;
use super::wire::{Failure, HELLO, Link, Message, ToLauncher};
use crate::{Error, Network, Running, StartSpec};

/// A start that takes longer is hung; the machine may be very busy.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The supervisor's own messages, in the state directory.
const LOG: &str = "supervisor.log";
/// How much of its end goes into an error.
const LOG_TAIL: i64 = 2048;
/// Of the daemon's environment only these go to a launcher: the rest may hold keys.
const ENVIRONMENT: [&str; 2] = ["DURABLE_FAILPOINT", "DURABLE_FAILPOINT_SOCKET"];

/// What is executed as a launcher, and what it makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    binary: PathBuf,
    args: Vec<String>,
    /// Made before it is known which sandbox it is for.
    network: Network,
    /// Device, inode and change time: a replaced binary is another program.
    identity: (u64, u64, i64, i64),
}

impl Program {
    pub(super) fn new(binary: &Path, args: &[String], network: Network) -> Result<Self, Error> {
        let found = fs::metadata(binary)
            .map_err(|e| Error::step(format!("find the binary {}", binary.display()), e))?;
        Ok(Self {
            binary: binary.to_owned(),
            args: args.to_vec(),
            network,
            identity: (found.dev(), found.ino(), found.ctime(), found.ctime_nsec()),
        })
    }
}

/// A PID 1 that waits, in its cgroups. Dropped before it became a sandbox, it is killed and they are removed.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) program: Program,
    link: Link,
    pid: i32,
    init: Handle,
    group: Option<Group>,
    is_sandbox: bool,
}

/// The process that was spawned, until it has forked PID 1 and ended.
struct Spawned {
    child: Child,
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
        nofile::as_before(child.id());
        let mut spawned = Spawned { child, group: None };
        if let Some(group) = cgroups.fresh()? {
            // Told before they are made: if we are killed at any moment from here, the launcher removes them.
            tell(
                &link,
                &ToLauncher::Park {
                    groups: group.exits(),
                },
            )?;
            let group = spawned.group.insert(group);
            group.make()?;
            group.add(spawned.child.id())?;
        }
        let network = program.network;
        tell(&link, &ToLauncher::Enter { network })?;
        let hello = receive(&link, None)?;
        let Some(pid) = hello.pid.filter(|_| hello.bytes == HELLO) else {
            return Err(Error::step(
                "understand the launcher",
                io::ErrorKind::InvalidData,
            ));
        };
        let init = Handle::of(pid).map_err(|e| Error::step("hold PID 1", e))?;
        let group = spawned.group.take();
        Ok(Self {
            program,
            link,
            pid,
            init,
            group,
            is_sandbox: false,
        })
    }

    pub(super) fn group_name(&self) -> Option<&str> {
        self.group.as_ref().map(|group| group.name.as_str())
    }

    /// Whether it still waits.
    pub(super) fn waits(&self) -> bool {
        !self.init.has_ended()
    }

    /// Starts the sandbox and returns when it serves.
    pub(super) fn start(mut self, spec: &StartSpec, plan: Plan) -> Result<Running, Error> {
        let done = self.bring_up(spec, plan);
        match &done {
            Ok(_) => self.is_sandbox = true,
            Err(_) => record::remove(&spec.state),
        }
        done
    }

    fn bring_up(&self, spec: &StartSpec, plan: Plan) -> Result<Running, Error> {
        if let Some(group) = &self.group {
            group.limit(&plan.limits)?;
        }
        plan.ids.write(self.pid)?;
        let mounts = match plan.trees_come {
            TreesCome::FromDaemon => self.open_trees(&plan)?,
            TreesCome::FromPaths => Vec::new(),
        };
        let log = open_log(&spec.state)?;
        let running = Running {
            sandbox: spec.sandbox,
            pid: self.pid,
            start_time: record::start_time(self.pid)?,
            machine_boot: record::machine_boot()?,
            group: self.group_name().map(str::to_owned),
        };
        // From `Start` on the sandbox no longer needs us, so it must be findable before.
        record::write(&spec.state, &running)?;
        failpoint::hit("isolation.recorded");
        let fds: Vec<_> = iter::once(log.as_fd())
            .chain(mounts.iter().map(AsFd::as_fd))
            .collect();
        serde_json::to_vec(&ToLauncher::Start(Box::new(plan)))
            .map_err(io::Error::from)
            .and_then(|start| self.link.send(&start, &fds))
            .map_err(|e| Error::step("talk to PID 1", e))?;
        receive(&self.link, Some(&log))?;
        Ok(running)
    }

    fn open_trees(&self, plan: &Plan) -> Result<Vec<OwnedFd>, Error> {
        let path = format!("/proc/{}/ns/user", self.pid);
        let userns = File::open(&path).map_err(|e| Error::step(format!("open {path}"), e))?;
        let mut mounts = Vec::with_capacity(plan.trees.len());
        for tree in &plan.trees {
            let Opened { mount, same_owners } = tree.open(Some(userns.as_fd()))?;
            if tree.place == Place::State && !same_owners {
                give_to(&tree.source, plan.ids.root()).map_err(|e| {
                    Error::step(format!("give {} to the sandbox", tree.source.display()), e)
                })?;
            }
            mounts.push(mount);
        }
        Ok(mounts)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if self.is_sandbox {
            return;
        }
        // What outlives this keeps its cgroup, where a sweep finds it.
        let _ignored = self.init.kill().and_then(|()| self.init.wait(START_WITHIN));
        if let Some(group) = &self.group {
            let _ignored = group.end();
        }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // One that forked has ended by itself; this only takes its status.
        let _ignored = self.child.kill();
        let _ignored = self.child.wait();
        if let Some(group) = &self.group {
            let _ignored = group.end();
        }
    }
}

fn tell(link: &Link, message: &ToLauncher) -> Result<(), Error> {
    link.send_json(message)
        .map_err(|e| Error::step("talk to the launcher", e))
}

/// Receives a message that is no failure. If there is none, the log's end goes into the error.
fn receive(link: &Link, log: Option<&File>) -> Result<Message, Error> {
    let message = link
        .receive(Some(START_WITHIN))
        .map_err(|e| Error::step("wait for the sandbox to start", e))?
        .ok_or_else(|| Error::Inside {
            message: format!(
                "the supervisor ended before it served{}",
                log.map(tail).unwrap_or_default()
            ),
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
