//! Following an operation from a terminal or a pipe: exact bytes out, input in, and on again after a lost connection.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Method, Response};
use protocol::api::frames::{self, Kind};
use protocol::api::{OpView, StdinView};
use protocol::{ApiError, ErrorCode, OpId, OpSpec, SandboxName, TtySize};
use tokio::io::AsyncReadExt as _;

use crate::again::{broken, retry};
use crate::client::{self, Client};
use crate::failure;

/// Where our input begins in the operation's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// At its beginning: the same command, sent again, sends the same bytes.
    Start,
    /// Behind what others sent before us.
    Now,
}

/// What the caller's side of the operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Nothing is sent.
    None,
    /// Our stdin is sent to its end.
    Forward,
    /// Our terminal is the operation's.
    Terminal,
}

/// An operation that a command follows.
pub(crate) struct Follow {
    pub(crate) client: Client,
    pub(crate) sandbox: SandboxName,
    pub(crate) op: OpId,
    pub(crate) input: Input,
}

impl Follow {
    fn path(&self) -> String {
        format!(
            "/v1/sandboxes/{}/ops/{}",
            self.sandbox,
            escape(self.op.as_str())
        )
    }

    /// Starts the operation, or attaches, and follows it to its settlement.
    pub(crate) async fn exec(&self, spec: &OpSpec) -> Result<OpView, ApiError> {
        let body: Bytes = client::encode(spec)?.into();
        let path = format!("{}?frames=true", self.path());
        let first = self.client.send(Method::PUT, &path, body.clone()).await;
        let again = || {
            let (client, path, body) = (self.client.clone(), path.clone(), body.clone());
            // The same id with the same command attaches: asking again is safe at any time.
            async move { client.send(Method::PUT, &path, body).await }
        };
        let first = match first {
            Err(e) if e.code == ErrorCode::Unavailable && broken(&e) => retry(again).await?,
            other => other?,
        };
        self.follow(first, [0, 0], Begin::Start).await
    }

    /// Follows an operation that is there already, from these offsets.
    pub(crate) async fn attach(&self, from: [u64; 2]) -> Result<OpView, ApiError> {
        let first = self
            .client
            .send(Method::GET, &self.frames(from), Bytes::new())
            .await?;
        self.follow(first, from, Begin::Now).await
    }

    fn frames(&self, at: [u64; 2]) -> String {
        format!("{}/frames?stdout={}&stderr={}", self.path(), at[0], at[1])
    }

    async fn follow(
        &self,
        first: Response<Incoming>,
        from: [u64; 2],
        begin: Begin,
    ) -> Result<OpView, ApiError> {
        let _raw = match self.input {
            Input::Terminal => Some(RawTerminal::enter()?),
            Input::None | Input::Forward => None,
        };
        let feeding = match self.input {
            Input::None => None,
            Input::Forward | Input::Terminal => Some(tokio::spawn(feed(
                self.client.clone(),
                self.path(),
                self.input,
                begin,
            ))),
        };
        let resizing = (self.input == Input::Terminal)
            .then(|| tokio::spawn(resize(self.client.clone(), self.path())));
        let result = self.read(first, from).await;
        for task in [feeding, resizing].into_iter().flatten() {
            task.abort();
        }
        result
    }

    async fn read(
        &self,
        mut response: Response<Incoming>,
        mut at: [u64; 2],
    ) -> Result<OpView, ApiError> {
        let mut attempt = None;
        loop {
            match self.drain(response, &mut at, &mut attempt).await? {
                Some(view) => return Ok(view),
                None => {
                    let path = self.frames(at);
                    response = retry(|| {
                        let (client, path) = (self.client.clone(), path.clone());
                        async move { client.send(Method::GET, &path, Bytes::new()).await }
                    })
                    .await?;
                }
            }
        }
    }

    /// Reads frames until the settlement; `None` where the connection broke before it.
    async fn drain(
        &self,
        response: Response<Incoming>,
        at: &mut [u64; 2],
        attempt: &mut Option<u32>,
    ) -> Result<Option<OpView>, ApiError> {
        let mut body = response.into_body();
        let mut input = BytesMut::new();
        let mut whole: Option<(usize, u64)> = None;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return Ok(None) };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            // A chunk usually is the rest of one frame: then its bytes go out without another copy.
            let mut data = data;
            loop {
                if let Some((stream, left)) = whole {
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(data.len());
                    write(stream, &data.split_to(take))?;
                    at[stream] += take as u64;
                    let left = left - take as u64;
                    whole = (left > 0).then_some((stream, left));
                    if whole.is_some() || data.is_empty() {
                        break;
                    }
                    continue;
                }
                input.extend_from_slice(&data.split_to(data.len().min(header_rest(&input))));
                let Some(head) = input.first_chunk::<{ frames::HEADER }>() else {
                    break;
                };
                let stream = match head[0] {
                    1 => Some(0),
                    2 => Some(1),
                    _ => None,
                };
                if let Some(stream) = stream {
                    let length = u32::from_le_bytes([head[9], head[10], head[11], head[12]]);
                    input.clear();
                    whole = (length > 0).then_some((stream, u64::from(length)));
                } else {
                    input.extend_from_slice(&data);
                    data.clear();
                    match frames::take(&mut input).map_err(|e| garbled(&e))? {
                        None => break,
                        Some((kind, _, content)) => {
                            data = input.split().freeze();
                            if let Some(view) = control(kind, &content, at, attempt)? {
                                return Ok(Some(view));
                            }
                        }
                    }
                }
                if data.is_empty() {
                    break;
                }
            }
        }
        Ok(None)
    }
}

