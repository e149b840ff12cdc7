//! The processes of a test are this test binary again, in another role.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gateway::relay;

use crate::world::{FileLedger, Kill, relay_handle, serve, upstream};

const ROLE: &str = "GATEWAY_TEST_ROLE";
const DIR: &str = "GATEWAY_TEST_DIR";
const ARGS: &str = "GATEWAY_TEST_ARGS";
const RELAY_DIR: &str = "GATEWAY_TEST_RELAY";

/// Not a test: what a child process runs.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let args = std::env::var(ARGS).unwrap_or_default();
    let dir = |name| PathBuf::from(std::env::var_os(name).unwrap());
    match role.as_str() {
        "model-server" => model_server::main(args.split('\n').map(str::to_owned)).unwrap(),
        "relay" => {
            let dir = dir(RELAY_DIR);
            let mut options = relay::Options::new(dir.join("relay.sock"), dir.join("answers"));
            options.idle = Duration::from_millis(args.parse().unwrap());
            // A second one ends at once; that is a test of its own.
            let _ended = relay::main(&options);
        }
        "daemon" => daemon(&dir(DIR), &dir(RELAY_DIR), &args),
        other => panic!("no role {other}"),
    }
}

/// A daemon: one gateway on a journal in a file; kills itself where it was told to.
fn daemon(dir: &Path, relay: &Path, args: &str) {
    let (url, kill) = args.split_once('\n').unwrap();
    let ledger = FileLedger::open(dir, Kill::parse(kill));
    serve(
        dir,
        Arc::new(ledger),
        relay_handle(relay),
        upstream(url),
        |_| std::future::pending(),
    );
}

/// Returns the command that runs this binary in a role, through `env`, so that a cleared environment does not matter.
pub(crate) fn command(role: &str, dir: &Path, relay: &Path, args: &str) -> Vec<OsString> {
    let variable = |name: &str, value: &Path| {
        let mut text = OsString::from(format!("{name}="));
        text.push(value);
        text
    };
    vec![
        "/usr/bin/env".into(),
        format!("{ROLE}={role}").into(),
        variable(DIR, dir),
        variable(RELAY_DIR, relay),
        format!("{ARGS}={args}").into(),
        std::env::current_exe().unwrap().into(),
        "--exact".into(),
        "process::role".into(),
        "--nocapture".into(),
    ]
}

/// A child process; killed when it is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(role: &str, dir: &Path, relay: &Path, args: &str) -> Self {
        let command = command(role, dir, relay, args);
        let child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits for a line that holds `word`; returns it from there on.
    pub(crate) fn line(&mut self, word: &str) -> Option<String> {
        use std::io::{BufRead as _, BufReader};
        let mut out = BufReader::new(self.0.stdout.as_mut()?);
        loop {
            let mut line = String::new();
            if out.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(at) = line.find(word) {
                return Some(line[at..].trim_end().to_owned());
            }
        }
    }

    pub(crate) fn kill_9(&mut self) {
        let _ended_already = self.0.kill();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_9();
    }
}
