//! Connections to upstreams: a name is resolved once, its addresses are vetted, and one of these is dialled, verified and spoken
//! to. Connections are kept for the next request of the same rule, with the same secrets, and for no other.

mod pool;
mod tls;

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use policy::{Host, Policy};
use protocol::DenyReason;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::body::Body;
use crate::deny::Denial;
use crate::seam::Resolver;

pub(crate) use pool::{Place, Pool};
use tls::Tls;

/// How long a name may take, and how long one address may take to answer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// A silent connection is probed, so that a peer that vanished is noticed.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// What is read ahead of one HTTP/1 connection at most.
const READ_AHEAD: usize = 128 << 10;

/// What an HTTP connection runs over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Whom a connection is to, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// Whether HTTP/2 is offered: where the client speaks it.
    pub(crate) h2: bool,
    /// The rule that allowed it, and the number of the policy that it is in.
    pub(crate) rule: String,
    pub(crate) policy: u64,
    /// Fingerprints of the secrets that its requests carry: another version of one is another connection.
    pub(crate) secrets: Vec<String>,
}

/// A connection that takes requests.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>, Place),
}

/// A request that did not get its answer.
pub(crate) struct Unsent {
    pub(crate) error: hyper::Error,
    /// The request, where nothing of it was sent.
    pub(crate) request: Option<Request<Body>>,
}

impl Sender {
    pub(crate) fn is_h2(&self) -> bool {
        matches!(self, Self::Http2(..))
    }

    /// Sends a request. Its version and URI must fit the connection, see [`Sender::is_h2`].
    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, Unsent> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender, _) => sender.try_send_request(request).await,
        };
        sent.map_err(|mut error| Unsent {
            request: error.take_message(),
            error: error.into_error(),
        })
    }
}

/// Makes connections.
pub(crate) struct Dialer {
    tls: Tls,
}

impl Dialer {
    pub(crate) fn new() -> Self {
        Self { tls: Tls::new() }
    }

    /// Connects, and is verified by then where it is TLS; nothing of a request has been sent.
    pub(crate) async fn connect(
        &self,
        target: &Target,
        policy: &Policy,
        resolver: &dyn Resolver,
    ) -> Result<Sender, Denial> {
        let (host, port) = (&target.host, target.port);
        let tcp = dial(host, port, policy, resolver).await?;
        let (stream, h2): (Box<dyn Stream>, bool) = if target.tls {
            let roots = policy.roots(host, port);
            let connect = self.tls.connect(host, roots, target.h2, tcp);
            let stream = timeout(HANDSHAKE_TIMEOUT, connect)
                .await
                .map_err(|_| failed(host, port, "it did not finish the TLS handshake in time"))?
                .map_err(|error| failed(host, port, &tls_words(&error)))?;
            let h2 = stream.get_ref().1.alpn_protocol() == Some(&b"h2"[..]);
            (Box::new(stream), h2)
        } else {
            (Box::new(tcp), false)
        };
        let io = TokioIo::new(stream);
        let sender = if h2 {
            speak_http2(io).await
        } else {
            speak_http1(io).await
        };
        sender.map_err(|error| failed(host, port, &with_causes(&error)))
    }
}

async fn speak_http1(io: TokioIo<Box<dyn Stream>>) -> hyper::Result<Sender> {
    let mut builder = http1::Builder::new();
    builder.max_headers(256).max_buf_size(READ_AHEAD);
    let (sender, connection) = builder.handshake(io).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(error = %with_causes(&error), "an upstream connection failed");
        }
    });
    Ok(Sender::Http1(sender))
}

async fn speak_http2(io: TokioIo<Box<dyn Stream>>) -> hyper::Result<Sender> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_header_list_size(64 << 10)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    let (sender, connection) = builder.handshake(io).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %with_causes(&error), "an upstream connection failed");
        }
    });
    Ok(Sender::Http2(sender, pool::first_place()))
}

/// Resolves, vets and dials. The address that was vetted is the one that is dialled.
pub(crate) async fn dial(
    host: &Host,
    port: u16,
    policy: &Policy,
    resolver: &dyn Resolver,
) -> Result<TcpStream, Denial> {
    let found = match host {
        Host::Ip(ip) => vec![*ip],
        Host::Name(name) => timeout(RESOLVE_TIMEOUT, resolver.resolve(name))
            .await
            .map_err(|_| failed(host, port, "its name was not resolved in time"))?
            .map_err(|error| {
                failed(
                    host,
                    port,
                    &format!("its name cannot be resolved ({error})"),
                )
            })?,
    };
    let mut refused = None;
    let mut vetted: Vec<IpAddr> = Vec::new();
    for ip in found {
        match policy.dial(host, port, ip) {
            Ok(()) if !vetted.contains(&ip) => vetted.push(ip),
            Ok(()) => {}
            Err(why) => refused = Some(why),
        }
    }
    let mut last = None;
    for ip in vetted.into_iter().take(MAX_ADDRESSES) {
        match timeout(CONNECT_TIMEOUT, connect(SocketAddr::new(ip, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(format!("{ip}: {error}")),
            Err(_) => last = Some(format!("{ip}: no answer in time")),
        }
    }
    match (last, refused) {
        (Some(last), _) => Err(failed(host, port, &last)),
        (None, Some(refused)) => Err(Denial::new(
            StatusCode::FORBIDDEN,
            DenyReason::Address,
            format!(
                "{host} leads to an address that is never dialled: {refused}; if that is meant, the rule must name it in \
                 `addresses`"
            ),
        )),
        (None, None) => Err(failed(host, port, "its name has no address")),
    }
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_keepalive(true)?;
    rustix::net::sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
    rustix::net::sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    rustix::net::sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_RETRIES)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn failed(host: &Host, port: u16, why: &str) -> Denial {
    Denial::upstream(format!(
        "{}:{port} could not be reached: {why}",
        host.in_url()
    ))
}

/// Says what a failed handshake means.
fn tls_words(error: &io::Error) -> String {
    let words = error.to_string();
    if words.contains("certificate") {
        format!(
            "its certificate was not accepted ({words}), so nothing was sent; an authority of your own belongs into the rule's \
             `roots`"
        )
    } else {
        format!("the TLS handshake failed ({words})")
    }
}

/// Tells an error with its causes: hyper's own words alone say little.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
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

/// Sets a request's version and target to what its connection wants.
pub(crate) fn fit(
    request: &mut Request<Body>,
    target: &Target,
    path: &http::uri::PathAndQuery,
    h2: bool,
) {
    let authority = crate::head::authority(&target.host, target.port, target.tls);
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path.clone());
    if h2 {
        *request.version_mut() = Version::HTTP_2;
        parts.scheme = Some(http::uri::Scheme::HTTPS);
        parts.authority = authority.parse().ok();
        request.headers_mut().remove(http::header::HOST);
    } else {
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().remove(http::header::TE);
        join_cookies(request.headers_mut());
        if let Ok(host) = http::HeaderValue::from_str(&authority) {
            request.headers_mut().insert(http::header::HOST, host);
        }
    }
    if let Ok(uri) = http::Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// HTTP/2 lets a client send its cookies one by one; in HTTP/1 they are one header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut http::HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(http::header::COOKIE)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect();
    if cookies.len() < 2 {
        return;
    }
    if let Ok(joined) = http::HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        headers.insert(http::header::COOKIE, joined);
    }
}
