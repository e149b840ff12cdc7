//! HTTP towards the sandbox.

mod answer;
pub(crate) mod delivery;

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::Incoming;
use tokio::sync::oneshot;

use self::delivery::Finishing;
use crate::core::{Asked, Claim, Core, Decision, End};
use crate::dialect::Dialect;
use crate::dialect::conversation::conversation;
use crate::dialect::resume::strip;
use crate::recorder;
use crate::relay::{Begin, HttpClient, MAX_BODY, http_client, with_causes};
use crate::upstream::{Upstream, without_hop_headers};

/// A body of ours.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answers one request of a harness.
pub(crate) async fn handle(
    core: Arc<Core>,
    plain: Arc<OnceLock<HttpClient<Body>>>,
    finishing: Finishing,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let turn = Dialect::of_turn(&parts.method, path);
    let dialect = turn.unwrap_or_else(|| Dialect::of_client(path, &parts.headers));
    let outcome = match core.upstream() {
        _ if !is_plain(path) => refused_unread(body, Refusal::Path).await,
        None => refused_unread(body, Refusal::NotConfigured).await,
        Some(upstream) => match turn {
            Some(dialect) => self::turn(core, dialect, upstream, finishing, parts, body).await,
            None => {
                let client = plain.get_or_init(http_client);
                pass(client, dialect, &upstream, parts, body).await
            }
        },
    };
    outcome.unwrap_or_else(|refusal| refusal.response(dialect))
}

/// Refuses whatever the body says. It is read away first: a client that is still sending when the connection is closed does not
/// get to hear why.
async fn refused_unread<T>(body: Incoming, refusal: Refusal) -> Result<T, Refusal> {
    read(body).await?;
    Err(refusal)
}

/// Whether a path stays below the upstream's base.
fn is_plain(path: &str) -> bool {
    let decoded = path.replace("%2e", ".").replace("%2E", ".");
    path.starts_with('/') && !decoded.split(['/', '\\']).any(|segment| segment == "..")
}

/// A model's turn: from the journal where it was asked before, else from the upstream by way of the journal.
async fn turn(
    core: Arc<Core>,
    dialect: Dialect,
    upstream: Upstream,
    finishing: Finishing,
    parts: Parts,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let body = read(body).await?;
    let path = parts.uri.path_and_query().ok_or(Refusal::Path)?;
    let mut asked = Asked {
        path: path.as_str().to_owned(),
        digest: digest(parts.method.as_str(), path.as_str(), &body),
        conversation: String::new(),
    };
    let stripped = strip(&body);
    let sent = match &stripped {
        Some(stripped) => Bytes::copy_from_slice(&stripped.body),
        None => body.clone(),
    };
    let talk = conversation(dialect, &sent);
    asked.conversation = talk
        .as_ref()
        .map_or_else(|| asked.digest.clone(), |talk| talk.digest.clone());
    let resumed = stripped.is_some_and(|stripped| stripped.resumed);
    let answered = talk.and_then(|talk| talk.answered).filter(|_| resumed);
    let sent = match answered {
        // The turn had come to its end when the harness was lost: it gets that end again, nobody is asked to go on.
        Some(answered) => match core.answered(&answered) {
            Some(claim) => match respond(&core, claim, &finishing).await {
                Ok(response) => return Ok(response),
                Err(_not_usable) => body,
            },
            None => body,
        },
        None => sent,
    };
    // Twice: an answer that was lost before its first byte is asked for again, once.
    for _ in 0..2 {
        let claim = match core.decide(&asked).await {
            Decision::Busy => return Err(Refusal::Busy),
            Decision::Serve(claim) => claim,
            Decision::Ask(claim, shown, requested) => {
                let headers = upstream.headers(&parts.headers, dialect.key_header());
                let begin = Begin {
                    request: claim.request().clone(),
                    url: upstream.url(path),
                    method: parts.method.as_str().to_owned(),
                    headers: texts(&headers),
                    body: sent.clone(),
                };
                // On its own: the answer is recorded whether or not this client stays.
                let asking = recorder::ask(Arc::clone(&core), dialect, *requested, begin, shown);
                core.spawn(asking);
                claim
            }
        };
        match respond(&core, claim, &finishing).await {
            Err(Refusal::Lost) => {}
            response_or_refusal => return response_or_refusal,
        }
    }
    Err(Refusal::Lost)
}

