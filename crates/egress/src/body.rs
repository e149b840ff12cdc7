//! Bodies on their way: counted, held to their limits, scrubbed, and never collected.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use protocol::{DenyReason, Passed};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::deny::Denial;
use crate::effect::{Effect, Meter};
use crate::flow::Ticket;
use crate::placeholder::{Watch, misplaced};
use crate::scrub::{Scrub, Sieve};

/// A body of ours, in either direction.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that keeps something alive for as long as it is not sent.
pub(crate) fn keeping(body: Body, kept: impl Send + 'static) -> Body {
    Keeping { body, _kept: kept }.boxed_unsync()
}

struct Keeping<K> {
    body: Body,
    _kept: K,
}

// Nothing is pinned in place: the body is in a box of its own.
impl<K> Unpin for Keeping<K> {}

impl<K> HttpBody for Keeping<K> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's body whose first bytes were looked at.
pub(crate) struct Peeked {
    frames: VecDeque<Frame<Bytes>>,
    rest: Incoming,
}

impl Peeked {
    pub(crate) fn new(rest: Incoming) -> Self {
        Self {
            frames: VecDeque::new(),
            rest,
        }
    }

    /// Returns the first bytes: up to where `enough` says so, the end, or `limit`; with whether it is all there is.
    pub(crate) async fn peek(
        &mut self,
        limit: usize,
        mut enough: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<(Vec<u8>, bool)> {
        let mut bytes = Vec::new();
        loop {
            if enough(&bytes) || bytes.len() >= limit {
                return Ok((bytes, false));
            }
            let Some(frame) = self.rest.frame().await else {
                return Ok((bytes, true));
            };
            let frame = frame.map_err(io::Error::other)?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
            self.frames.push_back(frame);
        }
    }

    /// Returns all of it, without taking it away: for one whose length is known and short.
    pub(crate) async fn gather(&mut self) -> io::Result<Vec<u8>> {
        self.peek(usize::MAX, |_| false).await?;
        let held = self.frames.iter().filter_map(Frame::data_ref);
        Ok(held.flatten().copied().collect())
    }

    /// Takes all of it in, and returns its length and digest; what is longer than `most` is not digested, and its rest not read.
    pub(crate) async fn whole(&mut self, most: u64) -> io::Result<Passed> {
        let meter = Meter::default();
        let held = self.frames.iter().filter_map(Frame::data_ref);
        held.for_each(|data| meter.add(data));
        while meter.passed().bytes <= most {
            let Some(frame) = self.rest.frame().await else {
                return Ok(meter.passed());
            };
            let frame = frame.map_err(io::Error::other)?;
            if let Some(data) = frame.data_ref() {
                meter.add(data);
            }
            self.frames.push_back(frame);
        }
        Ok(Passed {
            bytes: meter.passed().bytes,
            digest: None,
        })
    }

    /// Reads it away, for a client that listens only when it has sent everything.
    pub(crate) async fn drain(mut self, limit: u64) {
        let mut read = 0;
        while let Some(Ok(frame)) = self.rest.frame().await {
            read += frame.data_ref().map_or(0, |data| data.len() as u64);
            if read > limit {
                break;
            }
        }
    }
}

impl HttpBody for Peeked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        match this.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.frames.iter().filter_map(Frame::data_ref);
        let held: u64 = held.map(|data| data.len() as u64).sum();
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(held));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}

/// A client's body on its way to the upstream.
pub(crate) struct Upload {
    pub(crate) body: Peeked,
    pub(crate) meter: Arc<Meter>,
    /// The most that the rule allows.
    pub(crate) limit: Option<u64>,
    /// Looks for placeholders, which belong into no body.
    pub(crate) watch: Option<Watch>,
    pub(crate) sent: u64,
    /// Why it was stopped, for who answers the client.
    pub(crate) stopped: Arc<OnceLock<Denial>>,
}

impl Upload {
    fn check(&mut self, data: &[u8]) -> Result<(), Denial> {
        self.sent += data.len() as u64;
        if let Some(limit) = self.limit
            && self.sent > limit
        {
            return Err(Denial::new(
                http::StatusCode::PAYLOAD_TOO_LARGE,
                DenyReason::Budget,
                format!("the body is longer than the {limit} bytes that the rule allows"),
            ));
        }
        if let Some(watch) = &mut self.watch
            && let Some(secret) = watch.find(data)
        {
            return Err(misplaced(&secret, "the body"));
        }
        Ok(())
    }
}

