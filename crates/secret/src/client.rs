//! Runs the program that has a secret: the user's own client of 1Password, Vault or the keyring, or a command.
//!
//! It gets its arguments without a shell, the variables that it needs and no others, no input, a process group of its own
//! that is killed when nobody waits any more, ten seconds and 64 KiB. What it says on stderr is thrown away: nobody can
//! know whether a secret is in it.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use zeroize::Zeroizing;

use crate::error::Why;
use crate::value::MAX_BYTES;

/// What everything that a user runs needs to find its files, the user's session and the network.
const USUAL: [&str; 16] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TMPDIR",
    "TZ",
    "USER",
    "https_proxy",
    "http_proxy",
    "no_proxy",
];
/// Its directories, and the locale.
const USUAL_PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// A program to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) argv: Vec<String>,
    /// Variables that it gets beside the usual ones: `NAME`, or `PREFIX*`.
    pub(crate) more: &'static [&'static str],
}

impl Asked {
    pub(crate) fn new(argv: &[&str], more: &'static [&'static str]) -> Self {
        Self {
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            more,
        }
    }

    /// Tells whether the program gets a variable of the daemon's.
    pub(crate) fn takes(&self, name: &str) -> bool {
        USUAL.contains(&name)
            || USUAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || self.more.iter().any(|more| match more.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => *more == name,
            })
    }

    fn program(&self) -> String {
        self.argv.first().cloned().unwrap_or_default()
    }

    /// Returns what a person types to see it.
    fn by_hand(&self) -> String {
        let plain = |arg: &String| {
            let fine = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@+,#?".contains(&b);
            if !arg.is_empty() && arg.bytes().all(fine) {
                return arg.clone();
            }
            format!("'{}'", arg.replace('\'', r"'\''"))
        };
        self.argv.iter().map(plain).collect::<Vec<_>>().join(" ")
    }
}

/// How a program that was asked ended.
pub(crate) enum Answer {
    /// With status 0, and this on stdout.
    Said(Zeroizing<Vec<u8>>),
    /// With status 1 and nothing on stdout, which some say for "there is none".
    Nothing(Why),
}

/// Runs it to its end, with these variables and no others.
///
/// # Errors
/// It is not there, fails, says too much or does not end in time; then nothing of it runs any more.
pub(crate) async fn ask(
    asked: &Asked,
    env: Vec<(String, String)>,
    patience: Duration,
) -> Result<Answer, Why> {
    let run = |why: std::io::Error| match why.kind() {
        std::io::ErrorKind::NotFound => Why::NoProgram {
            program: asked.program(),
        },
        _ => Why::Run {
            program: asked.program(),
            because: why.to_string(),
            by_hand: asked.by_hand(),
        },
    };
    let child = Command::new(asked.program())
        .args(asked.argv.iter().skip(1))
        .env_clear()
        .envs(env)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(run)?;
    let mut running = Running(child);
    let timed_out = Why::TimedOut {
        secs: patience.as_secs(),
        by_hand: asked.by_hand(),
    };
    let ended = tokio::time::timeout(patience, running.ended()).await;
    let ended = ended.map_err(|_| timed_out)?.map_err(run)?;
    let (said, status) = ended.ok_or(Why::TooLong)?;
    if status.success() {
        return Ok(Answer::Said(said));
    }
    let failed = Why::Failed {
        program: asked.program(),
        status: status.to_string(),
        by_hand: asked.by_hand(),
    };
    match status.code() {
        Some(1) if said.is_empty() => Ok(Answer::Nothing(failed)),
        _ => Err(failed),
    }
}

/// A program that runs. Dropped before its end, it is killed, and all that it started with it.
struct Running(Child);

impl Running {
    /// Waits for the end of its output, and only then for its own: until it is waited for its group's number is its own.
    /// None if it says more than a secret can be.
    async fn ended(&mut self) -> std::io::Result<Option<(Zeroizing<Vec<u8>>, ExitStatus)>> {
        let mut bytes = Zeroizing::new(vec![0; MAX_BYTES + 1]);
        let mut len = 0;
        if let Some(stdout) = &mut self.0.stdout {
            loop {
                let read = stdout.read(&mut bytes[len..]).await?;
                len += read;
                if read == 0 {
                    break;
                }
                if len > MAX_BYTES {
                    return Ok(None);
                }
            }
        }
        bytes.truncate(len);
        Ok(Some((bytes, self.0.wait().await?)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(group) = group.and_then(Pid::from_raw) {
            // There is none left to kill where it has just ended.
            let _gone = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_what_it_needs_and_no_other_variable() {
        let asked = Asked::new(&["op"], &["OP_*", "VAULT_ADDR"]);
        for name in [
            "PATH",
            "HOME",
            "XDG_RUNTIME_DIR",
            "LC_ALL",
            "OP_SESSION_x",
            "VAULT_ADDR",
        ] {
            assert!(asked.takes(name), "{name}");
        }
        for name in [
            "GITHUB_TOKEN",
            "VAULT_TOKEN",
            "LD_PRELOAD",
            "PATHS",
            "DURABLE_AGE_IDENTITY",
        ] {
            assert!(!asked.takes(name), "{name}");
        }
    }

    #[test]
    fn what_is_typed_by_hand_can_be_pasted_into_a_shell() {
        let asked = Asked::new(&["op", "read", "op://My Vault/it's/x", ""], &[]);
        assert_eq!(asked.by_hand(), r"op read 'op://My Vault/it'\''s/x' ''");
    }
}