fn header_rest(input: &BytesMut) -> usize {
    frames::HEADER.saturating_sub(input.len())
}

fn control(
    kind: Kind,
    content: &[u8],
    at: &mut [u64; 2],
    attempt: &mut Option<u32>,
) -> Result<Option<OpView>, ApiError> {
    match kind {
        Kind::Known => {
            let view: OpView = serde_json::from_slice(content).map_err(|e| garbled(&e))?;
            if attempt.is_some_and(|known| known != view.attempt) {
                failure::note(&format!(
                    "operation {} runs again (attempt {})",
                    view.id, view.attempt
                ));
                *at = [0, 0];
            }
            *attempt = Some(view.attempt);
            Ok(None)
        }
        Kind::Settled => serde_json::from_slice(content)
            .map(Some)
            .map_err(|e| garbled(&e)),
        Kind::Error => {
            let error: ApiError = serde_json::from_slice(content).map_err(|e| garbled(&e))?;
            if error.code == ErrorCode::Unavailable {
                Ok(None)
            } else {
                Err(error)
            }
        }
        Kind::Stdout | Kind::Stderr => Ok(None),
    }
}

fn garbled(error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(
        ErrorCode::Internal,
        format!("the daemon's stream is not understood: {error}"),
    )
}

/// Writes exact bytes to our own stdout or stderr.
pub(crate) fn write(stream: usize, bytes: &[u8]) -> Result<(), ApiError> {
    let written = if stream == 0 {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())
    } else {
        io::stderr().lock().write_all(bytes)
    };
    written.map_err(|error| match error.kind() {
        // `| head` took what it wanted. The operation goes on; we need not.
        io::ErrorKind::BrokenPipe => std::process::exit(0),
        _ => ApiError::new(
            ErrorCode::Unavailable,
            format!("cannot write the output: {error}"),
        ),
    })
}

/// Sends our stdin to the operation, from wherever it has got to.
async fn feed(client: Client, path: String, input: Input, begin: Begin) {
    let mut stdin = tokio::io::stdin();
    let mut offset = 0_u64;
    if begin == Begin::Now {
        let url = format!("{path}/stdin");
        let Ok(taken) = retry(|| client.get::<StdinView>(&url)).await else {
            return;
        };
        offset = taken.offset.0;
    }
    let mut buffer = vec![0; protocol::control::MAX_STDIN_CHUNK];
    loop {
        // A stdin that cannot be read is one that has ended.
        let read = stdin.read(&mut buffer).await.unwrap_or_default();
        let eof = read == 0;
        let chunk = Bytes::copy_from_slice(&buffer[..read]);
        let url = format!("{path}/stdin?offset={offset}&eof={eof}");
        let sent = retry(|| {
            let (client, url, chunk) = (client.clone(), url.clone(), chunk.clone());
            async move { client.send(Method::PUT, &url, chunk).await }
        })
        .await;
        let Ok(response) = sent else { return };
        let Ok(body) = response.into_body().collect().await else {
            continue;
        };
        let Ok(view) = serde_json::from_slice::<StdinView>(&body.to_bytes()) else {
            return;
        };
        offset += read as u64;
        if eof || (view.closed && input == Input::Forward) {
            return;
        }
    }
}

/// Tells the operation's terminal when ours changes its size.
async fn resize(client: Client, path: String) {
    let Ok(mut changes) =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change())
    else {
        return;
    };
    while changes.recv().await.is_some() {
        let Some(size) = terminal_size() else { return };
        // A size that is not told is told with the next change.
        let _told: Result<(), ApiError> = client
            .call(Method::POST, &format!("{path}/resize"), &size)
            .await;
    }
}

/// Returns our terminal's size, where we have one.
pub(crate) fn terminal_size() -> Option<TtySize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0).then_some(TtySize {
        rows: size.ws_row,
        cols: size.ws_col,
    })
}

/// Our terminal in raw mode, until dropped.
struct RawTerminal {
    before: rustix::termios::Termios,
    active: Arc<AtomicBool>,
}

impl RawTerminal {
    fn enter() -> Result<Self, ApiError> {
        let failed = |e: rustix::io::Errno| {
            ApiError::new(ErrorCode::Invalid, format!("stdin is not a terminal: {e}"))
                .hint("leave `-t` out")
        };
        let before = rustix::termios::tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Flush, &raw)
            .map_err(failed)?;
        Ok(Self {
            before,
            active: Arc::new(AtomicBool::new(true)),
        })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if self.active.swap(false, Ordering::SeqCst) {
            // There is nobody to tell when the terminal is gone.
            let _gone = rustix::termios::tcsetattr(
                io::stdin(),
                rustix::termios::OptionalActions::Flush,
                &self.before,
            );
        }
    }
}

/// Escapes an id for a URL's path.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