impl Upload {
    fn stop(&self, denial: Denial) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let error = io::Error::other(denial.message.clone());
        // Set once: after it nothing is polled any more.
        drop(self.stopped.set(denial));
        Poll::Ready(Some(Err(error)))
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if let Some(denial) = this.stopped.get() {
            return Poll::Ready(Some(Err(io::Error::other(denial.message.clone()))));
        }
        let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            None => {
                this.meter.end();
                return Poll::Ready(None);
            }
            Some(Err(error)) => {
                // The client's doing, whatever the upstream makes of what came before.
                let error = crate::upstream::with_causes(&error);
                return this.stop(Denial::malformed(format!("the body broke off: {error}")));
            }
            Some(Ok(frame)) => frame,
        };
        if let Some(data) = frame.data_ref() {
            if let Err(denial) = this.check(data) {
                return this.stop(denial);
            }
            this.meter.add(data);
        }
        if let (Some(trailers), Some(watch)) = (frame.trailers_ref(), &this.watch)
            && let Some(secret) = watch.in_trailers(trailers)
        {
            return this.stop(misplaced(&secret, "a trailer"));
        }
        if this.body.is_end_stream() {
            // Who knows the length does not ask again.
            this.meter.end();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An upstream's body on its way to the client. Its end is the effect's end.
pub(crate) struct Download {
    body: Incoming,
    meter: Arc<Meter>,
    sieve: Sieve,
    effect: Option<Effect>,
    /// The length that the upstream announced.
    announced: Option<u64>,
    /// What comes behind the last bytes that the scrubber held back.
    last: Option<Frame<Bytes>>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Kept until the end: the flow's place, and what else must live as long.
    _kept: (Ticket, Box<dyn Send>),
}

impl Download {
    pub(crate) fn new(
        body: Incoming,
        effect: Effect,
        scrub: Option<Scrub>,
        ticket: Ticket,
        kept: Box<dyn Send>,
    ) -> Self {
        Self {
            meter: effect.received.clone(),
            announced: body.size_hint().exact().filter(|_| !body.is_end_stream()),
            body,
            sieve: Sieve::new(scrub),
            effect: Some(effect),
            last: None,
            ended: Box::pin(ticket.ended.clone().cancelled_owned()),
            _kept: (ticket, kept),
        }
    }

    fn settle(&mut self, error: Option<String>) {
        if let Some(effect) = self.effect.take() {
            effect.settle(error);
        }
    }

    /// Settles at the upstream's own end. HTTP/2 has one also where less came than was announced.
    fn at_its_end(&mut self) {
        let short = self.announced.and_then(|announced| {
            let came = self.meter.passed().bytes;
            cut_short(announced, came)
        });
        self.settle(short);
    }
}

/// Says that less came than was announced, if it did.
pub(crate) fn cut_short(announced: u64, came: u64) -> Option<String> {
    (announced != came).then(|| {
        format!("the upstream ended after {came} of the {announced} bytes that it announced")
    })
}

impl HttpBody for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(cx).is_ready() {
            let error = "the policy does not allow it any more";
            this.settle(Some(error.to_owned()));
            return Poll::Ready(Some(Err(io::Error::other(error))));
        }
        loop {
            if let Some(last) = this.last.take() {
                return Poll::Ready(Some(Ok(last)));
            }
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let error = crate::upstream::with_causes(&error);
                    this.settle(Some(format!("the upstream broke off: {error}")));
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                None => {
                    if let Some(rest) = this.sieve.rest() {
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                    this.at_its_end();
                    return Poll::Ready(None);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    this.meter.add(&data);
                    let Some(data) = this.sieve.data(data) else {
                        continue;
                    };
                    if this.body.is_end_stream() && !this.sieve.holds_back() {
                        // Who knows the length does not ask again.
                        this.at_its_end();
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Err(other) => {
                    let other = match other.into_trailers() {
                        Ok(trailers) => Frame::trailers(this.sieve.trailers(trailers)),
                        Err(unknown) => unknown,
                    };
                    if let Some(rest) = this.sieve.rest() {
                        this.last = Some(other);
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                    return Poll::Ready(Some(Ok(other)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !self.sieve.holds_back() && self.last.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // Scrubbing keeps the length, but holds some of it back for a while.
        if self.sieve.holds_back() {
            SizeHint::default()
        } else {
            self.body.size_hint()
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.at_its_end();
        } else {
            let gone = "the client went away before the end of the answer";
            self.settle(Some(gone.to_owned()));
        }
    }
}
