//! Requests: redirects, time limits, and which host is shown the credentials.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::error::RegistryError;
use crate::reference::{Reference, is_loopback};
use crate::text::shown;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// From the request to the head of the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const BODY_TIMEOUT: Duration = Duration::from_secs(120);
const POOL_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 10;
/// What is read of a refusal for its reason.
const MAX_REFUSAL: usize = 16 << 10;

/// Asks hosts by HTTP.
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Whether hosts on this machine may be spoken to, and in the clear: only for a registry that is there itself.
    local: bool,
}

impl Http {
    pub(super) fn new(local: bool) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(KEEPALIVE));
        let builder = hyper_rustls::HttpsConnectorBuilder::new();
        let builder = match builder.with_native_roots() {
            Ok(builder) => builder,
            Err(_none_there) => hyper_rustls::HttpsConnectorBuilder::new().with_webpki_roots(),
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self { client, local }
    }

    /// Gets a URL, through redirects.
    pub(super) async fn get(
        &self,
        url: &str,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut uri = self.checked(url)?;
        let home = origin(&uri);
        for _ in 0..MAX_REDIRECTS {
            let mut headers = headers.clone();
            if let Some(authorization) = authorization.filter(|_| origin(&uri) == home) {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let response = self
                .send(Method::GET, uri.clone(), headers, Bytes::new())
                .await?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get(LOCATION).filter(|_| is_redirect);
            let Some(location) = location else {
                return Ok(response);
            };
            let next = self.checked(&resolve(
                &uri,
                &String::from_utf8_lossy(location.as_bytes()),
            ))?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(misled(
                    &next.to_string(),
                    "it is not encrypted, and what led there is",
                ));
            }
            uri = next;
        }
        Err(misled(url, "there are too many redirects"))
    }

    /// Posts a form. Redirects are not followed: there are secrets in it.
    pub(super) async fn post(
        &self,
        url: &str,
        form: String,
    ) -> Result<Response<Incoming>, RegistryError> {
        let uri = self.checked(url)?;
        let mut headers = HeaderMap::new();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        self.send(Method::POST, uri, headers, form.into()).await
    }

    async fn send(
        &self,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, RegistryError> {
        let host = uri.authority().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::new(Full::new(body));
        (
            *request.method_mut(),
            *request.uri_mut(),
            *request.headers_mut(),
        ) = (method, uri, headers);
        let agent = concat!("durable-sandbox/", env!("CARGO_PKG_VERSION"));
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(agent));
        match tokio::time::timeout(ANSWER_TIMEOUT, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(RegistryError::Unreachable {
                host,
                why: with_causes(&error),
            }),
            Err(_) => Err(RegistryError::Unreachable {
                host,
                why: format!("no answer within {} seconds", ANSWER_TIMEOUT.as_secs()),
            }),
        }
    }

    /// Reads a body that is bounded. The inner error is words for people, and another try may help.
    pub(super) async fn body(
        &self,
        response: Response<Incoming>,
        allowed: u64,
    ) -> Result<Result<Bytes, String>, RegistryError> {
        let limit = usize::try_from(allowed).unwrap_or(usize::MAX);
        let body = Limited::new(response.into_body(), limit).collect();
        match tokio::time::timeout(BODY_TIMEOUT, body).await {
            Err(_) => Ok(Err(format!(
                "its answer did not end within {} seconds",
                BODY_TIMEOUT.as_secs()
            ))),
            Ok(Ok(body)) => Ok(Ok(body.to_bytes())),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let what = "document that came";
                Err(RegistryError::TooLarge { what, allowed })
            }
            Ok(Err(error)) => Ok(Err(with_causes(&*error))),
        }
    }

    /// Turns an answer that is no success into an error, with what the registry says about it.
    pub(super) async fn refusal(
        &self,
        response: Response<Incoming>,
        reference: &Reference,
        path: &str,
    ) -> RegistryError {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_REFUSAL).collect();
        let said = match tokio::time::timeout(ANSWER_TIMEOUT, body).await {
            Ok(Ok(body)) => reason(&body.to_bytes()),
            _ => String::new(),
        };
        let (host, repository) = (
            reference.registry().to_owned(),
            reference.repository().to_owned(),
        );
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => RegistryError::Denied {
                host,
                repository,
                said,
            },
            StatusCode::NOT_FOUND => {
                let last = path.rsplit('/').next().unwrap_or(path);
                let what = format!("{repository} ({last})");
                RegistryError::NotFound { host, what, said }
            }
            status => RegistryError::Status {
                host,
                status: status.as_u16(),
                said,
            },
        }
    }

    /// Parses a URL that may be asked.
    fn checked(&self, url: &str) -> Result<Uri, RegistryError> {
        let uri: Uri = url.parse().map_err(|_| misled(url, "it is no URL"))?;
        let host = uri
            .host()
            .ok_or_else(|| misled(url, "there is no host in it"))?;
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str().contains('@'))
        {
            return Err(misled(url, "there are credentials in it"));
        }
        match uri.scheme_str() {
            Some("https" | "http") if is_loopback(host) && !self.local => {
                Err(misled(url, "it is on this machine"))
            }
            Some("https") => Ok(uri),
            Some("http") if is_loopback(host) => Ok(uri),
            _ => Err(misled(url, "only https is spoken to other machines")),
        }
    }
}

fn misled(url: &str, why: &'static str) -> RegistryError {
    // Signed URLs carry secrets behind the question mark.
    let url = url.split('?').next().unwrap_or(url);
    RegistryError::Misled {
        url: shown(url.as_bytes()),
        why,
    }
}

fn origin(uri: &Uri) -> (String, String, u16) {
    let scheme = uri.scheme_str().unwrap_or("").to_owned();
    let port = uri
        .port_u16()
        .unwrap_or(if scheme == "http" { 80 } else { 443 });
    (scheme, uri.host().unwrap_or("").to_ascii_lowercase(), port)
}

/// Joins what a redirect says to where it was said.
fn resolve(base: &Uri, location: &str) -> String {
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base
        .authority()
        .map(http::uri::Authority::as_str)
        .unwrap_or_default();
    if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let directory = base
            .path()
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        format!("{scheme}://{authority}{directory}/{location}")
    }
}

/// Returns what a registry says, after a colon: the first of its errors.
fn reason(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let said = value
        .pointer("/errors/0/message")
        .or_else(|| value.pointer("/details"))
        .or_else(|| value.pointer("/message"))
        .and_then(serde_json::Value::as_str);
    said.map_or_else(String::new, |said| format!(": {}", shown(said.as_bytes())))
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// Tells an error with its causes: hyper's own words alone say little.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}
