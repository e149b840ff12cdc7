//! One accepted connection: what it speaks, whom it names, and which way it goes from there.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use policy::{Channel, Connect, Host, Verdict, Wire};
use protocol::{DenyReason, OpId, Outgoing};
use rustls::server::Accepted;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;
use tokio_rustls::StartHandshake;

use crate::deny::Denial;
use crate::dns::serve_tcp;
use crate::egress::Core;
use crate::front::{Refusal, StrictIo, Switch};
use crate::request::{self, Session};
use crate::sniff::{Spoken, sniff};
use crate::stream::Prefixed;
use crate::tunnel;

/// How long a connection may say nothing before it is clear what it speaks.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where a rule passes whatever it is: in some protocols the other side speaks first.
const GREETING_TIMEOUT: Duration = Duration::from_millis(300);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long finding out whose it is may hold up a request.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection is kept on which nothing is on its way. Longer than clients keep theirs, so that none is closed under
/// a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
const MAX_STREAMS: u32 = 256;
const MAX_HEADERS: u32 = 64 << 10;
/// What a client may send ahead of what is taken from it. The way to it is short, so little is enough.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What is kept of an answer for a client that does not read it.
const SEND_BUFFER: usize = 64 << 10;
const READ_AHEAD: usize = 128 << 10;
const DNS_PORT: u16 = 53;

/// Which kind of door a connection came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// Any address leads here; the client does not know of us.
    Open,
    /// The client speaks to a proxy.
    Proxy,
}

/// The program at the other end.
pub(crate) struct Client {
    pub(crate) core: Arc<Core>,
    owner: Shared<BoxFuture<'static, Option<OpId>>>,
    /// Its place among the sandbox's connections, for as long as anything of it is left.
    _place: OwnedSemaphorePermit,
}

impl Client {
    /// Returns the operation that it belongs to, as far as that can be told.
    pub(crate) async fn op(&self) -> Option<OpId> {
        self.owner.clone().await
    }

    /// Journals a refusal.
    pub(crate) async fn deny(&self, mut request: Outgoing, denial: &Denial) {
        request.op = self.op().await;
        self.core.denials.tell(request, denial).await;
    }
}

/// Whom a connection is to, before it has said so itself.
#[derive(Debug, Clone)]
pub(crate) struct Aim {
    /// The name that its address was given to, or that CONNECT named.
    name: Option<Host>,
    /// The address dialled, where it says anything: none after CONNECT.
    address: Option<Host>,
    port: u16,
}

/// What is known of a connection for the journal, before anything of a request is.
pub(crate) fn outline(protocol: &str, host: &Host, port: u16) -> Outgoing {
    Outgoing {
        op: None,
        protocol: protocol.to_owned(),
        host: host.to_string(),
        port,
        method: None,
        path: None,
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    core: Arc<Core>,
    stream: TcpStream,
    peer: SocketAddr,
    entrance: Entrance,
    place: OwnedSemaphorePermit,
) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone already");
        return;
    }
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    if entrance == Entrance::Open && local.port() == DNS_PORT {
        serve_tcp(stream, &core.answerer).await;
        return;
    }
    // Asked at once: a short-lived process may be gone before its request is understood.
    let owners = core.owners.clone();
    let client = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let asked =
        tokio::spawn(async move { timeout(OWNER_TIMEOUT, owners.owner(client, local)).await });
    let owner = async move { asked.await.ok()?.ok()? }.boxed().shared();
    let client = Arc::new(Client {
        core,
        owner,
        _place: place,
    });
    let stream = Prefixed::new(stream);
    match entrance {
        Entrance::Open => {
            let aim = Aim {
                name: client.core.answerer.name_of(local.ip()),
                address: Some(Host::Ip(local.ip())),
                port: local.port(),
            };
            converse(client, stream, aim).await;
        }
        Entrance::Proxy => proxy(client, stream).await,
    }
}

/// A client that knows of us: CONNECT leads on to a conversation, anything else is a request for plain HTTP.
async fn proxy(client: Arc<Client>, mut stream: Prefixed<TcpStream>) {
    let connect = match timeout(2 * HELLO_TIMEOUT, read_connect(&mut stream)).await {
        Ok(Ok(connect)) => connect,
        Ok(Err(_gone)) => return,
        Err(_too_slow) => None,
    };
    let Some(target) = connect else {
        let session = Session::plain(client, None, None);
        Box::pin(serve_http1(Arc::new(session), stream)).await;
        return;
    };
    let (host, port) = match policy::authority(&target, None) {
        Ok(found) => found,
        Err(error) => {
            let shown: String = target
                .chars()
                .take(100)
                .collect::<String>()
                .escape_debug()
                .collect();
            let message = format!("CONNECT to \"{shown}\" is to no host and port: {error}");
            let denial = Denial::new(http::StatusCode::BAD_REQUEST, DenyReason::BadName, message);
            let request = Outgoing {
                op: None,
                protocol: "tcp".to_owned(),
                host: shown,
                port: 0,
                method: Some("CONNECT".to_owned()),
                path: None,
            };
            client.deny(request, &denial).await;
            answer(stream, &denial).await;
            return;
        }
    };
    if let Some(denial) = never_connects(&client.core, &host, port) {
        let mut request = outline("tcp", &host, port);
        request.method = Some("CONNECT".to_owned());
        client.deny(request, &denial).await;
        answer(stream, &denial).await;
        return;
    }
    if stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .is_err()
    {
        return;
    }
    let aim = Aim {
        name: Some(host),
        address: None,
        port,
    };
    converse(client, stream, aim).await;
}

