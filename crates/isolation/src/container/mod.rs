//! The container level: namespaces, cgroups, seccomp and capabilities of the host's own kernel.
//!
//! ```text
//!   launch   the daemon's side of a start            enter    the launcher's and PID 1's side
//!   wire     what the two say                        world    the root: overlay, pivot
//!   plan     what was decided                        special  /proc, /dev, /sys, our own places
//!   ids      users behind users                      place    mount points, safe from links
//!   trees    mounts of host directories              harden   what PID 1 gives up; seccomp
//!   cgroup   limits, kill                            record   PID 1, found again
//!   spare    a launcher that waits                   freeze   stopped for an instant
//!   door     the network, and its one way out        trust    certificates
//!   cover    files of ours over the image's          identity machine-id
//! ```

mod cgroup;
mod cover;
mod doctor;
mod door;
mod enter;
mod freeze;
mod harden;
mod host_image;
mod identity;
mod ids;
mod launch;
mod nofile;
mod place;
mod plan;
mod record;
mod seccomp;
mod spare;
mod special;
mod trees;
mod trust;
mod wire;
mod world;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::Image;

use crate::{Check, Error, Frozen, Level, Network, Running, StartSpec, Swept};
use cgroup::{Cgroups, Group};
use freeze::Freezer;
use launch::{Launcher, Program};
use plan::Plan;
use record::Handle;
use spare::{Spare, When};

pub use door::Doors;
pub use enter::{Entered, enter};
pub use freeze::guard;
pub use nofile::many_files;

/// How long the kernel may take to end every process of a sandbox.
const DEAD_WITHIN: Duration = Duration::from_secs(30);

/// The container level on one data directory.
///
/// It keeps one launcher ready, a child process; dropped, it ends it. Sandboxes go on.
#[derive(Debug)]
pub struct Container {
    data: PathBuf,
    cgroups: Cgroups,
    spare: Spare,
    freezer: Arc<Freezer>,
}

impl Container {
    /// Opens the level. `data` is the data directory: it keeps the generated root of `image: host` and names the cgroups.
    ///
    /// # Errors
    /// A data directory that cannot be used.
    pub fn new(data: &Path) -> Result<Self, Error> {
        let data = plan::find(data, "data directory")?;
        let key = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex()[..12].to_owned();
        Ok(Self {
            data,
            cgroups: Cgroups::detect(&key),
            spare: Spare::default(),
            freezer: Arc::default(),
        })
    }

    /// Prepares a launcher in the background, so that the next [`Level::start`] with the same program and network is faster.
    ///
    /// After a start this happens by itself. A failure is told by the next start.
    pub fn warm(&self, binary: &Path, exe_args: &[String], network: Network) {
        if let Ok(program) = Program::new(binary, exe_args, network) {
            self.spare.prepare(&self.cgroups, program, When::Now);
        }
    }

    /// Names the program and the arguments with which it calls [`guard`]. Without one, nothing is ever stopped: see
    /// [`Level::freeze`].
    pub fn guard_with(&self, binary: &Path, args: &[String]) {
        self.freezer.set_guard(binary, args);
    }

    /// A group of an earlier boot is gone, and its name may be somebody else's by now.
    fn group_of(&self, running: &Running) -> Option<Group> {
        let name = running.group.as_deref()?;
        let same_boot = record::machine_boot().is_ok_and(|boot| boot == running.machine_boot);
        same_boot.then(|| self.cgroups.group(name))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.spare.end();
        self.cgroups.leave();
    }
}

impl Level for Container {
    fn start(&self, spec: &StartSpec) -> Result<Running, Error> {
        self.cgroups.check(&spec.limits)?;
        let program = Program::new(&spec.binary, &spec.exe_args, spec.network())?;
        let plan = Plan::of(spec, &self.data)?;
        let launcher = match self.spare.take(&program) {
            Some(launcher) => launcher,
            None => Launcher::spawn(&self.cgroups, program.clone())?,
        };
        let running = launcher.start(spec, plan)?;
        self.spare.prepare(&self.cgroups, program, When::Rested);
        Ok(running)
    }

    fn find(&self, state: &Path) -> Option<Running> {
        record::find(state)
    }

    fn alive(&self, running: &Running) -> bool {
        Handle::open(running).is_some()
    }

    fn kill(&self, running: &Running) -> Result<(), Error> {
        let group = self.group_of(running);
        if let Some(handle) = Handle::open(running) {
            if let Some(group) = &group {
                group.kill();
            }
            let gone = handle
                .kill()
                .and_then(|()| handle.wait(DEAD_WITHIN))
                .map_err(|e| Error::step(format!("kill sandbox {}", running.sandbox), e))?;
            if !gone {
                let step = format!("kill every process of sandbox {}", running.sandbox);
                return Err(Error::step(step, io::ErrorKind::TimedOut));
            }
        }
        if let Some(group) = group {
            group.end()?;
        }
        Ok(())
    }

    fn freeze(&self, running: &Running) -> Option<Frozen> {
        let group = self.group_of(running)?.freezable()?;
        let freezer = self.freezer.clone();
        freezer
            .freeze(&group)
            .then(|| Frozen::new(move || freezer.thaw(&group)))
    }

    fn thaw(&self, running: &Running) {
        if let Some(group) = self.group_of(running).and_then(|g| g.freezable()) {
            self.freezer.thaw(&group);
        }
    }

    fn clear(&self, state: &Path) -> Result<(), Error> {
        let Some(running) = record::read(state) else {
            return Ok(());
        };
        if self.alive(&running) {
            let step = format!("clear up after sandbox {}, which lives", running.sandbox);
            return Err(Error::step(step, io::ErrorKind::ResourceBusy));
        }
        if let Some(group) = self.group_of(&running) {
            group.end()?;
        }
        record::remove(state);
        Ok(())
    }

    fn sweep(&self, live: &[Running]) -> Result<Swept, Error> {
        let mut swept = Swept::default();
        let used: Vec<_> = live.iter().filter_map(|r| r.group.as_deref()).collect();
        self.spare.hold(|waiting| {
            for name in self.cgroups.names() {
                if !used.contains(&name.as_str()) && waiting != Some(&name) {
                    let (killed, groups) = self.cgroups.group(&name).end()?;
                    swept.killed += killed;
                    swept.groups += groups;
                }
            }
            Ok::<(), Error>(())
        })?;
        // Which generated root a sandbox stands on cannot be seen from outside; so all stay while anything lives.
        if live.is_empty() {
            swept.directories = host_image::sweep(&self.data)?;
        }
        Ok(swept)
    }

    fn lower(&self, image: &Image) -> Result<PathBuf, Error> {
        match image {
            Image::Host => host_image::prepare(&self.data),
            Image::Dir(path) => plan::find(path, "image"),
            Image::Oci(_) | Image::OciArchive(_) | Image::DockerArchive(_) => {
                Err(plan::packed(image))
            }
        }
    }

    fn doctor(&self) -> Vec<Check> {
        doctor::look(&self.data, &self.cgroups)
    }
}
