//! Connections whose bytes pass as they are: the name was checked, nothing else is seen.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use policy::{Channel, Connect, Host, Policy, Verdict, Wire};
use protocol::EffectKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;

use crate::connection::{Client, outline};
use crate::effect::{Effect, Meter};
use crate::request;
use crate::stream::Prefixed;
use crate::upstream;

/// How long a tunnel is kept in which nothing moves; a model may think for long, and a shell wait for its user.
const IDLE: Duration = Duration::from_secs(3600);
const BUFFER: usize = 32 << 10;

/// Connects and passes bytes until either side ends.
pub(crate) async fn run(
    client: &Client,
    stream: Prefixed<TcpStream>,
    host: Host,
    port: u16,
    rule: String,
    wire: Wire,
) {
    let core = &client.core;
    let name = if wire == Wire::Tls { "tls" } else { "tcp" };
    let mut request = outline(name, &host, port);
    let ticket = {
        let host = host.clone();
        core.enter(move |policy| passes(policy, &host, port, wire))
    };
    request.op = client.op().await;
    let keep = match request::connection(client, &request).await {
        Ok(keep) => keep,
        Err(denial) => {
            client.deny(request, &denial.by_rule(&rule)).await;
            return;
        }
    };
    let dialled = upstream::dial(&host, port, &core.policy(), core.resolver.as_ref()).await;
    let mut outside = match dialled {
        Ok(outside) => outside,
        Err(denial) => {
            client.deny(request, &denial.by_rule(&rule)).await;
            return;
        }
    };
    // What happens inside is not seen, so it may be anything.
    let begun = Effect::begin(
        client,
        request.clone(),
        EffectKind::Write,
        &rule,
        Vec::new(),
        None,
        keep,
    )
    .await;
    let effect = match begun {
        Ok(effect) => effect,
        Err(_not_journaled) => return,
    };
    let mut inside = Metered {
        inner: stream,
        sent: effect.sent.clone(),
        received: effect.received.clone(),
        // A rule with a limit is looked into.
        left: u64::MAX,
    };
    let error = tokio::select! {
        () = ticket.ended.cancelled() => Some("the policy does not allow it any more".to_owned()),
        () = core.closing.cancelled() => Some("the sandbox's gateway was closed".to_owned()),
        () = nothing_moves(&effect) => Some("nothing moved for an hour".to_owned()),
        copied = copy_bidirectional_with_sizes(&mut inside, &mut outside, BUFFER, BUFFER) => {
            copied.err().map(|error| format!("the connection broke: {error}"))
        }
    };
    effect.settle(error);
}

/// Whether a policy would let this tunnel begin.
fn passes(policy: &Policy, host: &Host, port: u16, protocol: Wire) -> bool {
    let verdict = policy.connect(&Connect {
        host,
        port,
        protocol,
    });
    matches!(
        verdict,
        Verdict::Allow {
            grant: Channel::PassThrough,
            ..
        }
    )
}

/// Waits until nothing has moved for a whole [`IDLE`].
async fn nothing_moves(effect: &Effect) {
    let moved = || (effect.sent.passed().bytes, effect.received.passed().bytes);
    let mut last = moved();
    loop {
        tokio::time::sleep(IDLE).await;
        let now = moved();
        if now == last {
            return;
        }
        last = now;
    }
}

/// The client's end, counted.
pub(crate) struct Metered<S> {
    pub(crate) inner: S,
    pub(crate) sent: Arc<Meter>,
    pub(crate) received: Arc<Meter>,
    /// Bytes that may still be sent.
    pub(crate) left: u64,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = out.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, out))?;
        let read = out.filled().len() - before;
        this.left = match this.left.checked_sub(read as u64) {
            Some(left) => left,
            None => {
                return Poll::Ready(Err(io::Error::other("more was sent than the rule allows")));
            }
        };
        this.sent.count(read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, bytes))?;
        this.received.count(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
