//! The container level: namespaces, cgroups, seccomp and capabilities of the host's own kernel.
//!
//! ```text
//!   launch   the daemon's side of a start            enter    the launcher's and PID 1's side
//!   wire     what the two say                        world    the root: overlay, pivot
//!   plan     what was decided                        special  /proc, /dev, /sys, our own places
//!   ids      users behind users                      place    mount points, safe from links
//!   trees    mounts of host directories              harden   what PID 1 gives up; seccomp
//!   cgroup   limits, kill                            record   PID 1, found again
//! ```

mod cgroup;
mod doctor;
mod enter;
mod harden;
mod host_image;
mod ids;
mod launch;
mod place;
mod plan;
mod record;
mod seccomp;
mod special;
mod trees;
mod wire;
mod world;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::Image;

use crate::{Check, Error, Level, Running, StartSpec, Swept};
use cgroup::Cgroups;
use ids::IdMap;
use launch::{Launcher, Program};
use plan::{Owners, Place, Plan, Tree, TreesCome};
use record::Handle;

pub use enter::{Entered, enter};

/// How long the kernel may take to end every process of a sandbox.
const DEAD_WITHIN: Duration = Duration::from_secs(30);

/// The container level on one data directory.
///
/// It keeps one launcher ready, a child process; dropped, it ends it. Sandboxes go on.
#[derive(Debug)]
pub struct Container(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    data: PathBuf,
    cgroups: Cgroups,
    ready: Mutex<Option<Launcher>>,
}

impl Container {
    /// Opens the level. `data` is the data directory: it keeps the generated root of `image: host` and names the cgroups.
    ///
    /// # Errors
    /// A data directory that cannot be used.
    pub fn new(data: &Path) -> Result<Self, Error> {
        let data = data
            .canonicalize()
            .map_err(|e| Error::step(format!("find the data directory {}", data.display()), e))?;
        let key = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex()[..12].to_owned();
        let cgroups = Cgroups::detect(&key);
        Ok(Self(Arc::new(Inner {
            data,
            cgroups,
            ready: Mutex::new(None),
        })))
    }

    /// Prepares a launcher in the background, so that the next [`Level::start`] with the same program is faster.
    ///
    /// After a start this happens by itself. A failure is told by the next start.
    pub fn warm(&self, binary: &Path, exe_args: &[String]) {
        if let Ok(program) = Program::new(binary, exe_args) {
            self.prepare(program);
        }
    }

    fn prepare(&self, program: Program) {
        let inner = Arc::downgrade(&self.0);
        let cgroups = self.0.cgroups.clone();
        let work = move || {
            // The next start meets the same error, with somebody to tell it to.
            let Ok(launcher) = Launcher::spawn(&cgroups, program) else {
                return;
            };
            if let Some(inner) = inner.upgrade() {
                let before = inner
                    .ready
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .replace(launcher);
                drop(before);
            }
        };
        // Without a thread the next start is only slower.
        let _ignored = std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(work);
    }

    fn launcher(&self, program: &Program) -> Result<Launcher, Error> {
        let ready = self
            .0
            .ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(mut launcher) = ready
            && launcher.program == *program
            && launcher.waits()
        {
            return Ok(launcher);
        }
        Launcher::spawn(&self.0.cgroups, program.clone())
    }

    fn images(&self) -> PathBuf {
        self.0.data.join("image-host")
    }