/// Why a CONNECT leads nowhere, whatever is spoken through it.
fn never_connects(core: &Core, host: &Host, port: u16) -> Option<Denial> {
    let policy = core.policy();
    let mut refused = None;
    for protocol in [Wire::Unknown, Wire::Http, Wire::Tls] {
        match policy.connect(&Connect {
            host,
            port,
            protocol,
        }) {
            Verdict::Allow { .. } | Verdict::Ask { .. } => return None,
            Verdict::Deny {
                rule,
                reason,
                message,
            } => {
                refused = Some(Denial::of_policy(rule, reason, message));
            }
        }
    }
    refused
}

/// Returns the target of a CONNECT whose head was read away; none where it is another request, which is all still there.
async fn read_connect(stream: &mut Prefixed<TcpStream>) -> std::io::Result<Option<String>> {
    const LIMIT: usize = 16 << 10;
    loop {
        let held = stream.held();
        let begins = b"CONNECT ";
        let known = held.len().min(begins.len());
        if held[..known] != begins[..known] {
            return Ok(None);
        }
        if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            let line = held.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let mut words = line.split(|byte| *byte == b' ').skip(1);
            let (target, version) = (words.next(), words.next());
            let is_http =
                matches!(version, Some(b"HTTP/1.1" | b"HTTP/1.0")) && words.next().is_none();
            let target = target
                .and_then(|target| std::str::from_utf8(target).ok())
                .map(str::to_owned);
            if !is_http {
                return Ok(None);
            }
            drop(stream.cut(end + 4));
            return Ok(target);
        }
        if stream.fill(LIMIT).await? == 0 {
            return if stream.held().is_empty() {
                Err(std::io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(None)
            };
        }
    }
}

/// Whether requests of a connection can be allowed at all.
pub(crate) enum Refused {
    /// They are judged one by one.
    Not,
    /// As the policy is, none of them is; it may become another while the connection is kept.
    ByPolicy(Denial),
    /// Whatever the policy says: its names do not agree.
    ForGood(Denial),
}

impl Refused {
    fn into_denial(self) -> Option<Denial> {
        match self {
            Self::Not => None,
            Self::ByPolicy(denial) | Self::ForGood(denial) => Some(denial),
        }
    }
}

/// Whether a rule passes any bytes to where a connection is to.
fn passes_anything(core: &Core, aim: &Aim) -> bool {
    let Some(host) = aim.name.as_ref().or(aim.address.as_ref()) else {
        return false;
    };
    let asked = Connect {
        host,
        port: aim.port,
        protocol: Wire::Unknown,
    };
    matches!(core.policy().connect(&asked), Verdict::Allow { .. })
}

/// Finds out what is spoken, and goes on from there.
async fn converse(client: Arc<Client>, mut stream: Prefixed<TcpStream>, aim: Aim) {
    let patience = if passes_anything(&client.core, &aim) {
        GREETING_TIMEOUT
    } else {
        HELLO_TIMEOUT
    };
    let spoken = match timeout(patience, sniff(&mut stream)).await {
        Ok(Ok(spoken)) => spoken,
        // It came and went without a word.
        Ok(Err(_)) => return,
        Err(_) if stream.held().is_empty() => {
            Spoken::Other("nothing, and waits for the other side to begin".to_owned())
        }
        Err(_) => Spoken::Other("something that did not come whole in time".to_owned()),
    };
    match spoken {
        // Boxed: each way needs memory of its own, and a connection goes one.
        Spoken::Tls(accepted) => Box::pin(tls(client, stream, aim, *accepted)).await,
        Spoken::Http => {
            let port = aim.port;
            let session = Session::plain(client, aim.name, Some(port));
            Box::pin(serve_http1(Arc::new(session), stream)).await;
        }
        Spoken::Other(what) => Box::pin(other(client, stream, aim, &what)).await,
    }
}

