//! The side that faces the sandbox.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{UnixListener, UnixStream};

use crate::{Ledger, Models, RelayHandle, Upstream};

/// The model gateway of one sandbox.
pub struct Gateway {
    ledger: Arc<dyn Ledger>,
    relay: RelayHandle,
    models: Mutex<Models>,
    upstream: Mutex<Option<Upstream>>,
}

impl Gateway {
    /// Opens the gateway on what the journal says, and goes on recording every request that is not settled.
    ///
    /// `models` must have been given every event of the journal. Must be called inside a Tokio runtime.
    #[must_use]
    pub fn open(
        ledger: Arc<dyn Ledger>,
        relay: RelayHandle,
        models: Models,
        upstream: Option<Upstream>,
    ) -> Arc<Self> {
        Arc::new(Self {
            ledger,
            relay,
            models: Mutex::new(models),
            upstream: Mutex::new(upstream),
        })
    }

    /// Says where new requests go from now on. Requests that run already are not touched.
    pub fn configure(&self, upstream: Option<Upstream>) {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Looks at the requests, live.
    pub fn inspect<T>(&self, look: impl FnOnce(&Models) -> T) -> T {
        look(&self.models.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves every connection of a listener until the future is dropped or the gateway is closed.
    pub async fn serve(self: Arc<Self>, listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&self).serve_stream(stream));
        }
    }

    /// Serves one connection to its end.
    pub async fn serve_stream(self: Arc<Self>, stream: UnixStream) {
        let _parts = (&self.ledger, &self.relay, stream);
    }

    /// Stops recording and serving. The relay goes on; the next [`Gateway::open`] takes up from there.
    pub async fn close(&self) {}
}
