//! Where a sandbox's model requests go, with which key, and which headers travel.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{PathAndQuery, Uri};

use crate::Secret;

/// Headers that belong to one connection.
const HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers that are made anew for the upstream. `accept-encoding` is among them: the answer must be plain text, or its
/// tool calls could not be read.
const OURS: [&str; 7] = [
    "accept-encoding",
    "authorization",
    "content-length",
    "cookie",
    "expect",
    "host",
    "x-api-key",
];

/// Headers of an answer that its client may need, also when it is served again.
const RETURNED: [&str; 10] = [
    "cache-control",
    "content-encoding",
    "content-type",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-request-id",
    "x-should-retry",
    "openai-processing-ms",
    "openai-version",
];
const RETURNED_PREFIXES: [&str; 2] = ["anthropic-", "x-ratelimit-"];

/// Why an upstream is not usable.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The base URL is none.
    #[error("model URL {url:?} is not usable: {why}")]
    Url {
        /// What was given.
        url: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The key cannot stand in a header.
    #[error("the model key holds characters that cannot be sent in a header")]
    Key,
}

/// The one place that a sandbox's model requests go to.
#[derive(Debug, Clone)]
pub struct Upstream {
    base: String,
    key: Option<Secret>,
}

impl Upstream {
    /// Takes a base URL such as `https://api.anthropic.com`, with or without a path in front, and the key for it.
    ///
    /// # Errors
    /// A URL that is not `http://` or `https://` with a host, or that has a query or a password; a key that is no header.
    pub fn new(url: &str, key: Option<Secret>) -> Result<Self, UpstreamError> {
        let refuse = |why| UpstreamError::Url {
            url: url.chars().take(200).collect(),
            why,
        };
        let parsed: Uri = url.parse().map_err(|_| refuse("it is no URL"))?;
        if !matches!(parsed.scheme_str(), Some("http" | "https")) {
            return Err(refuse("it must start with http:// or https://"));
        }
        let authority = parsed.authority().ok_or_else(|| refuse("it has no host"))?;
        if authority.as_str().contains('@') {
            // Not shown: what stands before the @ may be a password.
            return Err(UpstreamError::Url {
                url: authority.host().to_owned(),
                why: "it must not hold a user or password",
            });
        }
        if parsed.query().is_some() {
            return Err(refuse("it must not have a query"));
        }
        if let Some(key) = &key
            && (key.expose().is_empty() || HeaderValue::from_str(key.expose()).is_err())
        {
            return Err(UpstreamError::Key);
        }
        Ok(Self {
            base: url.trim_end_matches('/').to_owned(),
            key,
        })
    }

    /// Returns the URL of a path at this upstream. A `/v1` at the end of the base is not repeated.
    pub(crate) fn url(&self, path: &PathAndQuery) -> String {
        let mut path = path.as_str();
        if self.base.ends_with("/v1") && path.starts_with("/v1/") {
            path = &path["/v1".len()..];
        }
        format!("{}{path}", self.base)
    }

    /// Returns the headers for the upstream: the client's without its credentials, with the real key.
    pub(crate) fn headers(&self, client: &HeaderMap, wants: KeyHeader) -> HeaderMap {
        let named_by_client: Vec<&str> = client
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(str::trim))
            .collect();
        let mut headers = HeaderMap::new();
        for (name, value) in client {
            let dropped = HOP.contains(&name.as_str())
                || OURS.contains(&name.as_str())
                || named_by_client
                    .iter()
                    .any(|hop| hop.eq_ignore_ascii_case(name.as_str()));
            if !dropped {
                headers.append(name, value.clone());
            }
        }
        if let Some(key) = &self.key {
            let key = key.expose();
            // OAuth tokens of Anthropic are bearer tokens, its API keys are not.
            let bearer = wants == KeyHeader::Bearer || key.starts_with("sk-ant-oat");
            let (name, text) = if bearer {
                (header::AUTHORIZATION, format!("Bearer {key}"))
            } else {
                (HeaderName::from_static("x-api-key"), key.to_owned())
            };
            // `new` has checked that it is a header value.
            if let Ok(mut value) = HeaderValue::from_str(&text) {
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        headers
    }
}

/// The header in which an upstream wants its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `x-api-key`.
    ApiKey,
    /// `authorization: Bearer`.
    Bearer,
}

/// Returns an answer's headers without those that belong to one connection.
pub(crate) fn without_hop_headers(mut headers: HeaderMap) -> HeaderMap {
    for name in HOP {
        headers.remove(name);
    }
    headers
}

/// Returns what of an answer's headers is kept and shown to the client, live and when it is served again.
pub(crate) fn returned_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| {
            RETURNED.contains(&name.as_str())
                || RETURNED_PREFIXES
                    .iter()
                    .any(|prefix| name.as_str().starts_with(prefix))
        })
        .filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, path: &'static str) -> String {
        Upstream::new(base, None)
            .unwrap()
            .url(&PathAndQuery::from_static(path))
    }

    #[test]
    fn a_path_is_put_behind_the_base() {
        let path = "/v1/messages?beta=true";
        assert_eq!(url("https://h", path), "https://h/v1/messages?beta=true");
        assert_eq!(
            url("http://h:1/p/", path),
            "http://h:1/p/v1/messages?beta=true"
        );
        assert_eq!(url("https://h/v1", path), "https://h/v1/messages?beta=true");
    }

    #[test]
    fn a_url_that_cannot_be_one_is_refused() {
        for bad in [
            "",
            "h",
            "ftp://h",
            "https://",
            "https://u:pw@h",
            "https://h/?k=v",
        ] {
            assert!(Upstream::new(bad, None).is_err(), "{bad:?} was accepted");
        }
        let error = Upstream::new("https://u:pw@h", None).unwrap_err();
        assert!(!error.to_string().contains("pw"), "{error}");
        assert!(Upstream::new("https://h", Some(Secret::new("a\nb"))).is_err());
    }

    #[test]
    fn the_dummy_key_is_replaced_in_both_forms() {
        let mut client = HeaderMap::new();
        for (name, value) in [
            ("x-api-key", "dummy"),
            ("authorization", "Bearer dummy"),
            ("anthropic-version", "2023-06-01"),
            ("accept-encoding", "gzip"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("host", "127.0.0.1"),
        ] {
            client.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let upstream = Upstream::new("https://h", Some(Secret::new("sk-real"))).unwrap();
        let sent = |wants| {
            let mut list: Vec<String> = upstream
                .headers(&client, wants)
                .iter()
                .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
                .collect();
            list.sort();
            list
        };
        let version = "anthropic-version=2023-06-01";
        assert_eq!(sent(KeyHeader::ApiKey), [version, "x-api-key=sk-real"]);
        assert_eq!(
            sent(KeyHeader::Bearer),
            [version, "authorization=Bearer sk-real"]
        );
    }
}
