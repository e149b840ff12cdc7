//! Knows when an answer was handed over: its end was produced, and after that the connection was flushed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::sync::oneshot;

use crate::core::lock;

/// The answer of a connection whose end was produced and is not flushed yet. Dropped unused, it was not delivered.
#[derive(Clone, Default)]
pub(crate) struct Finishing(Arc<Mutex<Option<oneshot::Sender<()>>>>);

impl Finishing {
    /// Says that the end of an answer is with the connection; `delivered` hears of it when it is with the client's socket.
    pub(crate) fn put(&self, delivered: oneshot::Sender<()>) {
        *lock(&self.0) = Some(delivered);
    }
}

/// A connection that tells [`Finishing`] when it is flushed.
pub(crate) struct Tracked<S> {
    pub(crate) stream: S,
    pub(crate) finishing: Finishing,
}

impl<S: Read + Unpin> Read for Tracked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Tracked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    /// Hyper flushes only when it has written all that it had, the end of the answer included.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        if let Some(delivered) = lock(&self.finishing.0).take() {
            // Nobody waits where the gateway is being closed.
            let _told = delivered.send(());
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}
