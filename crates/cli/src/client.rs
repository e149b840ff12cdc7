//! The client side of the public API over the daemon's Unix socket, and the start of a daemon where none runs.

use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use protocol::{ApiError, ErrorCode};
use rustix::process::Signal;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::again;

/// The API socket's name in the data directory.
pub(crate) const SOCKET: &str = "api.sock";

/// How long a daemon is looked for: it may be killed and started again meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon something that is busy for a moment is asked again.
const BUSY_AGAIN: Duration = Duration::from_millis(20);

/// Signals that one process sends to another.
const KILL: i32 = Signal::KILL.as_raw();
const TERM: i32 = Signal::TERM.as_raw();

/// What is sent: at hand, or made while it is sent.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Returns a body that is sent as its pieces come; one that is an error breaks the request off.
pub(crate) fn streamed(pieces: tokio::sync::mpsc::Receiver<io::Result<Bytes>>) -> Body {
    let pieces = futures_util::stream::unfold(pieces, async |mut pieces| {
        let piece = pieces.recv().await?;
        Some((piece.map(Frame::data), pieces))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Speaks to the daemon of one data directory.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    data: PathBuf,
}

impl Client {
    pub(crate) fn new(data: PathBuf) -> Self {
        Self { data }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Opens a connection; starts a daemon where none serves.
    async fn connect(&self) -> Result<SendRequest<Body>, ApiError> {
        let stream = self.reach().await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| {
                ApiError::new(
                    ErrorCode::Unavailable,
                    format!("the daemon does not answer: {e}"),
                )
            })?;
        // The connection's own error is also the request's.
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(sender)
    }

    /// Connects to the daemon. Where none serves, one is started, and looked for again: it may be killed at any time.
    async fn reach(&self) -> Result<UnixStream, ApiError> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let failure = match self.dial().await {
                Ok(stream) => return Ok(stream),
                Err(failure) => failure,
            };
            if tokio::time::Instant::now() >= deadline {
                return Err(self.unreachable(&failure));
            }
            let begun = match failure.kind() {
                // A daemon that dies while we are in its queue resets us.
                io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset => self.begin().await?,
                // Its queue is full for the moment.
                io::ErrorKind::WouldBlock => Begun::Busy,
                _ => return Err(self.unreachable(&failure)),
            };
            if begun == Begun::Busy {
                // There is no event for its end.
                tokio::time::sleep(BUSY_AGAIN).await;
            }
        }
    }

    /// Has a daemon started, or waits for the one that another command has started.
    async fn begin(&self) -> Result<Begun, ApiError> {
        let data = self.data.clone();
        tokio::task::spawn_blocking(move || start_daemon(&data))
            .await
            .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?
    }

    async fn dial(&self) -> io::Result<UnixStream> {
        // By way of a descriptor: the data directory's path may be longer than a socket address.
        let dir = std::fs::File::open(&self.data)?;
        UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())).await
    }

    fn unreachable(&self, error: &io::Error) -> ApiError {
        ApiError::new(
            ErrorCode::Unavailable,
            format!("cannot reach the daemon of {}: {error}", self.data.display()),
        )
        .hint("the daemon's log is `daemon.log` in the data directory; `--data` or DURABLE_DATA names another one")
    }

    /// Sends a request and returns the answer with its body still to come.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ApiError> {
        let body = Full::new(body).map_err(|never| match never {});
        self.send_with(method, path, &[], body.boxed_unsync()).await
    }

    /// Sends a request with headers of its own, and any body.
    pub(crate) async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Result<Response<Incoming>, ApiError> {
        let mut sender = self.connect().await?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "durable");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(body)
            .map_err(|e| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
        let response = sender.send_request(request).await.map_err(|e| lost(&e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = whole(response).await?;
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| {
            ApiError::new(
                ErrorCode::Internal,
                format!("the daemon answered {status} without a reason"),
            )
        }))
    }

    /// Asks for one object, and again where the daemon is lost meanwhile: nothing comes of asking.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        again::retry_broken(|| self.call(Method::GET, path, &())).await
    }

    /// Sends one object and reads one.
    pub(crate) async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
    ) -> Result<T, ApiError> {
        let body = if method == Method::GET {
            Vec::new()
        } else {
            encode(body)?
        };
        let bytes = whole(self.send(method, path, body.into()).await?).await?;
        let bytes = if bytes.is_empty() {
            Bytes::from_static(b"null")
        } else {
            bytes
        };
        serde_json::from_slice(&bytes).map_err(|e| {
            ApiError::new(
                ErrorCode::Internal,
                format!("the daemon's answer is not understood: {e}"),
            )
            .hint("is it of another version? end it and run the command again")
        })
    }
}

pub(crate) fn encode<B: Serialize>(body: &B) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(body).map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))
}

/// Reads an answer to its end.
pub(crate) async fn whole(response: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = response.into_body().collect().await;
    Ok(body.map_err(|e| lost(&e))?.to_bytes())
}

/// The connection broke: the daemon was killed, most likely. Whoever can resume does; what else to do depends on the command.
pub(crate) fn lost(error: &hyper::Error) -> ApiError {
    ApiError::new(
        ErrorCode::Unavailable,
        format!("the connection to the daemon broke: {error}"),
    )
}

/// What became of a daemon that was to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    /// It serves, or another one does; or it was killed before it did. Either way it is time to look.
    Look,
    /// Something of the one before it is not gone yet.
    Busy,
}

/// Starts a daemon on `data`; returns when one serves, this or another.
fn start_daemon(data: &Path) -> Result<Begun, ApiError> {
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        ApiError::new(ErrorCode::Unavailable, format!("cannot start a daemon on {}: {what}: {e}", data.display()))
            .hint("`durable doctor` tells what is missing; DURABLE_DATA or --data names another directory")
    };
    std::fs::create_dir_all(data).map_err(|e| failed("the data directory", &e))?;
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(data.join("daemon.log"))
        .map_err(|e| failed("its log", &e))?;
    let me = std::env::current_exe().map_err(|e| failed("its program", &e))?;
    let (mut ready, theirs) = io::pipe().map_err(|e| failed("a pipe", &e))?;
    let mut child = Command::new(me)
        .arg("--data")
        .arg(data)
        .args(["serve", "--announce"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(theirs)
        .stderr(log)
        .process_group(0)
        .spawn()
        .map_err(|e| failed("its process", &e))?;
    // One line: `ready`, or an error as JSON. The end without a line is a crash.
    let mut told = String::new();
    ready
        .read_to_string(&mut told)
        .map_err(|e| failed("its answer", &e))?;
    match told.trim() {
        "ready" => Ok(Begun::Look),
        "" => {
            let status = child.wait().map_err(|e| failed("its end", &e))?;
            match status.signal() {
                // By somebody, who did not mean us. Any other signal is a crash.
                Some(KILL | TERM) => Ok(Begun::Look),
                _ => Err(failed("it ended at once", &status)),
            }
        }
        error => match serde_json::from_str::<ApiError>(error) {
            Ok(error) if error.code == ErrorCode::Conflict => Ok(Begun::Busy),
            Ok(error) => Err(error),
            Err(_) => Err(failed("it said", &error)),
        },
    }
}
