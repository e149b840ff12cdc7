//! Heads of requests and answers: what they name, and which of their headers travel.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Version};
use policy::Host;
use protocol::DenyReason;

use crate::deny::Denial;

/// Headers that belong to one connection. `te` and `trailer` are kept where they say what gRPC needs.
const HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Whom a request is for, by its own words: the authority in its URI and its `Host`, which must agree.
pub(crate) fn named<B>(request: &Request<B>, default_port: u16) -> Result<(Host, u16), Denial> {
    let uri = request.uri();
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Denial::malformed("there must be exactly one Host header"));
    }
    let of_uri = match uri.authority() {
        Some(authority) => Some(parse(authority.as_str(), default_port)?),
        None => None,
    };
    let of_host = match host {
        Some(host) => {
            let text = host
                .to_str()
                .map_err(|_| bad_name("the Host header is no text"))?;
            Some(parse(text, default_port)?)
        }
        None => None,
    };
    match (of_uri, of_host) {
        (Some(uri), Some(host)) if uri != host => Err(Denial::mismatch(format!(
            "the request is for {} by its target and for {} by its Host header",
            uri.0, host.0
        ))),
        (Some(one), _) | (None, Some(one)) => Ok(one),
        (None, None) => Err(Denial::malformed("the request names no host")),
    }
}

fn parse(text: &str, default_port: u16) -> Result<(Host, u16), Denial> {
    policy::authority(text, Some(default_port)).map_err(|error| {
        let shown: String = text.chars().take(100).collect();
        bad_name(&format!("{shown:?} names no host: {error}"))
    })
}

fn bad_name(message: &str) -> Denial {
    Denial::new(http::StatusCode::BAD_REQUEST, DenyReason::BadName, message)
}

/// Whether a request wants to become a WebSocket, in HTTP/1.1.
pub(crate) fn is_websocket<B>(request: &Request<B>) -> bool {
    let has = |name: HeaderName, token: &str| {
        request
            .headers()
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|value| value.trim().eq_ignore_ascii_case(token))
    };
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && has(header::UPGRADE, "websocket")
        && has(header::CONNECTION, "upgrade")
}

/// Whether the front waits to hear what the connection becomes after this request.
pub(crate) fn may_switch<B>(request: &Request<B>) -> bool {
    request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE)
}

/// Returns the client's headers as they go on: without those of its connection to us, and without `Host`.
pub(crate) fn outgoing(client: &HeaderMap) -> HeaderMap {
    let mut headers = without_hop(client);
    headers.remove(header::HOST);
    // We answer it ourselves, as soon as the body is wanted.
    headers.remove(header::EXPECT);
    let trailers = client
        .get(header::TE)
        .is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    headers
}

/// Returns an upstream's headers as they go on to the client: without what would lead it around us.
pub(crate) fn returned(upstream: &HeaderMap) -> HeaderMap {
    let mut headers = without_hop(upstream);
    headers.remove(header::ALT_SVC);
    // Only we say this.
    headers.remove(crate::deny::DENY_HEADER);
    headers
}

fn without_hop(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let hop = HOP.contains(&name.as_str()) || named.iter().any(|hop| hop == name.as_str());
        // What frames the body cannot be named away.
        if !hop || name == header::CONTENT_LENGTH {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Returns a host and port as they stand in `Host` and `:authority`.
pub(crate) fn authority(host: &Host, port: u16, tls: bool) -> String {
    let usual = if tls { 443 } else { 80 };
    if port == usual {
        host.in_url()
    } else {
        format!("{}:{port}", host.in_url())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn target_and_host_must_agree() {
        let named = |uri, hosts: &[(&'static str, &'static str)]| {
            super::named(&request(uri, hosts), 443)
                .map(|(host, port)| format!("{host}:{port}"))
                .map_err(|denial| denial.reason)
        };
        assert_eq!(named("/", &[("host", "A.test.")]), Ok("a.test:443".into()));
        assert_eq!(named("https://a.test/", &[]), Ok("a.test:443".into()));
        assert_eq!(
            named("https://a.test/", &[("host", "a.test:443")]),
            Ok("a.test:443".into())
        );
        assert_eq!(
            named("/", &[("host", "[2001:db8::1]:8443")]),
            Ok("2001:db8::1:8443".into())
        );
        use DenyReason as R;
        assert_eq!(
            named("https://a.test/", &[("host", "b.test")]),
            Err(R::Mismatch)
        );
        assert_eq!(
            named("https://a.test/", &[("host", "a.test:1")]),
            Err(R::Mismatch)
        );
        assert_eq!(named("http://u@a.test/", &[]), Err(R::BadName));
        assert_eq!(named("/", &[("host", "u@a.test")]), Err(R::BadName));
        assert_eq!(named("/", &[("host", "127.1")]), Err(R::BadName));
        assert_eq!(
            named("/", &[("host", "a.test"), ("host", "a.test")]),
            Err(R::Protocol)
        );
        assert_eq!(named("/", &[]), Err(R::Protocol));
    }

    #[test]
    fn what_belongs_to_one_connection_does_not_travel() {
        let client = request(
            "/",
            &[
                ("host", "a"),
                ("connection", "keep-alive, X-Hop"),
                ("x-hop", "1"),
                ("proxy-authorization", "Basic eDp5"),
                ("te", "trailers"),
                ("upgrade", "h2c"),
                ("expect", "100-continue"),
                ("accept", "a"),
                ("accept", "b"),
            ],
        );
        let sent = outgoing(client.headers());
        let mut names: Vec<_> = sent.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "accept", "te"]);
        let mut answer = HeaderMap::new();
        for (name, value) in [
            ("alt-svc", "h3=\":443\""),
            ("x-durable-deny", "x"),
            ("etag", "1"),
        ] {
            answer.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(returned(&answer).len(), 1);
    }
}
