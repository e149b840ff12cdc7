//! A connection as an HTTP server reads it: through a [`Front`].
//!
//! What is refused looks to the server like the end of the connection. The refusal is written when the server closes, so that
//! answers to earlier requests come first. In the middle of a body it is an error, and the answer to that request.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use super::{Front, Step, Violation};
use crate::connection::Busy;

/// How long a head may take from its first byte to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const READ_SIZE: usize = 16 << 10;

const UNDECIDED: u8 = 0;
const HTTP: u8 = 1;
const OPAQUE: u8 = 2;

/// What the server and the connection below it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    decision: AtomicU8,
    waker: AtomicWaker,
    violation: Mutex<Option<Violation>>,
}

impl Switch {
    /// Says what the connection is after a request that asked to change it.
    pub(crate) fn decide(&self, opaque: bool) {
        let decision = if opaque { OPAQUE } else { HTTP };
        self.decision.store(decision, Ordering::Release);
        self.waker.wake();
    }

    /// Returns what the client did wrong, once.
    pub(crate) fn take_violation(&self) -> Option<Violation> {
        self.violation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// How a refusal is told to the client.
pub(crate) type Refusal = Box<dyn Fn(Violation) -> Bytes + Send>;

/// The connection.
pub(crate) struct StrictIo<S> {
    inner: S,
    front: Front,
    ready: Bytes,
    switch: Arc<Switch>,
    busy: Arc<Busy>,
    timer: Option<Pin<Box<Sleep>>>,
    refusal: Refusal,
    /// What is still to be written before the connection is closed.
    last_words: Option<Bytes>,
    refused: bool,
}

impl<S> StrictIo<S> {
    pub(crate) fn new(inner: S, switch: Arc<Switch>, busy: Arc<Busy>, refusal: Refusal) -> Self {
        Self {
            inner,
            front: Front::default(),
            ready: Bytes::new(),
            switch,
            busy,
            timer: None,
            refusal,
            last_words: None,
            refused: false,
        }
    }

    fn refuse(&mut self, violation: Violation) {
        self.refused = true;
        self.timer = None;
        if violation != Violation::Truncated {
            self.last_words = Some((self.refusal)(violation));
        }
        let mut told = self
            .switch
            .violation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        told.get_or_insert(violation);
    }

    /// Whether the head that has begun is late.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.front.in_head() {
            self.timer = None;
            return false;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(HEAD_TIMEOUT)));
        timer.as_mut().poll(cx).is_ready()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StrictIo<S> {
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
                if this.ready.is_empty() {
                    // An empty rest would still hold its memory.
                    this.ready = Bytes::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.refused {
                return this.busy.poll_rest(cx).map(Ok);
            }
            let unseen = this.front.unseen();
            if unseen > 0 && out.remaining() > 0 {
                this.timer = None;
                let before = out.filled().len();
                let mut body = (&mut this.inner).take(unseen);
                ready!(Pin::new(&mut body).poll_read(cx, out))?;
                let read = out.filled().len() - before;
                this.front.passed(read as u64);
                if read > 0 || this.front.at_boundary() {
                    return Poll::Ready(Ok(()));
                }
                this.refuse(Violation::Truncated);
                continue;
            }
            match this.front.step() {
                Ok(Step::Pass(bytes)) => {
                    if this.front.take_asked() {
                        this.switch.decision.store(UNDECIDED, Ordering::Release);
                    }
                    this.ready = bytes;
                    continue;
                }
                Ok(Step::More) => {}
                Ok(Step::Wait) => {
                    this.switch.waker.register(cx.waker());
                    match this.switch.decision.load(Ordering::Acquire) {
                        UNDECIDED => return Poll::Pending,
                        decision => this.front.decide(decision == OPAQUE),
                    }
                    continue;
                }
                Err(Violation::Chunk) => {
                    // It is of the request on its way, which is answered by whoever reads its body.
                    this.refused = true;
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        Violation::Chunk,
                    )));
                }
                Err(violation) => {
                    this.refuse(violation);
                    continue;
                }
            }
            if this.is_late(cx) {
                this.refuse(Violation::TooSlow);
                continue;
            }
            let buffer = this.front.buffer();
            buffer.reserve(READ_SIZE);
            let read = poll_read_buf(Pin::new(&mut this.inner), cx, buffer);
            if read.is_pending() && buffer.is_empty() {
                // Who waits holds no memory: there may be a thousand.
                *buffer = BytesMut::new();
            }
            if ready!(read)? == 0 {
                if this.front.at_boundary() {
                    return Poll::Ready(Ok(()));
                }
                this.refuse(Violation::Truncated);
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StrictIo<S> {
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
        let this = self.get_mut();
        while let Some(words) = &mut this.last_words {
            let written = ready!(Pin::new(&mut this.inner).poll_write(cx, words))?;
            words.advance(written);
            if words.is_empty() || written == 0 {
                this.last_words = None;
            }
        }
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
