//! The gateway of one sandbox, as the engine sees it.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use protocol::ModelRequestId;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::core::{Core, lock};
use crate::dialect::Dialect;
use crate::relay::HttpClient;
use crate::serve::delivery::{Finishing, Tracked};
use crate::serve::{self, Body};
use crate::{Ledger, Models, RelayHandle, Upstream, recorder};

/// Connections of one sandbox at a time; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 256;

/// The model gateway of one sandbox. Lives inside a Tokio runtime.
pub struct Gateway {
    core: Arc<Core>,
    /// For what is passed on and not recorded; made when it is first needed, for it reads the machine's certificates.
    plain: Arc<OnceLock<HttpClient<Body>>>,
}

impl Gateway {
    /// Opens the gateway on what the journal says, and goes on recording every request that is not settled, whether or
    /// not its client comes back.
    ///
    /// `models` must have been given every event of the journal; the gateway folds its own events from here on. Must be
    /// called inside a Tokio runtime.
    #[must_use]
    pub fn open(
        ledger: Arc<dyn Ledger>,
        relay: RelayHandle,
        models: Models,
        upstream: Option<Upstream>,
    ) -> Arc<Self> {
        let open: Vec<(ModelRequestId, Dialect)> = models
            .iter()
            .filter(|(_, known)| known.outcome.is_none())
            .map(|(id, known)| {
                let dialect = Dialect::of_path(&known.path).unwrap_or(Dialect::Anthropic);
                (id.clone(), dialect)
            })
            .collect();
        // Files that a daemon before us settled and had no time to remove.
        let mut left = relay.kept();
        left.retain(|id| models.get(id).is_some_and(|known| known.outcome.is_some()));
        let core = Arc::new(Core::new(ledger, relay, models, upstream));
        if !left.is_empty() {
            let relay = core.relay.clone();
            core.spawn(async move {
                for request in left {
                    // Where the relay goes away in this moment, the next daemon finds them again.
                    let _forgotten = relay.forget(&request).await;
                }
            });
        }
        for (request, dialect) in open {
            // Known as being recorded before anything is served, so that a client that comes back finds it.
            let shown = core.recording(&request);
            core.spawn(recorder::recover(
                Arc::clone(&core),
                dialect,
                request,
                shown,
            ));
        }
        Arc::new(Self {
            core,
            plain: Arc::default(),
        })
    }

    /// Says where new requests go from now on. Requests that run already are not touched.
    pub fn configure(&self, upstream: Option<Upstream>) {
        self.core.set_upstream(upstream);
    }

    /// Looks at the requests as they are now.
    pub fn inspect<T>(&self, look: impl FnOnce(&Models) -> T) -> T {
        self.core.inspect(look)
    }

    /// Serves every connection of a listener until the gateway is closed or the future is dropped; its connections end
    /// with it.
    pub async fn serve(self: Arc<Self>, listener: UnixListener) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.core.closed.cancelled() => return,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, _)) => {
                    let served = Arc::clone(&self).serve_stream(stream);
                    connections.spawn(async move {
                        served.await;
                        drop(place);
                    });
                }
                Err(error) => tracing::warn!(%error, "a gateway connection was not accepted"),
            }
        }
    }

    /// Serves one connection to its end.
    pub async fn serve_stream(self: Arc<Self>, stream: UnixStream) {
        let finishing = Finishing::default();
        let stream = Tracked {
            stream: TokioIo::new(stream),
            finishing: finishing.clone(),
        };
        let service = service_fn(|request| {
            let (core, plain) = (Arc::clone(&self.core), Arc::clone(&self.plain));
            let finishing = finishing.clone();
            async move { Ok::<_, Infallible>(serve::handle(core, plain, finishing, request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .header_read_timeout(None)
            .serve_connection(stream, service);
        tokio::select! {
            // A client that breaks off, or an answer that did: both are told by the recorder where they matter.
            _ended = connection => {}
            () = self.core.closed.cancelled() => {}
        }
    }

    /// Waits until every request that the journal had not settled at [`Gateway::open`] or that came since is settled.
    pub async fn settled(&self) {
        loop {
            let open: Option<ModelRequestId> = self.core.inspect(|models| {
                let open = models.iter().find(|(_, known)| known.outcome.is_none());
                open.map(|(id, _)| id.clone())
            });
            let Some(request) = open else { return };
            let mut shown = self.core.shown(&request);
            if shown.wait_for(|shown| shown.end.is_some()).await.is_err() {
                return;
            }
            if self.core.closed.is_cancelled() {
                return;
            }
        }
    }

    /// Stops serving and recording. The relay reads on; the next [`Gateway::open`] takes up from there.
    pub async fn close(&self) {
        self.core.closed.cancel();
        let mut recorders = std::mem::take(&mut *lock(&self.core.recorders));
        while recorders.join_next().await.is_some() {}
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.core.closed.cancel();
    }
}
