//! Placeholders: what programs inside find in place of secrets.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use egress::{BoxFuture, Placeholder};
use policy::Shown;
use protocol::files::{Alter, Put};
use protocol::{ApiError, ErrorCode, SandboxId};
use tokio::sync::mpsc;

use super::Way;
use crate::error;
use crate::files::{Piece, Refusal};
use crate::sandbox::Handle;
use crate::shared::{Shared, write_private};

/// Placeholders of a sandbox, in its state directory.
const PLACEHOLDERS: &str = "placeholders.json";

impl Way {
    /// Returns what operations find in their environment in place of secrets.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let policy = self.policy();
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(texts) = &*shown else {
            return BTreeMap::new();
        };
        let named = policy.secrets().filter_map(|secret| {
            let Some(Shown::Env(variable)) = &secret.placeholder else {
                return None;
            };
            Some((variable.clone(), texts.get(&secret.name)?.clone()))
        });
        named.collect()
    }

    /// Returns the files in which placeholders stand.
    fn files(&self) -> Vec<(String, String)> {
        let policy = self.policy();
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(texts) = &*shown else {
            return Vec::new();
        };
        let named = policy.secrets().filter_map(|secret| {
            let Some(Shown::File(path)) = &secret.placeholder else {
                return None;
            };
            Some((path.clone(), texts.get(&secret.name)?.clone()))
        });
        named.collect()
    }

    pub(super) fn placeholders(&self) -> Vec<Placeholder> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let texts = shown.iter().flatten();
        texts
            .map(|(secret, text)| Placeholder {
                secret: secret.clone(),
                text: text.clone(),
            })
            .collect()
    }
}

impl Handle {
    /// Makes the placeholders that the policy wants shown and that this sandbox has none of yet. They stay what they are, whatever
    /// becomes of the secrets: a program that runs for days goes on with what it found.
    pub(crate) async fn show_placeholders(&self) {
        let policy = self.way.policy();
        let wanted = policy
            .secrets()
            .filter(|secret| secret.placeholder.is_some());
        let wanted: Vec<(String, String)> = wanted
            .map(|secret| (secret.name.clone(), secret.from.clone()))
            .collect();
        if wanted.is_empty() {
            return;
        }
        let _one_at_a_time = self.way.making.lock().await;
        let file = self.way.dir.join(PLACEHOLDERS);
        let known = {
            let shown = self.way.shown.lock();
            shown.unwrap_or_else(PoisonError::into_inner).clone()
        };
        let mut texts = match known {
            Some(known) => known,
            None => std::fs::read(&file)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok())
                .unwrap_or_default(),
        };
        let before = texts.len();
        for (name, from) in wanted {
            if texts.contains_key(&name) {
                continue;
            }
            let Ok(source) = from.parse::<secret::Source>() else {
                continue;
            };
            match self.shared.secrets.resolve(&source).await {
                Ok(value) => {
                    let text = secret::placeholder(&value, &rand::random());
                    texts.insert(name, text);
                }
                Err(why) => {
                    tracing::warn!(sandbox = %self.name, secret = name, why = %error::chain(&why), "no placeholder is shown");
                }
            }
        }
        let kept = || write_private(&file, serde_json::to_string(&texts)?.as_bytes());
        if texts.len() > before
            && let Err(why) = kept()
        {
            tracing::warn!(sandbox = %self.name, %why, "the placeholders will be others after a restart of the daemon");
        }
        let mut shown = self
            .way
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = Some(texts);
    }
}

impl Handle {
    /// Writes the placeholders that stand in files, where they are not: an operation is about to look. A file that is there is
    /// left as it is, for it may be somebody's own.
    pub(crate) fn place_files(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for (path, text) in self.way.files() {
                if let Err(why) = self.place_file(&path, text).await {
                    tracing::warn!(sandbox = %self.name, path, why = why.error.message, "no placeholder is in its file");
                }
            }
        })
    }

    async fn place_file(&self, path: &str, text: String) -> Result<(), Refusal> {
        let files = self.files(None).await?;
        let path = files.path(path.as_bytes())?;
        match files.stat(path.clone(), true).await {
            Err(missing) if missing.error.code == ErrorCode::NotFound => {}
            found => return found.map(drop),
        }
        let put = Alter::Put(Put {
            path,
            mode: Some(0o600),
            owner: None,
            parents: true,
            if_match: None,
            if_none_match: Some(Vec::new()),
        });
        let (pieces, input) = mpsc::channel(2);
        // Room for both, so neither waits.
        for piece in [Piece::Bytes(text.into_bytes().into()), Piece::End] {
            let _room = pieces.send(piece).await;
        }
        match files.alter(&put, Some(input)).await {
            // Another operation was as quick.
            Err(refusal) if refusal.unmet => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Gives a fork the placeholders of its source: its files may hold them. Each of the two may change them on its own from here on.
pub(crate) fn copy_placeholders(
    shared: &Shared,
    from: SandboxId,
    to: SandboxId,
) -> Result<(), ApiError> {
    let path = |id| shared.state_dir(id).join(PLACEHOLDERS);
    let (theirs, own) = (path(from), path(to));
    if own.exists() {
        return Ok(());
    }
    let unusable = |e: std::io::Error| error::internal("the placeholders cannot be copied", &e);
    match std::fs::read(&theirs) {
        Ok(texts) => write_private(&own, &texts).map_err(unusable),
        Err(none) if none.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(other) => Err(unusable(other)),
    }
}
