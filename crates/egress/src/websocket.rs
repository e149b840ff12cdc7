//! Requests that become WebSockets: after the answer, bytes pass as they are.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use http::header::{CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_EXTENSIONS, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use secret::scrub::Scrubber;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};

use crate::body::{Body, Download, empty};
use crate::connection::Client;
use crate::deny::Denial;
use crate::effect::Effect;
use crate::flow::Ticket;
use crate::head;
use crate::scrub::Scrub;
use crate::tunnel::Metered;
use crate::upstream::{self, Sender, Target};

/// How long one is kept at most.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
const BUFFER: usize = 16 << 10;
/// Headers that belong to the connection, and so must be said anew.
const HANDSHAKE: [HeaderName; 2] = [CONNECTION, UPGRADE];

/// Sends the request; where the upstream agrees, both sides become one stream.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a request that have no life of their own"
)]
pub(crate) async fn exchange(
    client: &Arc<Client>,
    mut sender: Sender,
    target: Target,
    mut headers: HeaderMap,
    path: &PathAndQuery,
    mut effect: Effect,
    scrub: Option<Scrub>,
    ticket: Ticket,
    inside: Option<OnUpgrade>,
    most: Option<u64>,
) -> Result<Response<Body>, Denial> {
    if scrub.is_some() {
        // Compressed frames could not be scrubbed.
        headers.remove(SEC_WEBSOCKET_EXTENSIONS);
    }
    let mut request = Request::new(empty());
    *request.headers_mut() = headers;
    upstream::fit(&mut request, &target, path, false);
    ask_to_switch(request.headers_mut());
    let mut answer = match sender.send(request).await {
        Ok(answer) => answer,
        Err(unsent) => {
            let words = upstream::with_causes(&unsent.error);
            let denial = Denial::upstream(format!(
                "{} broke off before it answered: {words}",
                target.host
            ));
            effect.settle(Some(denial.message.clone()));
            return Err(denial);
        }
    };
    effect.status = Some(answer.status().as_u16());
    let mut returned = head::returned(answer.headers());
    if let Some(scrub) = &scrub {
        scrub.headers(&mut returned);
    }
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let body = answer.into_body();
        // The connection lives as long as the answer.
        let download = Download::new(body, effect, scrub, ticket, Box::new(sender));
        let mut response = Response::new(download.boxed_unsync());
        *response.status_mut() = status;
        *response.headers_mut() = returned;
        return Ok(response);
    }
    let outside = hyper::upgrade::on(&mut answer);
    ask_to_switch(&mut returned);
    let joined = join(inside, outside, effect, scrub, ticket, most);
    let (ended, held) = (client.life.ended.clone(), client.clone());
    client.core.tasks.spawn(async move {
        ended.run_until_cancelled(joined).await;
        // Its place among the sandbox's connections is given back only now.
        drop(held);
    });
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = returned;
    Ok(response)
}

fn ask_to_switch(headers: &mut HeaderMap) {
    let [connection, upgrade] = HANDSHAKE;
    headers.insert(connection, HeaderValue::from_static("Upgrade"));
    headers.insert(upgrade, HeaderValue::from_static("websocket"));
}

async fn join(
    inside: Option<OnUpgrade>,
    outside: OnUpgrade,
    effect: Effect,
    scrub: Option<Scrub>,
    ticket: Ticket,
    most: Option<u64>,
) {
    let both = async {
        let inside = inside.ok_or("it cannot be switched")?.await;
        let inside = inside.map_err(|error| upstream::with_causes(&error))?;
        let outside = outside
            .await
            .map_err(|error| upstream::with_causes(&error))?;
        Ok::<_, String>((inside, outside))
    };
    let (inside, outside): (Upgraded, Upgraded) = match both.await {
        Ok(both) => both,
        Err(error) => {
            effect.settle(Some(error));
            return;
        }
    };
    let mut inside = Metered {
        inner: TokioIo::new(inside),
        sent: effect.sent.clone(),
        received: effect.received.clone(),
        left: most.unwrap_or(u64::MAX),
    };
    let mut outside = Scrubbed {
        inner: TokioIo::new(outside),
        scrubber: scrub.as_ref().map(Scrub::scrubber),
        ready: BytesMut::new(),
    };
    let error = tokio::select! {
        () = ticket.ended.cancelled() => Some("the policy does not allow it any more".to_owned()),
        () = tokio::time::sleep(LONGEST) => Some("it was open for a day".to_owned()),
        copied = copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER) => {
            copied.err().map(|error| format!("the connection broke: {error}"))
        }
    };
    effect.settle(error);
}

/// The upstream's side, with values taken out. Frames of a server are not masked, and scrubbing keeps every length.
struct Scrubbed<S> {
    inner: S,
    scrubber: Option<Scrubber>,
    ready: BytesMut,
}

impl<S: AsyncRead + Unpin> AsyncRead for Scrubbed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.ready.is_empty() {
                let count = this.ready.len().min(out.remaining());
                out.put_slice(&this.ready[..count]);
                this.ready.advance(count);
                return Poll::Ready(Ok(()));
            }
            let Some(scrubber) = &mut this.scrubber else {
                return Pin::new(&mut this.inner).poll_read(cx, out);
            };
            let mut bytes = BytesMut::with_capacity(BUFFER);
            let read = ready!(tokio_util::io::poll_read_buf(
                Pin::new(&mut this.inner),
                cx,
                &mut bytes
            ))?;
            let mut clean = Vec::with_capacity(read);
            if read == 0 {
                scrubber.finish(&mut clean);
                if clean.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                this.scrubber = None;
            } else {
                scrubber.push(&bytes, &mut clean);
            }
            this.ready.extend_from_slice(&clean);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Scrubbed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