/// Waits for the head of an answer, then streams it.
async fn respond(
    core: &Arc<Core>,
    claim: Claim,
    finishing: &Finishing,
) -> Result<Response<Body>, Refusal> {
    let request = claim.request().clone();
    let mut shown = core.shown(&request);
    let head = loop {
        let now = shown.borrow_and_update().clone();
        match (now.head, now.end) {
            (Some(head), _) => break head,
            (None, None) => {}
            (None, Some(End::Failed(error))) => return Err(Refusal::Failed(error)),
            (None, Some(End::Lost)) => return Err(Refusal::Lost),
            (None, Some(End::Complete | End::Stopped)) => return Err(Refusal::Stopped),
        }
        shown.changed().await.map_err(|_| Refusal::Stopped)?;
    };
    let (sender, delivered) = oneshot::channel();
    // Until then the answer is this client's; where it breaks off, the claim is given back here.
    tokio::spawn(async move {
        if delivered.await.is_ok() {
            claim.delivered().await;
        }
    });
    let stream = answer::body(Arc::clone(core), request, shown, finishing.clone(), sender);
    let mut response = Response::new(StreamBody::new(stream).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY);
    for (name, value) in &head.headers {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    Ok(response)
}

/// Everything that is no model's turn: passed on with the key, not recorded.
async fn pass(
    client: &HttpClient<Body>,
    dialect: Dialect,
    upstream: &Upstream,
    parts: Parts,
    body: Incoming,
) -> Result<Response<Body>, Refusal> {
    let path = parts.uri.path_and_query().ok_or(Refusal::Path)?;
    let mut request = Request::new(body.map_err(io::Error::other).boxed_unsync());
    *request.method_mut() = parts.method;
    *request.uri_mut() = upstream.url(path).parse().map_err(|_| Refusal::Path)?;
    *request.headers_mut() = upstream.headers(&parts.headers, dialect.key_header());
    let response = client.request(request).await;
    let response = response.map_err(|error| Refusal::Failed(with_causes(&error)))?;
    let (parts, body) = response.into_parts();
    let mut response = Response::new(body.map_err(io::Error::other).boxed_unsync());
    *response.status_mut() = parts.status;
    *response.headers_mut() = without_hop_headers(parts.headers);
    Ok(response)
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    let limit = usize::try_from(MAX_BODY).unwrap_or(usize::MAX);
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::TooLong),
        // The client is gone; nobody reads the answer.
        Err(_) => Err(Refusal::Stopped),
    }
}

fn digest(method: &str, path: &str, body: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    for field in [method.as_bytes(), path.as_bytes(), body] {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    }
    hasher.finalize().to_hex().to_string()
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect()
}

/// Why a client gets an error of ours.
enum Refusal {
    NotConfigured,
    Path,
    TooLong,
    Busy,
    Failed(String),
    Lost,
    Stopped,
}

impl Refusal {
    fn response(self, dialect: Dialect) -> Response<Body> {
        let (status, kind, message) = match self {
            Self::NotConfigured => (
                503,
                "api_error",
                "no model endpoint is configured for this sandbox; \
                 start the harness with `durable run --model-url URL --model-key-env VAR …`"
                    .to_owned(),
            ),
            Self::Path => (
                400,
                "invalid_request_error",
                "this path is not served".to_owned(),
            ),
            Self::TooLong => (
                413,
                "request_too_large",
                format!("the request is longer than {MAX_BODY} bytes"),
            ),
            Self::Busy => (
                429,
                "rate_limit_error",
                "too many requests of this sandbox are running".to_owned(),
            ),
            Self::Failed(error) => (
                502,
                "api_error",
                format!("the model endpoint did not answer: {error}"),
            ),
            Self::Lost => (
                502,
                "api_error",
                "the connection to the model endpoint was lost".to_owned(),
            ),
            Self::Stopped => (
                503,
                "api_error",
                "the gateway of this sandbox is being stopped".to_owned(),
            ),
        };
        let body = Bytes::from(dialect.error(kind, &message));
        let body = Full::new(body).map_err(|never: Infallible| match never {});
        let mut response = Response::new(body.boxed_unsync());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_the_base() {
        for bad in [
            "",
            "x",
            "/..",
            "/a/../b",
            "/%2e%2E/b",
            "/a/.%2e",
            "/a\\..\\b",
        ] {
            assert!(!is_plain(bad), "{bad:?} was accepted");
        }
        for good in ["/", "/v1/messages", "/a..b/...", "/.x"] {
            assert!(is_plain(good), "{good:?} was refused");
        }
    }

    #[test]
    fn the_fields_of_a_digest_cannot_run_together() {
        assert_ne!(digest("POST", "/a", b"b"), digest("POST", "/ab", b""));
        assert_eq!(digest("POST", "/a", b"b"), digest("POST", "/a", b"b"));
    }
}
