//! A request with what was found out about it: what a policy is asked, and what the journal is told.

use std::io;
use std::time::Duration;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Body as _;
use policy::{GitAct, Grant, Host, Policy, Verdict};
use protocol::{AskedBody, DenyReason, EffectKind, Outgoing};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::body::Peeked;
use crate::connection::outline;
use crate::deny::Denial;
use crate::head;
use crate::placeholder;
use crate::seam::Placeholder;

use super::escape;

/// How much of a body is looked at before it goes on: the commands of a push, a GraphQL document.
const MAX_PEEK: usize = 64 << 10;
/// Headers that say what a request is about, besides its target and its body: two that differ in one of them are two requests.
/// What belongs to a connection, a moment or a person is none of it.
const SAYING: [&str; 14] = [
    "content-type",
    "content-encoding",
    "content-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    "if-range",
    "range",
    "destination",
    "depth",
    "overwrite",
    "x-amz-copy-source",
    "soapaction",
];
/// Headers with which a client asks for another method than it says.
const OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];
/// Headers in which one try of a request differs from the next.
const OF_ONE_TRY: [&str; 9] = [
    "connection",
    "date",
    "expect",
    "host",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-amz-date",
    "x-request-id",
];
/// How much of a body a person is shown.
const BEGINNING: usize = 1 << 10;
pub(super) const PEEK_TIMEOUT: Duration = Duration::from_secs(30);

/// A request with what was found out about it.
pub(super) struct Asked {
    pub(super) parts: Parts,
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) secure: bool,
    pub(super) websocket: bool,
    pub(super) git: Option<GitAct>,
    /// Methods that its headers ask to be taken for: many frameworks do so, and no rule about methods may be gone around by that.
    pub(super) instead: Vec<String>,
}

impl Asked {
    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    pub(super) fn judged_by(&self, policy: &Policy) -> Verdict<Grant> {
        let mut also = self
            .instead
            .iter()
            .map(|method| self.judged_as(method, policy));
        let denied = also.find(|verdict| matches!(verdict, Verdict::Deny { .. }));
        denied.unwrap_or_else(|| self.judged_as(self.parts.method.as_str(), policy))
    }

    fn judged_as(&self, method: &str, policy: &Policy) -> Verdict<Grant> {
        policy.request(&policy::Request {
            host: &self.host,
            port: self.port,
            tls: self.secure,
            method,
            path: self.path(),
            query: self.parts.uri.query(),
            websocket: self.websocket,
            git: self.git.as_ref(),
        })
    }

