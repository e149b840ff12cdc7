//! A blocking client of the public API over one kept connection.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use protocol::api::frames::{self, Kind};
use protocol::api::{CreateSandbox, OpView, SandboxView};
use protocol::{ApiError, CrashPolicy, Image, Limits, OpSpec, Replay, Role};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::Failure;

/// One connection to a daemon.
pub struct Api {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
}

/// An operation that settled while we listened.
#[derive(Debug, Clone)]
pub struct Settled {
    /// As it was announced.
    pub view: OpView,
    /// Its exact output.
    pub stdout: Vec<u8>,
}

/// Returns a command without anything special to it.
#[must_use]
pub fn command(argv: &[&str]) -> OpSpec {
    OpSpec {
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        cwd: None,
        env: BTreeMap::new(),
        user: None,
        timeout_ms: None,
        tty: None,
        stdin: false,
        replay: Replay::Never,
        role: Role::Command,
    }
}

impl Api {
    /// Connects to the daemon of a data directory.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn connect(data: &Path) -> Result<Self, Failure> {
        let what = || format!("connect to the daemon of {}", data.display());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::cannot(what()))?;
        // By way of a descriptor: a data directory's path may be longer than a socket address.
        let dir = std::fs::File::open(data).map_err(Failure::cannot(what()))?;
        let path = format!("/proc/self/fd/{}/api.sock", dir.as_raw_fd());
        let stream = runtime
            .block_on(UnixStream::connect(path))
            .map_err(Failure::cannot(what()))?;
        let (sender, connection) = runtime
            .block_on(hyper::client::conn::http1::handshake(TokioIo::new(stream)))
            .map_err(Failure::cannot(what()))?;
        // Its error is also the error of the request that waits.
        runtime.spawn(async move { connection.await.unwrap_or_default() });
        Ok(Self { runtime, sender })
    }

    /// Sends one object and reads one.
    ///
    /// # Errors
    /// The connection broke, the daemon refused, or its answer is not understood.
    pub fn call<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let body = encode(path, body)?;
        let Self { runtime, sender } = self;
        runtime.block_on(async {
            let response = send(sender, method, path, body).await?;
            let bytes = whole(path, response).await?;
            let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
            serde_json::from_slice(bytes).map_err(Failure::cannot(format!("understand {path}")))
        })
    }

    /// Asks for one object.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Failure> {
        self.call(Method::GET, path, None::<&()>)
    }

    /// Asks for raw bytes.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn bytes(&mut self, path: &str) -> Result<Bytes, Failure> {
        let Self { runtime, sender } = self;
        runtime.block_on(async {
            let response = send(sender, Method::GET, path, Bytes::new()).await?;
            whole(path, response).await
        })
    }

    /// Creates a sandbox and starts its supervisor.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn create(&mut self, name: &str, image: Image) -> Result<SandboxView, Failure> {
        let name = name.parse().map_err(Failure::cannot("name a sandbox"))?;
        let ask = CreateSandbox {
            name,
            image,
            limits: Limits::default(),
            on_crash: CrashPolicy::Keep,
            replicate: None,
            policy: None,
            env: BTreeMap::new(),
            cwd: None,
        };
        let made: SandboxView = self.call(Method::POST, "/v1/sandboxes", Some(&ask))?;
        let start = format!("/v1/sandboxes/{}/start", made.name);
        self.call(Method::POST, &start, None::<&()>)
    }

    /// Removes a sandbox with everything of it.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn remove(&mut self, name: &str) -> Result<(), Failure> {
        let path = format!("/v1/sandboxes/{name}");
        self.call(Method::DELETE, &path, None::<&()>)
    }

    /// Lists the sandboxes.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn list(&mut self) -> Result<Vec<SandboxView>, Failure> {
        self.get("/v1/sandboxes")
    }

    /// Runs an operation and follows it to its settlement. `announced` hears of it as soon as the daemon answers.
    ///
    /// # Errors
    /// As [`Api::call`].
    pub fn exec(
        &mut self,
        sandbox: &str,
        op: &str,
        spec: &OpSpec,
        announced: impl FnOnce(&OpView),
    ) -> Result<Settled, Failure> {
        let path = format!("/v1/sandboxes/{sandbox}/ops/{op}?frames=true");
        let body = encode(&path, Some(spec))?;
        let Self { runtime, sender } = self;
        runtime.block_on(async {
            let response = send(sender, Method::PUT, &path, body).await?;
            follow(&path, response.into_body(), announced).await
        })
    }

    /// Reads lines for as long as they come; returns when the connection ends.
    ///
    /// # Errors
    /// As [`Api::call`], before the first line.
    pub fn lines(mut self, path: &str, mut line: impl FnMut(&[u8])) -> Result<(), Failure> {
        self.runtime.block_on(async {
            let mut body = send(&mut self.sender, Method::GET, path, Bytes::new())
                .await?
                .into_body();
            let mut input = BytesMut::new();
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data() {
                    input.extend_from_slice(&data);
                }
                while let Some(end) = input.iter().position(|&byte| byte == b'\n') {
                    line(&input.split_to(end + 1));
                }
            }
            Ok(())
        })
    }
}

