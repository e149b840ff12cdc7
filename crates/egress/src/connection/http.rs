//! HTTP on a connection, in both versions, and how long the connection is kept.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::timeout;

use super::Client;
use crate::body::Body;
use crate::deny::Denial;
use crate::egress::Core;
use crate::front::{Refusal, StrictIo, Switch, Violation};
use crate::request::{self, Session};

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

/// Answers a request. Boxed, so that what deciding and sending took is given back where the answer begins, and not held for as
/// long as its body streams.
fn answering(
    session: Arc<Session>,
    request: Request<Incoming>,
    switch: Option<Arc<Switch>>,
) -> BoxFuture<'static, Result<Response<Body>, Infallible>> {
    Box::pin(request::handle(session, request, switch).map(Ok))
}

/// Serves HTTP/1 on a connection, through the strict front.
pub(super) async fn serve_http1<S>(session: Arc<Session>, stream: S)
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
    let service =
        service_fn(move |request| answering(handler.clone(), request, Some(switched.clone())));
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
        && violation != Violation::Truncated
    {
        let denial = Denial::malformed(violation.to_string());
        session.client.deny(session.outline(), &denial).await;
    }
    session.tell_if_silent().await;
}

pub(super) async fn serve_http2<S>(session: Arc<Session>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handler = session.clone();
    let service = service_fn(move |request| answering(handler.clone(), request, None));
    let mut builder = http2::Builder::new(Tracked(session.client.clone()));
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

/// Runs the streams of a connection so that the end of its boot ends them, and closing the gateway waits for that.
#[derive(Clone)]
struct Tracked(Arc<Client>);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let ended = self.0.life.ended.clone();
        self.0.core.tasks.spawn(async move {
            ended.run_until_cancelled(stream).await;
        });
    }
}
