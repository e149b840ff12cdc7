//! How a refusal is worded for the program that hears it: programs show people little of an answer, and each shows something else.
//!
//! | shown | by |
//! |---|---|
//! | the body | curl, cargo |
//! | the body, if it is `text/plain` | git where it begins, go |
//! | a message of its own protocol in an answer that is 200 | git where it sends or asks for objects |
//! | `error` of a JSON body, if it is a text | npm |
//! | `message` of a JSON body | yarn 1 |
//! | `detail` of `application/problem+json` | uv |
//! | the reason phrase of HTTP/1.1 | pip, requests, urllib, wget, pnpm, yarn, Ruby, PHP, apt |
//! | `grpc-message` of an answer that is 200 | gRPC |
//!
//! Programs that are not known by name get JSON whose `error` is an object, as APIs have it; that promise is for them.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;
use protocol::DenyReason;

use super::{Denial, word};
use crate::body::{Body, full};

/// As much as fits on a few lines of a terminal; the body has all of it.
const MAX_PHRASE: usize = 400;
/// What fits in a packet line of the smallest side band.
const MAX_PACKET: usize = 990;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Who hears a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listener {
    /// Any program; most read JSON.
    Any,
    Git,
    /// git that asks for objects.
    GitFetch,
    /// git that sends objects.
    GitPush,
    Go,
    Grpc,
    /// npm, and yarn 1.
    Npm,
    Uv,
}

impl Listener {
    /// Returns who sent a request with these headers. What it says of itself changes words and nothing else.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name| {
            headers
                .get(name)
                .map_or(&b""[..], |value: &HeaderValue| value.as_bytes())
        };
        // Also `+proto` and the like; `-web` is another protocol.
        let kind = text(CONTENT_TYPE).strip_prefix(b"application/grpc");
        if kind.is_some_and(|rest| matches!(rest, [] | [b'+' | b';', ..])) {
            return Self::Grpc;
        }
        let git = match text(CONTENT_TYPE) {
            b"application/x-git-upload-pack-request" => Self::GitFetch,
            b"application/x-git-receive-pack-request" => Self::GitPush,
            _ => Self::Git,
        };
        let known: [(&[u8], Self); 5] = [
            (b"git/", git),
            (b"Go-http-client/", Self::Go),
            (b"npm/", Self::Npm),
            (b"yarn/1.", Self::Npm),
            (b"uv/", Self::Uv),
        ];
        let agent = text(USER_AGENT);
        let found = known.iter().find(|(name, _)| agent.starts_with(name));
        found.map_or(Self::Any, |(_, listener)| *listener)
    }

    /// Returns the status: 200 for those that look at nothing else than that, and hear of the refusal in what follows.
    pub(super) fn status(self, denial: &Denial) -> StatusCode {
        match self {
            Self::GitFetch | Self::GitPush | Self::Grpc => StatusCode::OK,
            Self::Any | Self::Git | Self::Go | Self::Npm | Self::Uv => denial.status,
        }
    }

    /// Returns what the body is called.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Any | Self::Npm => "application/json",
            // Programs in Go that are no `go` read JSON without asking what it is called.
            Self::Git | Self::Go => "text/plain; charset=utf-8",
            Self::GitFetch => "application/x-git-upload-pack-result",
            Self::GitPush => "application/x-git-receive-pack-result",
            Self::Grpc => "application/grpc",
            Self::Uv => "application/problem+json",
        }
    }

    /// Returns the body.
    pub(super) fn body(self, denial: &Denial) -> Bytes {
        let error = serde_json::json!({
            "type": "egress_denied",
            "reason": word(denial.reason),
            "rule": denial.rule,
            "message": denial.message,
        });
        let mut text = match self {
            Self::Any | Self::Go => serde_json::json!({ "error": error }).to_string(),
            Self::Git => plain(denial),
            Self::GitFetch => return packet("ERR ", denial).into(),
            // The third band is what ends it; no ref is reported, so none is taken for pushed.
            Self::GitPush => return (packet("\u{3}", denial) + "0000").into(),
            Self::Grpc => return Bytes::new(),
            Self::Npm => serde_json::json!({
                "error": denial.message,
                "message": denial.message,
                "denied": error,
            })
            .to_string(),
            Self::Uv => serde_json::json!({
                "title": "egress denied",
                "status": denial.status.as_u16(),
                "detail": denial.message,
                "error": error,
            })
            .to_string(),
        };
        text.push('\n');
        text.into()
    }
}

fn plain(denial: &Denial) -> String {
    format!(
        "egress denied ({}): {}",
        word(denial.reason),
        denial.message
    )
}

/// Returns a packet line of git's with the refusal.
fn packet(kind: &str, denial: &Denial) -> String {
    let mut text = kind.to_owned() + &plain(denial);
    text.truncate(text.floor_char_boundary(MAX_PACKET));
    format!("{:04x}{text}\n", text.len() + 5)
}

