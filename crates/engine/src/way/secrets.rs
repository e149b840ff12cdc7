//! Secrets in the daemon's own store.

use protocol::egress::SecretView;
use protocol::{ApiError, ErrorCode};
use secret::scrub::SHORTEST;

use crate::engine::Engine;
use crate::error;

impl Engine {
    /// Keeps a secret in the daemon's own store, or gives it another value: the next request uses that.
    ///
    /// # Errors
    /// `invalid` for a name or value that cannot be one.
    pub async fn set_secret(
        &self,
        name: String,
        value: secret::Value,
    ) -> Result<SecretView, ApiError> {
        if value.expose().len() < SHORTEST {
            let short = format!(
                "the value of secret `{name}` is shorter than {SHORTEST} bytes: it could not be found again in answers, to be taken out of them"
            );
            return Err(ApiError::new(ErrorCode::Invalid, short));
        }
        if let Some(wrong) = unusable(value.expose()) {
            let what = format!("the value of secret `{name}` {wrong}");
            return Err(ApiError::new(ErrorCode::Invalid, what));
        }
        let set = self.shared.secrets.set(&name, value).await;
        set.map_err(|e| of_secret(&e))?;
        let all = self.secrets().await?;
        let set = all.into_iter().find(|view| view.name == name);
        set.ok_or_else(|| no_secret(&name))
    }

    /// Lists the secrets in the daemon's own store: their names, never their values.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn secrets(&self) -> Result<Vec<SecretView>, ApiError> {
        let entries = self
            .shared
            .secrets
            .list()
            .await
            .map_err(|e| of_secret(&e))?;
        let views = entries.into_iter().map(|entry| SecretView {
            name: entry.name,
            changed_at_ms: entry.changed,
            fingerprint: entry
                .fingerprint
                .unwrap_or_else(|why| format!("(cannot be opened: {})", error::chain(&why))),
        });
        Ok(views.collect())
    }

    /// Takes a secret out of the daemon's own store: no request gets it from now on.
    ///
    /// # Errors
    /// `not_found`.
    pub async fn remove_secret(&self, name: String) -> Result<(), ApiError> {
        match self.shared.secrets.remove(&name).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(no_secret(&name)),
            Err(why) => Err(of_secret(&why)),
        }
    }
}

/// Says why no request could carry a value. A key in PEM has lines; it signs, and is never sent.
fn unusable(value: &[u8]) -> Option<&'static str> {
    if value.contains(&0) {
        return Some("holds a NUL byte, which no request can carry");
    }
    let has_lines = value.contains(&b'\n') || value.contains(&b'\r');
    (has_lines && !value.starts_with(b"-----BEGIN ")).then_some(
        "holds an end of line, which no header can carry: give it on one line, without spaces or quotes around it",
    )
}

fn no_secret(name: &str) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("there is no secret `{name}`"))
        .hint("`durable secret ls` lists them")
}

fn of_secret(why: &secret::Error) -> ApiError {
    ApiError::new(ErrorCode::Invalid, error::chain(why))
}
