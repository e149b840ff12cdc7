//! A connection whose first bytes were read already, and are read again by whoever comes next.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// A stream with what was read of it and is still to be understood.
#[derive(Debug)]
pub(crate) struct Prefixed<S> {
    held: BytesMut,
    inner: S,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Prefixed<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self {
            held: BytesMut::new(),
            inner,
        }
    }

    /// Returns what was read and not taken.
    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Reads more, at most to `limit` bytes held; returns how many came, 0 at the end of the stream or the limit.
    pub(crate) async fn fill(&mut self, limit: usize) -> io::Result<usize> {
        let room = limit.saturating_sub(self.held.len());
        if room == 0 {
            return Ok(0);
        }
        let mut limited = (&mut self.inner).take(room as u64);
        self.held.reserve(room.min(8 << 10));
        limited.read_buf(&mut self.held).await
    }

    /// Takes the first `count` bytes of what is held.
    pub(crate) fn cut(&mut self, count: usize) -> Bytes {
        self.held.split_to(count.min(self.held.len())).freeze()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.held.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, out);
        }
        let count = this.held.len().min(out.remaining());
        out.put_slice(&this.held[..count]);
        this.held.advance(count);
        if this.held.is_empty() {
            // Its memory is not needed any more for as long as the connection lives.
            this.held = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
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