/// Returns the answer to a gRPC call: such clients look at an answer's message only where HTTP says 200.
pub(super) fn grpc(denial: &Denial) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    // Codes of gRPC: INVALID_ARGUMENT, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE. Clients try the last again by
    // themselves, which may help where the upstream failed.
    let code = match (denial.reason, denial.status) {
        (DenyReason::Upstream, _) | (_, StatusCode::SERVICE_UNAVAILABLE) => "14",
        (DenyReason::Budget, _) => "8",
        (_, StatusCode::BAD_REQUEST) => "3",
        _ => "7",
    };
    let headers = response.headers_mut();
    headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
    if let Ok(message) = HeaderValue::from_str(&percent(&denial.message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

/// As gRPC wants it: what is not printable ASCII, and `%`, as its bytes.
fn percent(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns the words after the status of HTTP/1.1: the usual ones, and why. HTTP/2 has none.
pub(super) fn phrase(denial: &Denial) -> String {
    let usual = denial.status.canonical_reason().unwrap_or("Refused");
    let plain = |c: char| {
        if c == ' ' || c.is_ascii_graphic() {
            c
        } else {
            '?'
        }
    };
    let whole: String = format!("{usual}: {}", denial.message)
        .chars()
        .map(plain)
        .collect();
    if whole.len() <= MAX_PHRASE {
        return whole;
    }
    let cut = whole[..MAX_PHRASE].rfind(' ').unwrap_or(MAX_PHRASE);
    format!("{}...", &whole[..cut])
}

/// Returns the same for hyper.
pub(super) fn reason_phrase(denial: &Denial) -> Option<ReasonPhrase> {
    ReasonPhrase::try_from(phrase(denial).into_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(message: &str) -> Denial {
        Denial::forbidden(DenyReason::NoRule, message).by_rule("r")
    }

    fn heard_by(agent: &'static str) -> Listener {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        Listener::of(&headers)
    }

    #[test]
    fn programs_are_known_by_what_they_call_themselves() {
        for (agent, listener) in [
            ("git/2.39.5", Listener::Git),
            ("npm/11.19.1 node/v20.20.2 linux x64", Listener::Npm),
            ("yarn/1.22.22 npm/? node/v20.20.2", Listener::Npm),
            ("yarn/4.18.1 npm/? node/v20.20.2", Listener::Any),
            ("uv/0.13.9", Listener::Uv),
            ("Go-http-client/2.0", Listener::Go),
            ("git/2.39.5 x", Listener::Git),
            ("curl/8.0 git/2", Listener::Any),
        ] {
            assert_eq!(heard_by(agent), listener, "{agent}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        assert_eq!(Listener::of(&headers), Listener::Grpc);
    }

    #[test]
    fn all_hear_the_message_and_unknown_programs_an_object() {
        let denial = denial("no \"x\"");
        let json = |listener: Listener| -> serde_json::Value {
            serde_json::from_slice(&listener.body(&denial)).unwrap()
        };
        for listener in [Listener::Any, Listener::Go, Listener::Uv] {
            let error = &json(listener)["error"];
            assert_eq!(error["message"], "no \"x\"", "{listener:?}");
            assert_eq!(error["type"], "egress_denied");
        }
        assert_eq!(json(Listener::Npm)["error"], "no \"x\"");
        assert_eq!(json(Listener::Npm)["denied"]["rule"], "r");
        assert_eq!(json(Listener::Uv)["detail"], "no \"x\"");
        let git = Listener::Git.body(&denial);
        assert_eq!(&git[..], b"egress denied (no_rule): no \"x\"\n");
    }

    #[test]
    fn git_hears_it_in_its_own_protocol_and_of_no_ref() {
        let denial = denial(&"\u{e9}".repeat(2000));
        let push = Listener::GitPush.body(&denial);
        let length = usize::from_str_radix(std::str::from_utf8(&push[..4]).unwrap(), 16).unwrap();
        assert_eq!(&push[length..], b"0000");
        assert!(push[4..].starts_with(b"\x03egress denied (no_rule): ") && length < 1000);
        let fetch = Listener::GitFetch.body(&denial);
        assert!(fetch[4..].starts_with(b"ERR egress denied"));
        for listener in [Listener::GitPush, Listener::GitFetch] {
            assert_eq!(listener.status(&denial), StatusCode::OK);
        }
    }

    #[test]
    fn a_phrase_is_one_short_line() {
        assert_eq!(
            phrase(&denial("a\r\nSet-Cookie: \u{e9}")),
            "Forbidden: a??Set-Cookie: ?"
        );
        let long = phrase(&denial(&"word ".repeat(200)));
        assert!(long.len() <= MAX_PHRASE + 3 && long.ends_with("word..."));
        assert!(reason_phrase(&denial("a\r\n\u{e9}")).is_some());
    }

    #[test]
    fn grpc_hears_a_code_and_the_message() {
        let answer = grpc(&denial("100 % no\n"));
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["grpc-status"], "7");
        assert_eq!(answer.headers()["grpc-message"], "100 %25 no%0A");
    }
}