    pub(super) fn outgoing(&self, placeholders: &[Placeholder]) -> Outgoing {
        let protocol = match (self.websocket, self.secure) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "ws",
            (true, true) => "wss",
        };
        let mut outgoing = outline(protocol, &self.host, self.port);
        outgoing.method = Some(method_text(&self.parts.method));
        let path = self
            .parts
            .uri
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        outgoing.path = Some(placeholder::shown(placeholders, path));
        outgoing
    }

    /// Returns the part of it that a policy is asked about.
    pub(super) fn bare(&self) -> Self {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = self.parts.method.clone();
        parts.uri = self.parts.uri.clone();
        Self {
            parts,
            host: self.host.clone(),
            port: self.port,
            secure: self.secure,
            websocket: self.websocket,
            git: self.git.clone(),
            instead: self.instead.clone(),
        }
    }

    /// BLAKE3 of everything in its head that a repetition of it must have as well, in hex.
    pub(super) fn identity(&self) -> String {
        let mut hash = blake3::Hasher::new();
        let mut add = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        let path = self.parts.uri.path_and_query();
        add(if self.secure { b"https" } else { b"http" });
        add(head::authority(&self.host, self.port, self.secure).as_bytes());
        add(self.parts.method.as_str().as_bytes());
        add(path.map_or("/", PathAndQuery::as_str).as_bytes());
        for name in SAYING.iter().chain(&OVERRIDES) {
            for value in self.parts.headers.get_all(*name) {
                add(name.as_bytes());
                add(value.as_bytes());
            }
        }
        hash.finalize().to_hex().to_string()
    }

    /// Of everything that a person is asked about: the whole head but for what differs from try to try, and the body as far as
    /// it is known.
    pub(super) fn digest(&self, rule: &str, body: Option<&AskedBody>) -> String {
        let mut hash = blake3::Hasher::new();
        let mut put = |part: &[u8]| {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        let authority = head::authority(&self.host, self.port, self.secure);
        let path = self
            .parts
            .uri
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        put(rule.as_bytes());
        put(if self.secure { b"https" } else { b"http" });
        put(authority.as_bytes());
        put(self.parts.method.as_str().as_bytes());
        put(path.as_bytes());
        let mut headers: Vec<(&str, &[u8])> = self
            .parts
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .filter(|(name, _)| !OF_ONE_TRY.contains(name))
            .collect();
        headers.sort_unstable();
        for (name, value) in headers {
            put(name.as_bytes());
            put(value);
        }
        put(b"");
        if let Some(GitAct::Push { refs, .. }) = &self.git {
            put(refs.join("\n").as_bytes());
        }
        if let Some(body) = body {
            put(&body.bytes.map_or([0; 8], u64::to_le_bytes));
            put(body.digest.as_deref().unwrap_or("streamed").as_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}

/// Returns what a person is shown of a body. One that is short, and whose length was said, is read before.
pub(super) async fn asked_body(
    asked: &Asked,
    body: &mut Peeked,
    placeholders: &[Placeholder],
) -> Result<Option<AskedBody>, Denial> {
    if asked.websocket || body.is_end_stream() {
        return Ok(None);
    }
    let bytes = body.size_hint().exact();
    if bytes.is_none_or(|bytes| bytes > MAX_PEEK as u64) {
        return Ok(Some(AskedBody {
            bytes,
            ..AskedBody::default()
        }));
    }
    let read = timeout(PEEK_TIMEOUT, body.gather()).await;
    let read = read.map_err(too_slow)?.map_err(broken)?;
    let beginning = &read[..read.len().min(BEGINNING)];
    Ok(Some(AskedBody {
        bytes,
        digest: Some(blake3::hash(&read).to_hex().to_string()),
        beginning: Some(escape::text(placeholders, beginning)),
    }))
}

fn too_slow(_: Elapsed) -> Denial {
    Denial::new(
        StatusCode::REQUEST_TIMEOUT,
        DenyReason::Protocol,
        "the body did not come in time",
    )
}

fn broken(_: io::Error) -> Denial {
    Denial::malformed("the body broke off")
}

/// Reads what a decision needs of the body: a push's commands, a GraphQL document. Returns it where it is the whole body.
pub(super) async fn look_into(
    asked: &mut Asked,
    body: &mut Peeked,
) -> Result<Option<Vec<u8>>, Denial> {
    let uri = &asked.parts.uri;
    asked.git = policy::git_act(asked.parts.method.as_str(), uri.path(), uri.query());
    if let Some(GitAct::Push { repo, .. }) = &asked.git {
        if asked.parts.headers.contains_key(CONTENT_ENCODING) {
            return Err(Denial::malformed(
                "a push with a Content-Encoding cannot be looked into",
            ));
        }
        let mut found = Ok(None);
        let enough = |bytes: &[u8]| {
            found = policy::push_commands(bytes);
            !matches!(found, Ok(None))
        };
        timeout(PEEK_TIMEOUT, body.peek(MAX_PEEK, enough))
            .await
            .map_err(too_slow)?
            .map_err(broken)?;
        let commands = found
            .map_err(|error| Denial::malformed(format!("this is no push: {}", error.0)))?
            .ok_or_else(|| Denial::malformed("the push ends before its commands do"))?;
        let refs = commands.into_iter().map(|command| command.name).collect();
        let repo = repo.clone();
        asked.git = Some(GitAct::Push { repo, refs });
        return Ok(None);
    }
    let is_text = asked.parts.headers.get(CONTENT_TYPE).is_some_and(|kind| {
        kind.as_bytes().starts_with(b"application/json")
            || kind.as_bytes().starts_with(b"application/graphql")
    });
    if asked.parts.method == Method::POST && is_text && asked.path().contains("graphql") {
        let (bytes, whole) = timeout(PEEK_TIMEOUT, body.peek(MAX_PEEK, |_| false))
            .await
            .map_err(too_slow)?
            .map_err(broken)?;
        return Ok(whole.then_some(bytes));
    }
    Ok(None)
}

/// Whether a request only reads, now that its headers and body are known.
pub(super) fn kind(asked: &Asked, body: &Peeked, whole: Option<&[u8]>) -> EffectKind {
    if asked.websocket {
        return EffectKind::Write;
    }
    let some: &[u8] = if body.is_end_stream() { b"" } else { b"?" };
    let headers = asked.parts.headers.iter();
    policy::kind(
        asked.parts.method.as_str(),
        asked.path(),
        headers.map(|(name, value)| (name.as_str(), value.as_bytes())),
        Some(whole.unwrap_or(some)),
    )
}

/// Returns the methods that headers ask for instead of the real one.
pub(super) fn instead(headers: &HeaderMap) -> Vec<String> {
    OVERRIDES
        .iter()
        .flat_map(|name| headers.get_all(*name))
        .map(|value| {
            String::from_utf8_lossy(value.as_bytes())
                .trim()
                .to_ascii_uppercase()
        })
        .collect()
}

/// A method for the journal: in HTTP/2 nothing else limits its length.
pub(super) fn method_text(method: &Method) -> String {
    method.as_str().chars().take(32).collect()
}
