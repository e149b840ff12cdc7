//! An S3 server for stores in buckets: moto (Apache-2.0) from PyPI, in an environment of its own, as a process of its own.
//!
//! It keeps objects in memory, and refuses a put with `If-None-Match: *` where there is one, which is all that a store asks for.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::run::PATIENCE;
use crate::{Client, Res, World, trouble};

/// What is installed, to the version: the server, and what it serves HTTP with.
const PACKAGES: [&str; 3] = ["moto[s3]==5.2.1", "flask==3.1.3", "flask-cors==6.0.2"];
const INSTALLING: Duration = Duration::from_secs(600);
/// What a client signs with; the server looks at the service in it alone.
const SIGNED: &str = "Authorization: AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
const BUCKET: &str = "durable";

/// A running server. Dropped, it is killed, and what it kept is gone.
pub struct Server {
    _client: Client,
    at: SocketAddr,
}

impl Server {
    /// Installs the server below `dir` where it is not, starts it and makes a bucket.
    ///
    /// # Errors
    /// It cannot be installed or started, or takes a second object under one name.
    pub fn start(dir: &Path) -> Res<Self> {
        let program = install(dir)?.join("bin/moto_server");
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"exec "$0" -H 127.0.0.1 -p 0 2>&1"#])
            .arg(program)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(std::process::Stdio::null());
        let client = Client::start(command)?;
        let until = Instant::now() + PATIENCE;
        let at = loop {
            let said = client.so_far();
            let text = String::from_utf8_lossy(&said);
            let address = text
                .split("http://")
                .nth(1)
                .and_then(|rest| rest.split_once('\n'));
            if let Some((address, _)) = address {
                break address.trim().parse()?;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !client.wait_out(said.len() + 1, left) {
                return Err(trouble(format!("the S3 server does not start: {text}")));
            }
        };
        let server = Self {
            _client: client,
            at,
        };
        for (path, more, wanted) in [
            (BUCKET.to_owned(), "", "200"),
            (format!("{BUCKET}/once"), "If-None-Match: *", "200"),
            (format!("{BUCKET}/once"), "If-None-Match: *", "412"),
        ] {
            let answer = server.put(&path, more)?;
            if answer.split(' ').nth(1) != Some(wanted) {
                return Err(trouble(format!(
                    "the S3 server answers a put of {path} with {answer}, and {wanted} was expected"
                )));
            }
        }
        Ok(server)
    }

    /// Gives a world's daemon what it needs to use the server.
    #[must_use]
    pub fn known_to(&self, world: World) -> World {
        world
            .with_env("AWS_ENDPOINT", &format!("http://{}", self.at))
            .with_env("AWS_ALLOW_HTTP", "true")
            .with_env("AWS_REGION", "us-east-1")
            .with_env("AWS_ACCESS_KEY_ID", "key")
            .with_env("AWS_SECRET_ACCESS_KEY", "secret")
    }

    /// Names a store in the bucket.
    #[must_use]
    pub fn store(&self, name: &str) -> String {
        format!("s3://{BUCKET}/{name}")
    }

    /// Puts an object and returns the first line of the answer.
    fn put(&self, path: &str, header: &str) -> Res<String> {
        let mut stream = TcpStream::connect(self.at)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let headers = [SIGNED, header, "Content-Length: 0", "Connection: close"];
        let headers = headers.into_iter().filter(|header| !header.is_empty());
        let headers: Vec<&str> = headers.collect();
        write!(
            stream,
            "PUT /{path} HTTP/1.1\r\nHost: {}\r\n{}\r\n\r\n",
            self.at,
            headers.join("\r\n")
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    }
}

/// Returns the directory of the Python environment with the server, which is made where it is not there or was not finished.
fn install(dir: &Path) -> Res<PathBuf> {
    fs::create_dir_all(dir)?;
    // Another test run may be at it.
    let lock = File::create(dir.join("s3-server.lock"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let (place, note) = (dir.join("s3-server"), dir.join("s3-server.packages"));
    let wanted = PACKAGES.join(" ");
    if fs::read_to_string(&note).is_ok_and(|has| has == wanted) {
        return Ok(place);
    }
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    let run = |program: &Path, args: &[&str], more: &[&str]| -> Res<()> {
        let mut command = Command::new(program);
        command
            .args(args)
            .args(more)
            .stdin(std::process::Stdio::null());
        let done = Client::start(command)?.finish_within(INSTALLING)?;
        let hint = "it needs the Debian package python3-venv, and PyPI";
        done.ok()
            .map(drop)
            .map_err(|e| trouble(format!("cannot install the S3 server ({hint}): {e}")))
    };
    let path = place.display().to_string();
    run(Path::new("python3"), &["-m", "venv"], &[&path])?;
    let pip = place.join("bin/pip");
    run(&pip, &["install", "--quiet"], &PACKAGES)?;
    fs::write(&note, wanted)?;
    Ok(place)
}