/// Bytes of no kind that we know: only a rule that passes them as they are lets them out, and only to a name.
async fn other(client: Arc<Client>, stream: Prefixed<TcpStream>, aim: Aim, what: &str) {
    let Some(host) = aim.name.or(aim.address) else {
        return;
    };
    let port = aim.port;
    let asked = Connect {
        host: &host,
        port,
        protocol: Wire::Unknown,
    };
    let verdict = client.core.policy().connect(&asked);
    match verdict {
        Verdict::Allow {
            rule,
            grant: Channel::PassThrough,
        } => tunnel::run(&client, stream, host, port, rule, Wire::Unknown).await,
        Verdict::Deny {
            rule: rule @ Some(_),
            reason,
            message,
        } => {
            let denial = Denial::of_policy(rule, reason, message);
            client.deny(outline("tcp", &host, port), &denial).await;
        }
        _no_rule_passes_it => {
            let message = format!(
                "the connection to {}:{port} speaks {what}; only HTTP and TLS leave this sandbox, unless a rule with \
                 `action = \"passthrough\"` names the host and port",
                host.in_url()
            );
            let denial = Denial::forbidden(DenyReason::Protocol, message);
            client.deny(outline("tcp", &host, port), &denial).await;
        }
    }
}

/// Returns what a client wants to speak over TLS, where it is not HTTP.
fn foreign(accepted: &Accepted) -> Option<String> {
    let hello = accepted.client_hello();
    let offered: Vec<&[u8]> = hello.alpn()?.collect();
    if offered
        .iter()
        .any(|name| *name == b"h2" || *name == b"http/1.1")
    {
        return None;
    }
    let names = offered.iter().map(|name| String::from_utf8_lossy(name));
    Some(
        names
            .collect::<Vec<_>>()
            .join(", ")
            .escape_default()
            .to_string(),
    )
}

async fn tls(client: Arc<Client>, stream: Prefixed<TcpStream>, aim: Aim, accepted: Accepted) {
    let port = aim.port;
    let sni = accepted.client_hello().server_name().map(Host::parse);
    let mut refused = None;
    let (host, denied) = match (sni, aim.name) {
        (Some(Ok(sni)), Some(name)) if sni != name => {
            let message = format!("the connection is to {name}, and its TLS names {sni}");
            (sni, Some(Denial::mismatch(message)))
        }
        (Some(Ok(sni)), _) => (sni, None),
        (Some(Err(error)), name) => {
            let message = format!("the name in TLS is none: {error}");
            let denial = Denial::forbidden(DenyReason::BadName, message);
            match name.or(aim.address) {
                Some(host) => (host, Some(denial)),
                None => return,
            }
        }
        (None, Some(name)) => (name, None),
        (None, None) => match aim.address {
            Some(address) => (address, None),
            None => return,
        },
    };
    if denied.is_none() {
        let asked = Connect {
            host: &host,
            port,
            protocol: Wire::Tls,
        };
        let verdict = client.core.policy().connect(&asked);
        match verdict {
            Verdict::Allow {
                rule,
                grant: Channel::PassThrough,
            }
            | Verdict::Ask {
                rule,
                grant: Channel::PassThrough,
                ..
            } => {
                Box::pin(tunnel::run(&client, stream, host, port, rule, Wire::Tls)).await;
                return;
            }
            Verdict::Allow { .. } | Verdict::Ask { .. } => {}
            Verdict::Deny {
                rule,
                reason,
                message,
            } => refused = Some(Denial::of_policy(rule, reason, message)),
        }
    }
    let refusal = match (denied, refused) {
        (Some(denied), _) => Refused::ForGood(denied),
        (None, Some(refused)) => Refused::ByPolicy(refused),
        (None, None) => Refused::Not,
    };
    Box::pin(inspect(client, stream, host, port, accepted, refusal)).await;
}

/// Answers TLS in the name of the host, and serves what is in it; a refusal is told there too, where programs show it.
async fn inspect(
    client: Arc<Client>,
    mut stream: Prefixed<TcpStream>,
    host: Host,
    port: u16,
    accepted: Accepted,
    refused: Refused,
) {
    // The hello was taken in already.
    let held = stream.held().len();
    drop(stream.cut(held));
    let config = match client.core.authority.server_config(&host) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "a connection cannot be looked into");
            return;
        }
    };
    let foreign = foreign(&accepted);
    let handshake = StartHandshake::from_parts(accepted, stream).into_stream(config);
    let failure = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => {
            let h2 = stream.get_ref().1.alpn_protocol() == Some(&b"h2"[..]);
            let session = Arc::new(Session::secure(client, host, port, refused));
            if h2 {
                Box::pin(serve_http2(session, stream)).await;
            } else {
                Box::pin(serve_http1(session, stream)).await;
            }
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it did not go on in time".to_owned(),
    };
    let denial = refused.into_denial().unwrap_or_else(|| match foreign {
        Some(what) => Denial::forbidden(
            DenyReason::Protocol,
            format!(
                "the program wants to speak {what} over TLS with {host}, and a rule that looks into it knows HTTP only; a rule \
                 with `action = \"passthrough\"` passes it as it is"
            ),
        ),
        None => Denial::forbidden(
            DenyReason::Protocol,
            format!(
                "the program broke off TLS with {host}, which a rule looks into ({failure}); most often it does not trust the \
                 sandbox's own certificate authority ({}): make it, or let a rule with `action = \"passthrough\"` name the host",
                protocol::paths::CA_BUNDLE
            ),
        ),
    });
    client.deny(outline("tls", &host, port), &denial).await;
}

