//! HTTP: the two model APIs and the control paths.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::answer;
use crate::log::{Counts, Log};
use crate::request::{Asked, Dialect};
use crate::script::{Script, Turn};

/// Pieces before a hold where the script names no number: the beginning of the text.
const HOLD_AFTER: usize = 3;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The server.
pub(crate) struct Server {
    script: Script,
    log: Log,
    /// Grows with each release; a held stream waits until it is higher than at its request.
    released: watch::Sender<u64>,
    /// How often each step was answered with its error.
    refused: Mutex<HashMap<usize, usize>>,
    /// Makes ids differ between two servers.
    start: u128,
}

impl Server {
    pub(crate) fn new(script: Script, log: Option<PathBuf>) -> Result<Arc<Self>, String> {
        let start = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Arc::new(Self {
            script,
            log: Log::open(log)?,
            released: watch::Sender::default(),
            refused: Mutex::default(),
            start: start.unwrap_or_default().as_nanos() % (1 << 48),
        }))
    }

    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            // Each piece must leave at once, as from a real model.
            let _unbuffered: io::Result<()> = stream.set_nodelay(true);
            let server = Arc::clone(&self);
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let server = Arc::clone(&server);
                    async move { Ok::<_, Infallible>(server.handle(request).await) }
                });
                // A client that breaks off is a part of most tests.
                let _ended = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let dialect = if path.ends_with("/messages") {
            Some(Dialect::Anthropic)
        } else if path.ends_with("/chat/completions") {
            Some(Dialect::OpenAi)
        } else {
            None
        };
        match (parts.method, dialect) {
            (Method::POST, Some(dialect)) => {
                let Ok(body) = body.collect().await else {
                    return json(400, "{}".to_owned());
                };
                let full = parts
                    .uri
                    .path_and_query()
                    .map_or(path.as_str(), |p| p.as_str());
                self.model(dialect, full, key(&parts.headers), &body.to_bytes())
                    .await
            }
            (Method::GET, _) if path == "/__control/log" => json(200, self.log.json()),
            (Method::POST, _) if path == "/__control/release" => {
                self.released.send_modify(|released| *released += 1);
                json(200, "{}".to_owned())
            }
            (Method::GET, _) if path == "/__control/wait" => {
                let wanted = wanted(parts.uri.query().unwrap_or_default());
                let mut counts = self.log.counts.subscribe();
                // The sender lives as long as the server.
                let _reached = counts
                    .wait_for(|now| {
                        now.requests >= wanted.requests
                            && now.held >= wanted.held
                            && now.finished >= wanted.finished
                    })
                    .await;
                json(200, self.log.json())
            }
            (Method::POST, None) if path.ends_with("/count_tokens") => {
                json(200, r#"{"input_tokens":10}"#.to_owned())
            }
            (Method::GET, None) if path.ends_with("/models") => {
                let seen = serde_json::json!({
                    "object": "list", "has_more": false, "data": [{ "id": "scripted", "object": "model", "type": "model" }],
                    "key": key(&parts.headers),
                });
                json(200, seen.to_string())
            }
            (Method::HEAD, None) => json(200, String::new()),
            _ => json(
                404,
                r#"{"error":{"type":"not_found_error","message":"no such path"}}"#.to_owned(),
            ),
        }
    }

    async fn model(
        self: Arc<Self>,
        dialect: Dialect,
        path: &str,
        key: Option<String>,
        body: &[u8],
    ) -> Response<Body> {
        let asked = Asked::read(dialect, body);
        let (step, turn) = if asked.is_side() {
            let text = if asked.json {
                r#"{"title":"A scripted title"}"#
            } else {
                "A scripted title"
            };
            let turn = Turn {
                text: text.to_owned(),
                ..Turn::default()
            };
            (None, turn)
        } else {
            let (step, turn) = self.script.step(&asked);
            (Some(step), turn.clone())
        };
        let released = *self.released.borrow();
        let number = self.log.add(&asked, path, key, step);
        if let Some(status) = turn.status.filter(|_| self.refuses(step, turn.times)) {
            let body = answer::error(dialect, "this turn is scripted to fail");
            self.log
                .finished(number, blake3::hash(body.as_bytes()).to_hex().to_string());
            return json(status, body);
        }
        let unique = format!("{:012x}{number:04}", self.start);
        let stream = Stream {
            pieces: answer::pieces(&asked, &turn, &unique),
            next: 0,
            turn,
            released,
            number,
            sent: blake3::Hasher::new(),
            server: self,
        };
        let kind = if asked.stream {
            "text/event-stream"
        } else {
            "application/json"
        };
        let body = stream::try_unfold(stream, |mut stream| async move {
            let piece = stream.next().await?;
            Ok(piece.map(|piece| (Frame::data(Bytes::from(piece)), stream)))
        });
        let mut response = Response::new(StreamBody::new(body).boxed_unsync());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Ok(id) = HeaderValue::from_str(&format!("req_{unique}")) {
            response.headers_mut().insert("request-id", id);
        }
        response
    }

    /// Whether a step that is scripted to fail fails this time.
    fn refuses(&self, step: Option<usize>, times: Option<usize>) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let count = refused.entry(step.unwrap_or(usize::MAX)).or_default();
        *count += 1;
        times.is_none_or(|times| *count <= times)
    }
}

/// An answer on its way.
struct Stream {
    server: Arc<Server>,
    pieces: Vec<String>,
    next: usize,
    turn: Turn,
    released: u64,
    number: usize,
    sent: blake3::Hasher,
}

impl Stream {
    async fn next(&mut self) -> io::Result<Option<String>> {
        if self.turn.break_after == Some(self.next) {
            return Err(io::Error::other("scripted to break off"));
        }
        let hold_after = self.turn.hold_after.unwrap_or(HOLD_AFTER);
        if (self.turn.hold || self.turn.hold_after.is_some()) && self.next == hold_after {
            self.server
                .log
                .counts
                .send_modify(|counts| counts.held += 1);
            let mut released = self.server.released.subscribe();
            let before = self.released;
            // The sender lives as long as the server.
            let _released = released.wait_for(|now| *now > before).await;
        } else if self.next > 0 && self.turn.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(self.turn.delay_ms)).await;
        }
        let Some(piece) = self.pieces.get_mut(self.next).map(std::mem::take) else {
            let answer = self.sent.finalize().to_hex().to_string();
            self.server.log.finished(self.number, answer);
            return Ok(None);
        };
        self.next += 1;
        self.sent.update(piece.as_bytes());
        Ok(Some(piece))
    }
}

fn key(headers: &HeaderMap) -> Option<String> {
    let key = headers
        .get("x-api-key")
        .or_else(|| headers.get("authorization"))?;
    let key = key.to_str().ok()?;
    Some(key.strip_prefix("Bearer ").unwrap_or(key).to_owned())
}

fn wanted(query: &str) -> Counts {
    let mut counts = Counts::default();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = value.parse().unwrap_or(0);
        match name {
            "requests" => counts.requests = value,
            "held" => counts.held = value,
            "finished" => counts.finished = value,
            _ => {}
        }
    }
    counts
}

fn json(status: u16, body: String) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
