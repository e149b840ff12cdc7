//! Attempts to get out of a sandbox, made from inside: what `durable doctor --probe` tells of.
//!
//! Each runs in a process of its own, so that none helps another and one that is killed has told its result by that. None changes
//! anything where it succeeds, but for what it takes back at once. Outside of a sandbox they succeed, as far as the user may:
//! that is how they are known to be able to.

mod files;
mod kernel;
mod limits;
mod network;
mod processes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Namespaces that a sandbox has of its own.
const NAMESPACES: [&str; 6] = ["cgroup", "ipc", "mnt", "net", "pid", "uts"];

/// What the host is like, for whoever compares it with what is seen inside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Its namespaces.
    pub namespaces: BTreeMap<String, PathBuf>,
    /// An abstract socket that somebody listens at.
    pub socket: String,
    /// A port of its loopback that somebody listens at.
    pub port: u16,
    /// A directory that is there.
    pub dir: PathBuf,
    /// The sandbox's limit of processes, where it has one that is held.
    pub pids: Option<u64>,
    /// Its limit of memory, in bytes.
    pub memory: Option<u64>,
}

/// What listens on the host meanwhile, to be found by whoever gets there.
#[derive(Debug)]
pub struct Bait {
    _unix: UnixListener,
    _tcp: TcpListener,
}

impl Host {
    /// Looks at the machine that this process is on, and puts out what can be found there. `dir` is not in the sandbox.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn look(dir: &Path) -> io::Result<(Self, Bait)> {
        let socket = format!("durable-probe-{}", std::process::id());
        let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let host = Self {
            namespaces: NAMESPACES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), namespace(name)?)))
                .collect(),
            socket,
            port: tcp.local_addr()?.port(),
            dir: dir.to_owned(),
            pids: None,
            memory: None,
        };
        let bait = Bait {
            _unix: unix,
            _tcp: tcp,
        };
        Ok((host, bait))
    }
}

fn namespace(name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/ns/{name}")).ok()
}

/// How an attempt went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The sandbox held.
    Held,
    /// It worked: there is a way out.
    Open,
    /// It could not be made here, and says nothing.
    Untried,
}

/// An attempt and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// What was attempted.
    pub attempt: String,
    /// How it went.
    pub outcome: Outcome,
    /// What was seen, in words.
    pub found: String,
}

/// What an attempt says of itself.
struct Result {
    outcome: Outcome,
    found: String,
}

impl Result {
    fn held(found: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Held,
            found: found.into(),
        }
    }

    fn open(found: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Open,
            found: found.into(),
        }
    }

    fn untried(found: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Untried,
            found: found.into(),
        }
    }

    /// It is open where it worked, and any failure is the sandbox's.
    fn of<T, E: std::fmt::Display>(done: std::result::Result<T, E>, open: &str) -> Self {
        match done {
            Ok(_) => Self::open(open),
            Err(error) => Self::held(error.to_string()),
        }
    }
}

/// One thing to try.
struct Attempt {
    name: &'static str,
    make: Make,
}

enum Make {
    Call(crate::sys::calls::Call),
    Run(fn(&Host) -> Result),
}

fn all() -> impl Iterator<Item = &'static Attempt> {
    let parts = [
        kernel::ATTEMPTS,
        processes::ATTEMPTS,
        files::ATTEMPTS,
        network::ATTEMPTS,
        limits::ATTEMPTS,
    ];
    parts.into_iter().flatten()
}

/// How many attempts there are.
#[must_use]
pub fn count() -> usize {
    all().count()
}

/// `durable __escape HOST`: makes every attempt, and prints a line of JSON for each; with a name behind it, that one in this process.
/// Returns the exit code.
#[must_use]
pub fn main(args: &[OsString]) -> i32 {
    let host = args
        .first()
        .and_then(|host| serde_json::from_str(host.to_str()?).ok());
    let Some(host) = host else { return 2 };
    let mut out = io::stdout();
    let mut tell = |tried: &Tried| -> io::Result<()> {
        serde_json::to_writer(&mut out, tried)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    let told = match args.get(1) {
        None => all().try_for_each(|attempt| tell(&apart(attempt, &args[0]))),
        Some(name) => all()
            .filter(|attempt| name == attempt.name)
            .try_for_each(|attempt| tell(&here(attempt, &host))),
    };
    i32::from(told.is_err())
}

fn here(attempt: &Attempt, host: &Host) -> Tried {
    let Result { outcome, found } = match attempt.make {
        Make::Call(call) => kernel::refused(call.attempt()),
        Make::Run(run) => run(host),
    };
    Tried {
        attempt: attempt.name.to_owned(),
        outcome,
        found,
    }
}

/// Makes an attempt in a process of its own.
fn apart(attempt: &Attempt, host: &OsString) -> Tried {
    let started = std::env::current_exe().and_then(|this| {
        Command::new(this)
            .args([
                OsString::from("__escape"),
                host.clone(),
                attempt.name.into(),
            ])
            .stdin(std::process::Stdio::null())
            .output()
    });
    let (outcome, found) = match started {
        Ok(done) => match (serde_json::from_slice(&done.stdout), done.status.signal()) {
            (Ok(tried), _) => return tried,
            (Err(_), Some(signal)) => (
                Outcome::Held,
                format!("whoever tried was killed (signal {signal})"),
            ),
            (Err(_), None) => (Outcome::Untried, format!("it ended with {}", done.status)),
        },
        Err(error) => (
            Outcome::Untried,
            format!("it could not be started: {error}"),
        ),
    };
    Tried {
        attempt: attempt.name.to_owned(),
        outcome,
        found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is chosen by that, and one of them alone tells a result.
    #[test]
    fn each_attempt_has_a_name_of_its_own() {
        let mut names: Vec<&str> = all().map(|attempt| attempt.name).collect();
        assert_eq!(names.len(), count());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count());
    }

    #[test]
    fn what_the_host_is_like_is_told_and_read() {
        let (host, _bait) = Host::look(Path::new("/nowhere")).unwrap();
        assert!(host.port > 0 && host.namespaces.len() > 3, "{host:?}");
        let text = serde_json::to_string(&host).unwrap();
        assert_eq!(serde_json::from_str::<Host>(&text).unwrap(), host);
        assert_eq!(main(&["no host".into()]), 2);
    }
}