/// Requests that are on their way on one connection.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    count: AtomicUsize,
    changed: Notify,
    front: AtomicWaker,
}

impl Busy {
    /// Counts one until what is returned is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> BusyOne {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        BusyOne {
            busy: self.clone(),
            place: None,
        }
    }

    /// Is ready when nothing is on its way: for the front, which must not end the connection under an answer.
    pub(crate) fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.front.register(cx.waker());
        if self.count.load(Ordering::Acquire) == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Waits until nothing has been on its way for as long as a connection is kept.
    async fn idle(&self) {
        loop {
            let waited = timeout(IDLE_TIMEOUT, self.changed.notified()).await;
            if waited.is_err() && self.count.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// One request on its way.
pub(crate) struct BusyOne {
    busy: Arc<Busy>,
    /// Its place among the sandbox's requests.
    place: Option<OwnedSemaphorePermit>,
}

impl BusyOne {
    /// Waits until the sandbox has room for one more.
    pub(crate) async fn wait_for_room(mut self, core: &Core) -> Self {
        // Never closed, so an error cannot come.
        self.place = core.requests.clone().acquire_owned().await.ok();
        self
    }
}

impl Drop for BusyOne {
    fn drop(&mut self) {
        self.busy.count.fetch_sub(1, Ordering::AcqRel);
        self.busy.changed.notify_one();
        self.busy.front.wake();
    }
}

/// Serves HTTP/1 on a connection, through the strict front.
async fn serve_http1<S>(session: Arc<Session>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let switch = Arc::new(Switch::default());
    let refusal: Refusal = Box::new(|violation| Denial::malformed(violation.to_string()).raw());
    let io = TokioIo::new(StrictIo::new(
        stream,
        switch.clone(),
        session.busy.clone(),
        refusal,
    ));
    let handler = session.clone();
    let switched = switch.clone();
    let service = service_fn(move |request| {
        let (session, switch) = (handler.clone(), switched.clone());
        async move { Ok::<_, Infallible>(request::handle(session, request, Some(switch)).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .max_headers(256)
        .max_buf_size(READ_AHEAD)
        // The front has its own, which lets idle connections be.
        .header_read_timeout(None::<Duration>)
        .auto_date_header(false)
        .timer(TokioTimer::new());
    let mut connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
    let mut closing = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = %crate::upstream::with_causes(&error), "a client's connection failed");
                }
                break;
            }
            () = session.busy.idle(), if !closing => {
                connection.as_mut().graceful_shutdown();
                closing = true;
            }
        }
    }
    if let Some(violation) = switch.take_violation()
        && violation != crate::front::Violation::Truncated
    {
        let denial = Denial::malformed(violation.to_string());
        session.client.deny(session.outline(), &denial).await;
    }
    session.tell_if_silent().await;
}

/// Runs the streams of a connection so that closing the gateway ends them and waits for that.
#[derive(Clone)]
struct Tracked(Arc<Core>);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let closing = self.0.closing.clone();
        self.0.tasks.spawn(async move {
            closing.run_until_cancelled(stream).await;
        });
    }
}

async fn serve_http2<S>(session: Arc<Session>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handler = session.clone();
    let service = service_fn(move |request| {
        let session = handler.clone();
        async move { Ok::<_, Infallible>(request::handle(session, request, None).await) }
    });
    let mut builder = http2::Builder::new(Tracked(session.client.core.clone()));
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .auto_date_header(false)
        .timer(TokioTimer::new());
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut closing = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = %crate::upstream::with_causes(&error), "a client's connection failed");
                }
                break;
            }
            () = session.busy.idle(), if !closing => {
                connection.as_mut().graceful_shutdown();
                closing = true;
            }
        }
    }
    session.tell_if_silent().await;
}

/// Tells a client of a proxy why it is refused, and closes.
async fn answer(mut stream: Prefixed<TcpStream>, denial: &Denial) {
    let told = async {
        stream.write_all(&denial.raw()).await?;
        stream.shutdown().await?;
        // It may still be sending; closing now could take the answer back.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    if let Ok(Err(error)) = timeout(HELLO_TIMEOUT, told).await {
        tracing::debug!(%error, "a client did not hear why it was refused");
    }
}