fn encode(path: &str, body: Option<&impl Serialize>) -> Result<Bytes, Failure> {
    body.map_or(Ok(Bytes::new()), |body| {
        serde_json::to_vec(body)
            .map(Bytes::from)
            .map_err(Failure::cannot(format!("write the body of {path}")))
    })
}

async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    method: Method,
    path: &str,
    body: Bytes,
) -> Result<Response<Incoming>, Failure> {
    let what = || format!("{method} {path}");
    let request = Request::builder()
        .method(&method)
        .uri(path)
        .header("host", "durable")
        .body(Full::new(body))
        .map_err(Failure::cannot(what()))?;
    sender.ready().await.map_err(Failure::cannot(what()))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(Failure::cannot(what()))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let bytes = whole(path, response).await?;
    Err(match serde_json::from_slice::<ApiError>(&bytes) {
        Ok(error) => Failure::Refused {
            what: what(),
            error,
        },
        Err(_) => Failure::wrong(format!("{}: {status} without a reason", what())),
    })
}

async fn whole(path: &str, response: Response<Incoming>) -> Result<Bytes, Failure> {
    let body = response.into_body().collect().await;
    let body = body.map_err(Failure::cannot(format!("read {path}")))?;
    Ok(body.to_bytes())
}

async fn follow(
    path: &str,
    mut body: Incoming,
    announced: impl FnOnce(&OpView),
) -> Result<Settled, Failure> {
    let (mut input, mut stdout) = (BytesMut::new(), Vec::new());
    let mut announced = Some(announced);
    let mut settled = None;
    let view = |content: &[u8]| -> Result<OpView, Failure> {
        serde_json::from_slice(content).map_err(Failure::cannot(format!("understand {path}")))
    };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Failure::cannot(format!("follow {path}")))?;
        if let Ok(data) = frame.into_data() {
            input.extend_from_slice(&data);
        }
        let understood = |e| Failure::cannot(format!("understand {path}"))(e);
        while let Some((kind, offset, content)) = frames::take(&mut input).map_err(understood)? {
            match kind {
                Kind::Known => {
                    let view = view(&content)?;
                    if let Some(announced) = announced.take() {
                        announced(&view);
                    }
                }
                Kind::Stdout if offset == stdout.len() as u64 => stdout.extend_from_slice(&content),
                Kind::Stdout => {
                    return Err(Failure::wrong(format!(
                        "{path}: bytes of offset {offset} came at {}",
                        stdout.len()
                    )));
                }
                Kind::Stderr => {}
                // Read on to the end of the body: the connection is used again.
                Kind::Settled => settled = Some(view(&content)?),
                Kind::Error => {
                    let error = serde_json::from_slice(&content)
                        .map_err(Failure::cannot(format!("understand {path}")))?;
                    let what = path.to_owned();
                    return Err(Failure::Refused { what, error });
                }
            }
        }
    }
    match settled {
        Some(view) => Ok(Settled { view, stdout }),
        None => Err(Failure::wrong(format!("{path} ended without a settlement"))),
    }
}
