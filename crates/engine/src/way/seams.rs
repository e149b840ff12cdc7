//! What the gateway asks of a sandbox: its journal, whose a connection is, and the values of secrets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use egress::{BoxFuture, Ledger, Owners, Placeholder, Secrets};
use protocol::{Epoch, Event, OpId, Seq};
use secret::scrub::SHORTEST;

use super::Way;
use crate::models::Writer;
use crate::shared::Shared;
use crate::{error, link};

impl Ledger for Writer {
    fn append(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.record(events))
    }

    fn append_relaxed(&self, events: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
        Box::pin(self.note(events))
    }
}

/// Asks the supervisor whose connection it is.
pub(super) struct Supervisor {
    pub(super) dir: PathBuf,
    pub(super) epoch: Epoch,
}

impl Owners for Supervisor {
    fn owner(
        &self,
        client: SocketAddr,
        server: SocketAddr,
    ) -> BoxFuture<'_, Result<Option<OpId>, String>> {
        Box::pin(async move {
            let owner = link::doors::owner(&self.dir, self.epoch, client, server).await;
            owner.map_err(|why| {
                tracing::debug!(why = %error::chain(&why), "nobody says whose connection it is");
                error::chain(&why)
            })
        })
    }
}

/// Resolves what the policy in force refers to, as long as the way is open: a sandbox that was fenced or removed has none.
pub(super) struct Released {
    pub(super) shared: Arc<Shared>,
    pub(super) way: Arc<Way>,
}

impl Secrets for Released {
    fn resolve(&self, name: &str) -> BoxFuture<'_, Result<Arc<secret::Value>, String>> {
        let name = name.to_owned();
        Box::pin(async move {
            if self.way.egress.borrow().is_none() {
                return Err("this sandbox may not use secrets any more".to_owned());
            }
            let policy = self.way.policy();
            let source = policy.secrets().find(|secret| secret.name == name);
            let source = source.ok_or_else(|| format!("the policy names no secret `{name}`"))?;
            let source: secret::Source = source
                .from
                .parse()
                .map_err(|wrong: secret::SourceError| wrong.to_string())?;
            let value = self.shared.secrets.resolve(&source).await;
            let value = value.map_err(|why| error::chain(&why))?;
            if value.expose().len() < SHORTEST {
                return Err(format!(
                    "the value of secret `{name}` is shorter than {SHORTEST} bytes, which could not be found again in answers"
                ));
            }
            Ok(value)
        })
    }

    fn fingerprint(&self, value: &secret::Value) -> String {
        value.fingerprint(self.shared.secrets.fingerprint_key())
    }

    fn placeholders(&self) -> Vec<Placeholder> {
        self.way.placeholders()
    }
}
