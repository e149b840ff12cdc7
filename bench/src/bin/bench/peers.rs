//! Other runtimes, on the same image and the same disk.
//!
//! crun before 1.9 refuses to run where cgroups are mounted in both versions, so the second is taken away from its sight:
//! peers are started by one thread that has a mount namespace of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};

use bench::Failure;
use rustix::mount::{UnmountFlags, unmount};

use crate::world::{Times, timed};

type Work = Box<dyn FnOnce() -> Result<Times, Failure> + Send>;

/// The thread that starts peers.
pub(crate) struct Peers {
    work: Sender<Work>,
    done: Receiver<Result<Times, Failure>>,
    bundle: PathBuf,
    state: PathBuf,
}

/// An OCI runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Crun,
    Runc,
}

pub(crate) const RUNTIMES: [Runtime; 2] = [Runtime::Crun, Runtime::Runc];

impl Runtime {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crun => "crun",
            Self::Runc => "runc",
        }
    }

    fn container(self) -> String {
        format!("durable-bench-{}-{}", self.name(), std::process::id())
    }
}

impl Peers {
    /// Makes the bundles that run `root`: one that sleeps, one that says `hi`.
    pub(crate) fn new(dir: &Path, root: &Path) -> Result<Self, Failure> {
        let bundle = dir.join("bundle");
        let made = write_bundle(&bundle.join("sleep"), root, &["sleep", "100000"])
            .and_then(|()| write_bundle(&bundle.join("hi"), root, &["echo", "hi"]));
        made.map_err(Failure::cannot("make an OCI bundle"))?;
        let (work, inbox) = channel::<Work>();
        let (outbox, done) = channel();
        std::thread::Builder::new()
            .name("peers".to_owned())
            .spawn(move || {
                hide_second_cgroups();
                for work in inbox {
                    if outbox.send(work()).is_err() {
                        return;
                    }
                }
            })
            .map_err(Failure::cannot("start the peers' thread"))?;
        let state = dir.join("oci");
        Ok(Self {
            work,
            done,
            bundle,
            state,
        })
    }

    /// Times a command on the peers' thread.
    pub(crate) fn timed(
        &self,
        mut command: Command,
        expected: &'static [u8],
    ) -> Result<Times, Failure> {
        let gone = || Failure::wrong("the peers' thread ended");
        let work: Work = Box::new(move || timed(&mut command, expected));
        self.work.send(work).map_err(|_| gone())?;
        self.done.recv().map_err(|_| gone())?
    }

    fn oci(&self, runtime: Runtime) -> Command {
        let mut command = Command::new(runtime.name());
        command.arg("--root").arg(self.state.join(runtime.name()));
        command
    }

    /// Starts the container that [`Peers::exec`] runs in.
    pub(crate) fn start(&self, runtime: Runtime) -> Result<(), Failure> {
        let mut command = self.oci(runtime);
        command
            .args(["run", "--detach", "--bundle"])
            .arg(self.bundle.join("sleep"))
            .arg(runtime.container());
        // What runs detached keeps its parent's pipes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "exec \"$@\" > /dev/null 2> \"$0\""]);
        shell.arg(self.state.with_extension("log"));
        shell.arg(command.get_program()).args(command.get_args());
        self.timed(shell, b"").map(drop)
    }

    pub(crate) fn exec(&self, runtime: Runtime, argv: &[&str]) -> Command {
        let mut command = self.oci(runtime);
        command.arg("exec").arg(runtime.container()).args(argv);
        command
    }

    /// Creates a container, runs `echo hi` in it and removes it.
    pub(crate) fn run(&self, runtime: Runtime) -> Command {
        let mut command = self.oci(runtime);
        command
            .args(["run", "--bundle"])
            .arg(self.bundle.join("hi"))
            .arg(format!("{}-run", runtime.container()));
        command
    }

    /// Removes what [`Peers::start`] made.
    pub(crate) fn stop(&self, runtime: Runtime) {
        let mut command = self.oci(runtime);
        command.args(["delete", "--force"]).arg(runtime.container());
        if let Err(failure) = self.timed(command, b"") {
            crate::say(&failure.chain());
        }
    }
}

/// `bwrap` with every namespace that we use, over the host's own programs.
pub(crate) fn bwrap() -> Command {
    let mut command = Command::new("bwrap");
    command.args(["--ro-bind", "/usr", "/usr"]);
    for dir in ["bin", "lib", "lib64", "sbin"] {
        if Path::new("/").join(dir).exists() {
            command.args(["--symlink", &format!("usr/{dir}"), &format!("/{dir}")]);
        }
    }
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]);
    command.args(["--unshare-all", "--die-with-parent", "echo", "hi"]);
    command
}

fn hide_second_cgroups() {
    if !matches!(workspace::private_mounts(), Ok(workspace::Mounts::Private)) {
        return;
    }
    // Not mounted there: then there is nothing to hide.
    let _absent = unmount("/sys/fs/cgroup/unified", UnmountFlags::DETACH);
}

fn write_bundle(bundle: &Path, root: &Path, argv: &[&str]) -> std::io::Result<()> {
    std::fs::create_dir_all(bundle)?;
    let made = Command::new("runc")
        .arg("spec")
        .current_dir(bundle)
        .stdin(Stdio::null())
        .status()?;
    if !made.success() {
        return Err(std::io::Error::other(format!("runc spec: {made}")));
    }
    let path = bundle.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = argv.iter().copied().collect();
    config["process"]["env"] = serde_json::json!(["PATH=/bin"]);
    // More open files than ours is no right that root always has.
    config["process"]["rlimits"] = serde_json::json!([]);
    config["root"] = serde_json::json!({"path": root, "readonly": true});
    std::fs::write(path, config.to_string())
}