    fn plan(&self, spec: &StartSpec) -> Result<Plan, Error> {
        let ids = IdMap::choose(spec.sandbox)?;
        let upper = find(&spec.upper, "upper directory")?;
        let work = find(&spec.work, "work directory")?;
        let state = find(&spec.state, "state directory")?;
        let head = common(&upper, &work);
        let tree = |source: PathBuf, place, owners| Tree {
            source,
            place,
            owners,
        };
        let (lower, system) = match &spec.image {
            Image::Host => {
                let hidden = [self.0.data.as_path(), &upper, &work, &state];
                (
                    host_image::prepare(&self.images())?,
                    host_image::trees(&hidden)?,
                )
            }
            Image::Dir(path) => (image_directory(path, &[&upper, &work, &state])?, Vec::new()),
        };
        let mut trees = vec![
            tree(lower, Place::Lower, Owners::Same),
            tree(head.clone(), Place::Head, Owners::Same),
            tree(state, Place::State, Owners::SameIfPossible),
            tree(
                find(&spec.binary, "binary")?,
                Place::Binary,
                Owners::SameIfPossible,
            ),
        ];
        if let Some(harnesses) = &spec.harness_dir {
            trees.push(tree(
                find(harnesses, "harness directory")?,
                Place::Harness,
                Owners::SameIfPossible,
            ));
        }
        trees.extend(system);
        let relative = |path: &Path| path.strip_prefix(&head).unwrap_or(path).to_owned();
        Ok(Plan {
            hostname: spec.hostname.clone(),
            limits: spec.limits.clone(),
            ids,
            upper: relative(&upper),
            work: relative(&work),
            trees,
            trees_come: match ids {
                IdMap::Range { .. } => TreesCome::FromDaemon,
                IdMap::Delegated { .. } | IdMap::Single { .. } => TreesCome::FromPaths,
            },
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(
            self.ready
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        self.cgroups.leave();
    }
}

impl Level for Container {
    fn start(&self, spec: &StartSpec) -> Result<Running, Error> {
        self.0.cgroups.check(&spec.limits)?;
        let program = Program::new(&spec.binary, &spec.exe_args)?;
        let plan = self.plan(spec)?;
        let launcher = self.launcher(&program)?;
        let running = launcher.start(spec, plan)?;
        self.prepare(program);
        Ok(running)
    }

    fn find(&self, state: &Path) -> Option<Running> {
        record::find(state)
    }

    fn alive(&self, running: &Running) -> bool {
        Handle::open(running).is_some()
    }

    fn kill(&self, running: &Running) -> Result<(), Error> {
        let group = running
            .group
            .as_deref()
            .map(|name| self.0.cgroups.group(name));
        if let Some(handle) = Handle::open(running) {
            if let Some(group) = &group {
                group.kill();
            }
            let gone = handle.kill().and_then(|()| handle.wait(DEAD_WITHIN));
            let gone =
                gone.map_err(|e| Error::step(format!("kill sandbox {}", running.sandbox), e))?;
            if !gone {
                let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                return Err(Error::step(
                    format!("kill every process of sandbox {}", running.sandbox),
                    late,
                ));
            }
        }
        if let Some(group) = group {
            group.end()?;
        }
        Ok(())
    }

    fn clear(&self, state: &Path) -> Result<(), Error> {
        let Some(running) = record::read(state) else {
            return Ok(());
        };
        if self.alive(&running) {
            let source = std::io::Error::from(std::io::ErrorKind::ResourceBusy);
            return Err(Error::step(
                format!("clear up after sandbox {}, which lives", running.sandbox),
                source,
            ));
        }
        // A group of an earlier boot is gone, and its name may be somebody else's by now.
        if let Some(name) = running
            .group
            .filter(|_| record::machine_boot().is_ok_and(|b| b == running.machine_boot))
        {
            self.0.cgroups.group(&name).end()?;
        }
        record::remove(state);
        Ok(())
    }

    fn sweep(&self, live: &[Running]) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let used: Vec<_> = live.iter().filter_map(|r| r.group.as_deref()).collect();
        let ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = ready.as_ref().and_then(Launcher::group_name);
        for name in self.0.cgroups.names() {
            if !used.contains(&name.as_str()) && spare != Some(&name) {
                let (killed, groups) = self.0.cgroups.group(&name).end()?;
                swept.killed += killed;
                swept.groups += groups;
            }
        }
        drop(ready);
        // A generated root cannot be told to be in use from outside; it is when anything lives.
        if live.is_empty() {
            swept.directories = host_image::sweep(&self.images(), &[])?;
        }
        Ok(swept)
    }

    fn doctor(&self) -> Vec<Check> {
        doctor::look(&self.0.data, &self.0.cgroups)
    }
}

fn find(path: &Path, what: &str) -> Result<PathBuf, Error> {
    path.canonicalize()
        .map_err(|e| Error::step(format!("find the {what} {}", path.display()), e))
}

/// The image's directory, if it can serve as the layer under `hidden`.
fn image_directory(path: &Path, hidden: &[&Path]) -> Result<PathBuf, Error> {
    let refuse = |why: String| Error::Image {
        path: path.to_owned(),
        why,
    };
    let found = path.canonicalize().map_err(|e| refuse(e.to_string()))?;
    if !found.is_dir() {
        return Err(refuse("it is no directory".to_owned()));
    }
    match hidden.iter().find(|h| h.starts_with(&found)) {
        Some(inside) => Err(refuse(format!(
            "it contains the sandbox's own {}",
            inside.display()
        ))),
        None => Ok(found),
    }
}

/// The deepest directory that holds both.
fn common(a: &Path, b: &Path) -> PathBuf {
    a.components()
        .zip(b.components())
        .take_while(|(x, y)| x == y)
        .map(|(x, _)| x)
        .collect()
}
