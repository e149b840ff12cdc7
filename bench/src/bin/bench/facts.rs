//! What a figure depends on besides the code: machine, kernel, disk, revision, versions.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

/// What stands above the table.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    revision: String,
    durable: String,
    kernel: String,
    cpus: String,
    disk: String,
    load_average: String,
    peers: Vec<String>,
}

impl Facts {
    pub(crate) fn gather(program: &Path, dir: &Path) -> Self {
        let uname = rustix::system::uname();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            revision: revision(),
            durable: first_line(Command::new(program).arg("--version")),
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            cpus: cpus(),
            disk: disk(dir),
            load_average: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            peers: ["crun", "runc", "bwrap", "mitmdump"]
                .map(|peer| first_line(Command::new(peer).arg("--version")))
                .to_vec(),
        }
    }

    pub(crate) fn lines(&self) -> String {
        format!(
            "revision {} · {} · {}\n{} · {}\ndisk {} · load average {}\n",
            self.revision,
            self.durable,
            self.peers.join(" · "),
            self.kernel,
            self.cpus,
            self.disk,
            self.load_average
        )
    }
}

fn first_line(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(out) => {
            let text = String::from_utf8_lossy(&out.stdout);
            text.lines().next().unwrap_or(&name).to_owned()
        }
        Err(_) => format!("{name}: not there"),
    }
}

fn revision() -> String {
    let git = |args: &[&str]| Command::new("git").args(args).output();
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Ok(out) if out.status.success() => {
            let clean = git(&["status", "--porcelain", "--untracked-files=no"]);
            let clean = clean.is_ok_and(|out| out.status.success() && out.stdout.is_empty());
            let mark = if clean { "" } else { " with changes" };
            format!("{}{mark}", String::from_utf8_lossy(&out.stdout).trim())
        }
        _ => "unknown".to_owned(),
    }
}

fn cpus() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, model)| model);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{count} × {model}")
}

/// Names the file system and the device below `dir`: the mount with the longest path that leads to it.
fn disk(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = table
        .lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let at = left.split(' ').nth(4)?;
            let options = left.split(' ').nth(5)?;
            let mut right = right.split(' ');
            let (kind, device) = (right.next()?, right.next()?);
            dir.starts_with(at)
                .then(|| (at.len(), format!("{kind} on {device} ({options})")))
        })
        .max_by_key(|(length, _)| *length);
    found.map_or_else(|| "unknown".to_owned(), |(_, text)| text)
}
