//! The public peer: mitmproxy, which opens TLS as we do. Bodies pass through it as streams, not collected as it does by itself.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bench::Failure;

use super::origin::Origin;

const ADDON: &str = "\
def requestheaders(flow):
    flow.request.stream = True

def responseheaders(flow):
    flow.response.stream = True
";

/// A running mitmproxy. Dropped, it is gone.
pub(super) struct Mitmproxy {
    child: Child,
    pub(super) address: SocketAddr,
    /// The authority that its clients must trust.
    pub(super) roots: PathBuf,
}

impl Mitmproxy {
    /// Starts it, and returns when it listens.
    pub(super) fn start(dir: &Path, origin: &Origin) -> Result<Self, Failure> {
        let what = "start mitmdump";
        let dir = dir.join("mitmproxy");
        std::fs::create_dir(&dir).map_err(Failure::cannot(what))?;
        let addon = dir.join("stream.py");
        std::fs::write(&addon, ADDON).map_err(Failure::cannot(what))?;
        // Somebody else could take the port in between; then it says so and ends.
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr());
        let address = free.map_err(Failure::cannot(what))?;
        let mut child = Command::new("mitmdump")
            .args(["--listen-host", "127.0.0.1", "--listen-port"])
            .arg(address.port().to_string())
            .args(["--flow-detail", "0", "--scripts"])
            .arg(addon)
            .args(["--set", &format!("confdir={}", dir.display()), "--set"])
            .arg(format!(
                "ssl_verify_upstream_trusted_ca={}",
                origin.root_file.display()
            ))
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::cannot(what))?;
        let out = child.stdout.take().map(BufReader::new);
        let peer = Self {
            child,
            address,
            roots: dir.join("mitmproxy-ca-cert.pem"),
        };
        let mut said = String::new();
        let mut out = out.ok_or_else(|| Failure::wrong("mitmdump has no stdout"))?;
        while out.read_line(&mut said).map_err(Failure::cannot(what))? > 0 {
            if said.contains("listening at") {
                // Who writes into a pipe that nobody reads stops at some time.
                std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
                return Ok(peer);
            }
        }
        Err(Failure::wrong(format!("mitmdump ended: {}", said.trim())))
    }

    /// Returns its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Mitmproxy {
    fn drop(&mut self) {
        // Ended already, perhaps.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
