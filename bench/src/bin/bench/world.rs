//! The place of one run: a directory, a daemon in it, and a small image that every runtime gets.

use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::{Api, Daemon, Failure, daemon};
use protocol::Image;
use tempfile::TempDir;

/// Programs of the small image; all of them are busybox.
const APPLETS: [&str; 6] = ["sh", "true", "echo", "cat", "sleep", "mkdir"];

/// Where everything of one run is. Dropped, nothing of it is left.
pub(crate) struct World {
    pub(crate) program: PathBuf,
    daemon: Option<Daemon>,
    dir: TempDir,
}

impl World {
    pub(crate) fn new(parent: &Path) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("durable-bench-")
            .tempdir_in(parent)
            .map_err(Failure::cannot(format!(
                "make a directory in {}",
                parent.display()
            )))?;
        let mut world = Self {
            program: daemon::program(),
            daemon: None,
            dir,
        };
        make_root(&world.root()).map_err(Failure::cannot("make an image of busybox"))?;
        world.daemon = Some(world.start()?);
        Ok(world)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The unpacked root that all runtimes run.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir().join("root")
    }

    /// The same for us.
    pub(crate) fn image(&self) -> Image {
        Image::Dir(self.root())
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir().join("data")
    }

    fn start(&self) -> Result<Daemon, Failure> {
        Daemon::start(&self.program, &self.data(), &self.dir().join("daemon.log"))
    }

    pub(crate) fn connect(&self) -> Result<Api, Failure> {
        Api::connect(&self.data())
    }

    /// The daemon's process.
    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::pid)
    }

    /// Kills the daemon and starts the next; returns how long that took to serve.
    pub(crate) fn restart(&mut self) -> Result<Duration, Failure> {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill()?;
        }
        let daemon = self.start()?;
        let took = daemon.ready_after;
        self.daemon = Some(daemon);
        Ok(took)
    }

    /// `durable` on this run's data.
    pub(crate) fn durable(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data").arg(self.data()).args(args);
        command
    }

    fn clear(&mut self) -> Result<(), Failure> {
        let Some(daemon) = self.daemon.take() else {
            return Ok(());
        };
        let mut api = daemon.connect()?;
        for sandbox in api.list()? {
            api.remove(sandbox.name.as_str())?;
        }
        daemon.terminate()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Err(failure) = self.clear() {
            crate::say(&format!("something is left behind: {}", failure.chain()));
        }
    }
}

fn make_root(root: &Path) -> std::io::Result<()> {
    for dir in [
        "bin",
        "proc",
        "dev",
        "sys",
        "tmp",
        "etc",
        "run",
        "root",
        "workspace",
    ] {
        std::fs::create_dir_all(root.join(dir))?;
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox"))?;
    std::fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    Ok(())
}

/// When a command's first output came and when it ended, in milliseconds.
pub(crate) struct Times {
    pub(crate) first: f64,
    pub(crate) end: f64,
}

/// Runs a command that must succeed and print exactly `expected`.
pub(crate) fn timed(command: &mut Command, expected: &[u8]) -> Result<Times, Failure> {
    let what = format!("run {}", command.get_program().to_string_lossy());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().map_err(Failure::cannot(what.clone()))?;
    let mut out = Vec::new();
    let mut first = None;
    if let Some(mut stdout) = child.stdout.take() {
        let mut buffer = [0; 4096];
        loop {
            let read = stdout
                .read(&mut buffer)
                .map_err(Failure::cannot(what.clone()))?;
            if read == 0 {
                break;
            }
            out.extend_from_slice(&buffer[..read]);
            // The whole of what is wanted, not a piece of it.
            if first.is_none() && out.len() >= expected.len() {
                first = Some(begun.elapsed());
            }
        }
    }
    let output = child
        .wait_with_output()
        .map_err(Failure::cannot(what.clone()))?;
    let end = begun.elapsed();
    if !output.status.success() || out != expected {
        return Err(Failure::wrong(format!(
            "{what}: {}, printed {:?}, said {:?}",
            output.status,
            String::from_utf8_lossy(&out),
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    Ok(Times {
        first: millis(first.unwrap_or(end)),
        end: millis(end),
    })
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
