//! Servers of the internet as clients know them, on loopback: git, registries of npm, PyPI, cargo and Go, an event stream, a
//! WebSocket, gRPC. What they are is in `peers/`; they need Node.js.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};

use crate::run::PATIENCE;
use crate::tools::Tools;
use crate::{Client, Res, run, trouble, world};

/// The name that they have; loopback has it where a test says so.
pub const NAME: &str = "registry.test";
/// How long a large repository may take.
const MAKING: Duration = Duration::from_secs(600);
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");

/// Running servers. Dropped, they are killed and what they served is removed.
pub struct Servers {
    client: Client,
    dir: PathBuf,
    /// Where all but gRPC is.
    pub port: u16,
    /// Where gRPC is.
    pub grpc_port: u16,
    /// Their certificate, PEM.
    pub root: String,
}

impl Servers {
    /// Starts them. Their registries are empty.
    ///
    /// # Errors
    /// They cannot be started.
    pub fn start(tools: &Tools) -> Res<Self> {
        let dir = world::fresh_path("servers");
        fs::create_dir_all(dir.join("served"))?;
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![NAME.to_owned()])
            .map_err(|e| trouble(e.to_string()))?;
        let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        fs::write(&certificate, cert.pem())?;
        fs::write(&key, signing_key.serialize_pem())?;
        let mut command = Command::new("node");
        command
            .arg(format!("{PEERS}/server.cjs"))
            .args([&dir.join("served"), &certificate, &key])
            .env("NODE_PATH", tools.node_modules())
            .stdin(Stdio::null());
        let client = Client::start(command)?;
        let until = Instant::now() + PATIENCE;
        let (port, grpc_port) = loop {
            let said = client.so_far();
            let text = String::from_utf8_lossy(&said);
            if let Some(line) = text.lines().find_map(|line| line.strip_prefix("ready "))
                && text.contains('\n')
                && let Some((port, grpc)) = line.split_once(' ')
            {
                break (port.parse()?, grpc.trim().parse()?);
            }
            let left = until.saturating_duration_since(Instant::now());
            if !client.wait_out(said.len() + 1, left) {
                return Err(trouble(format!(
                    "the servers do not start: {}",
                    client.words()
                )));
            }
        };
        Ok(Self {
            client,
            dir,
            port,
            grpc_port,
            root: cert.pem(),
        })
    }

    /// Fills the registries.
    ///
    /// # Errors
    /// Something that they serve cannot be made.
    pub fn fill(&self) -> Res<()> {
        let mut command = Command::new("bash");
        command
            .arg(format!("{PEERS}/goods.sh"))
            .arg(self.served())
            .arg(self.url())
            // Nobody's own settings.
            .env("npm_config_userconfig", "/dev/null")
            .env("npm_config_cache", self.dir.join("npm-cache"));
        run::run(command)?.ok()?;
        Ok(())
    }

    /// The directory that is served.
    #[must_use]
    pub fn served(&self) -> PathBuf {
        self.dir.join("served")
    }

    /// Where they are.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{NAME}:{}", self.port)
    }

    /// What was asked so far, a line each.
    #[must_use]
    pub fn asked(&self) -> String {
        String::from_utf8_lossy(&self.client.so_far()).into_owned()
    }

    /// Waits until something was asked, which begins so, at least so many times.
    ///
    /// # Errors
    /// It is not asked.
    pub fn wait_for(&self, line: &str, times: usize) -> Res<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.client.so_far();
            let text = String::from_utf8_lossy(&said);
            if text.lines().filter(|one| one.starts_with(line)).count() >= times {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.client.wait_out(said.len() + 1, left) {
                return Err(trouble(format!("nobody asked for {line:?}: {text}")));
            }
        }
    }

    /// Makes a bare repository below `git/` with this much that does not compress, and returns its commit.
    ///
    /// # Errors
    /// git fails.
    pub fn repository(&self, name: &str, bytes: u64) -> Res<String> {
        let at = self.served().join("git").join(name);
        let mut command = Command::new("bash");
        command
            .args(["-c", REPOSITORY, "repository"])
            .arg(&at)
            .arg(bytes.to_string())
            .env("GIT_AUTHOR_NAME", "test")
            .env("GIT_AUTHOR_EMAIL", "test@registry.test")
            .env("GIT_COMMITTER_NAME", "test")
            .env("GIT_COMMITTER_EMAIL", "test@registry.test")
            // What is random does not get smaller.
            .env("GIT_CONFIG_COUNT", "2")
            .env("GIT_CONFIG_KEY_1", "pack.window")
            .env("GIT_CONFIG_VALUE_1", "0")
            .env("GIT_CONFIG_KEY_0", "core.compression")
            .env("GIT_CONFIG_VALUE_0", "0")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1");
        fs::create_dir_all(at.parent().unwrap_or(&at))?;
        let done = Client::start(command)?.finish_within(MAKING)?;
        Ok(done.ok()?.out().trim().to_owned())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.client.kill();
        let _removed = fs::remove_dir_all(&self.dir);
    }
}

/// Files of 4 MiB, so that they are no one blob that git would stream.
const REPOSITORY: &str = r#"
set -euo pipefail
at=$1 bytes=$2
git init --quiet --bare --initial-branch main "$at"
work=$at.work
git init --quiet --initial-branch main "$work"
cd "$work"
for ((n = 0; bytes > 0; n++, bytes -= 4194304)); do
  head -c $((bytes < 4194304 ? bytes : 4194304)) /dev/urandom > "data-$n"
done
echo hello > README
git add .
git commit --quiet -m "the first"
git push --quiet "$at" main
git rev-parse HEAD
rm -rf "$work"
"#;
