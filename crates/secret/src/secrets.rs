//! Resolves references on the host, when a request needs a value.
//!
//! A value is kept for a minute at most and then wiped, whether anybody asks again or not. A file and a secret of the store
//! are looked at each time, so what was changed there is used by the next request; of the others [`Secrets::changed`]
//! must be told. Many requests at once ask the source once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::client::{Answer, Asked, ask};
use crate::error::{Error, Result, Why};
use crate::file::{self, Readers, Stamp};
use crate::flight::Flights;
use crate::source::Source;
use crate::store::{Entry, Store};
use crate::value::{FingerprintKey, MAX_BYTES, Value};

/// How long a value is kept: bursts of requests ask once, and what was revoked elsewhere is soon noticed.
const KEPT: Duration = Duration::from_secs(60);
/// How long a source may take. A person who must unlock something takes longer and tries again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a file is looked at again that changes while it is read.
const LOOKS: usize = 3;

/// Variables that each client needs beside the usual ones.
const ONE_PASSWORD: [&str; 1] = ["OP_*"];
const VAULT: [&str; 9] = [
    "VAULT_ADDR",
    "VAULT_CACERT",
    "VAULT_CAPATH",
    "VAULT_CLIENT_CERT",
    "VAULT_CLIENT_KEY",
    "VAULT_NAMESPACE",
    "VAULT_SKIP_VERIFY",
    "VAULT_TLS_SERVER_NAME",
    "VAULT_TOKEN",
];

/// The environment that `env:` means and that clients take their variables from.
#[derive(Clone)]
pub struct Env(Option<Arc<BTreeMap<String, String>>>);

impl Env {
    /// This process's, as it is at each use. Nothing of it is copied.
    #[must_use]
    pub fn of_process() -> Self {
        Self(None)
    }

    /// These variables.
    #[must_use]
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(Some(Arc::new(variables.into_iter().collect())))
    }

    fn get(&self, name: &str) -> Option<OsString> {
        match &self.0 {
            Some(variables) => variables.get(name).map(OsString::from),
            None => std::env::var_os(name),
        }
    }

    /// Returns the variables that a program gets; of the others nothing is copied.
    fn of_program(&self, asked: &Asked) -> Vec<(String, String)> {
        match &self.0 {
            Some(variables) => variables
                .iter()
                .filter(|(name, _)| asked.takes(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            None => std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
                .filter(|(name, _)| asked.takes(name))
                .filter_map(|(name, value)| Some((name, value.into_string().ok()?)))
                .collect(),
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Env(…)")
    }
}

/// Resolves references to secrets, and keeps those of the store.
#[derive(Clone)]
pub struct Secrets {
    sources: Arc<Sources>,
    kept: Duration,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("store", &self.sources.store)
            .finish_non_exhaustive()
    }
}

/// Where values come from, and those that are known.
struct Sources {
    env: Env,
    store: Store,
    fingerprints: FingerprintKey,
    patience: Duration,
    known: Flights<Source, Known, Error>,
}

#[derive(Clone)]
struct Known {
    value: Arc<Value>,
    until: Instant,
    stamp: Option<Stamp>,
}

impl Secrets {
    /// Opens the store in a directory, `DATA/secrets` or so. The variable `DURABLE_AGE_IDENTITY` names another identity.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub fn open(dir: &Path, env: Env) -> Result<Self> {
        Self::open_with(dir, env, PATIENCE)
    }

    /// Opens it with other patience for sources that do not answer.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub fn open_with(dir: &Path, env: Env, patience: Duration) -> Result<Self> {
        let identity = env.get("DURABLE_AGE_IDENTITY").map(PathBuf::from);
        let store = Store::open(dir, identity.as_deref())?;
        let fingerprints = store.fingerprint_key()?;
        Ok(Self {
            sources: Arc::new(Sources {
                env,
                store,
                fingerprints,
                patience,
                known: Flights::new(),
            }),
            kept: KEPT,
        })
    }

    /// Keeps values for a shorter time than a minute.
    #[must_use]
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.kept = time.min(KEPT);
        self
    }

    /// Returns the value that a reference means.
    ///
    /// # Errors
    /// The source has none, fails, or does not answer in time. The error names the reference and what to do.
    pub async fn resolve(&self, source: &Source) -> Result<Arc<Value>> {
        let mut known = self.known(source).await?;
        // Who joined a reading that began before the file was changed looks again.
        for _ in 1..LOOKS {
            if known.stamp == self.sources.stamp(source).await? {
                break;
            }
            known = self.known(source).await?;
        }
        Ok(known.value)
    }

    /// Forgets the value of a reference: the next request asks its source.
    pub fn changed(&self, source: &Source) {
        self.sources.known.forget(source);
    }

    /// Forgets all values.
    pub fn all_changed(&self) {
        self.sources.known.clear();
    }

    /// Returns what fingerprints are keyed with.
    #[must_use]
    pub fn fingerprint_key(&self) -> &FingerprintKey {
        &self.sources.fingerprints
    }

    /// Keeps a secret in the store; the next request uses it.
    ///
    /// # Errors
    /// As for [`Store::set`].
    pub async fn set(&self, name: &str, value: Value) -> Result<()> {
        let named = name.to_owned();
        let set = move |sources: &Sources| sources.store.set(&named, &value);
        let done = self.sources.at_the_disk("kept", set).await;
        self.changed(&Source::Store(name.to_owned()));
        done
    }

    /// Removes a secret from the store; the next request does not get it any more. `false` if there was none.
    ///
    /// # Errors
    /// As for [`Store::remove`].
    pub async fn remove(&self, name: &str) -> Result<bool> {
        let named = name.to_owned();
        let remove = move |sources: &Sources| sources.store.remove(&named);
        let done = self.sources.at_the_disk("removed", remove).await;
        self.changed(&Source::Store(name.to_owned()));
        done
    }

    /// Returns what is in the store.
    ///
    /// # Errors
    /// As for [`Store::list`].
    pub async fn list(&self) -> Result<Vec<Entry>> {
        let list = |sources: &Sources| sources.store.list(&sources.fingerprints);
        self.sources.at_the_disk("listed", list).await
    }

    async fn known(&self, source: &Source) -> Result<Known> {
        let stamp = self.sources.stamp(source).await?;
        let good = |known: &Known| Instant::now() < known.until && known.stamp == stamp;
        let ask = || {
            let (sources, source, kept) = (self.sources.clone(), source.clone(), self.kept);
            let asking: futures_util::future::BoxFuture<'static, Result<Known>> =
                Box::pin(async move {
                    let (value, stamp) = sources.ask(&source).await?;
                    let settled = stamp.is_none_or(|stamp| stamp.is_settled(SystemTime::now()));
                    let kept = if settled { kept } else { Duration::ZERO };
                    let until = Instant::now() + kept;
                    wipe_at(until, Arc::downgrade(&sources));
                    Ok(Known {
                        value: Arc::new(value),
                        until,
                        stamp,
                    })
                });
            asking
        };
        self.sources.known.get(source, good, ask).await
    }
}

/// Forgets values when their time is over, also if nobody asks for them again.
fn wipe_at(until: Instant, sources: Weak<Sources>) {
    tokio::spawn(async move {
        tokio::time::sleep_until(until).await;
        if let Some(sources) = sources.upgrade() {
            let now = Instant::now();
            sources.known.sweep(|known| now < known.until);
        }
    });
}

impl Sources {
    /// Asks a source.
    async fn ask(self: &Arc<Self>, source: &Source) -> Result<(Value, Option<Stamp>)> {
        let found = match source {
            Source::Env(name) => self
                .env
                .get(name)
                .map(|value| {
                    (
                        Value::of_output(&zeroize::Zeroizing::new(value.into_vec())),
                        None,
                    )
                })
                .ok_or(Why::NotSet),
            Source::File(path) => {
                let path = path.clone();
                let read = move |_: &Self| file::read(&path, MAX_BYTES, Readers::Owner);
                let read = self.in_time(source, read).await.flatten();
                read.map(|(bytes, stamp)| (Value::of_output(&bytes), Some(stamp)))
            }
            Source::Store(name) => {
                let name = name.clone();
                let read = move |sources: &Self| sources.store.read(&name).map_err(|e| e.why);
                let read = self.in_time(source, read).await.flatten();
                read.map(|(value, stamp)| (value, Some(stamp)))
            }
            Source::Keyring { service, account } => self
                .keyring(service, account)
                .await
                .map(|value| (value, None)),
            Source::OnePassword(reference) => {
                let argv = ["op", "read", "--no-newline", reference];
                self.run(&Asked::new(&argv, &ONE_PASSWORD)).await
            }
            Source::Vault { path, key } => {
                let field = format!("-field={key}");
                let argv = ["vault", "kv", "get", &field, path];
                self.run(&Asked::new(&argv, &VAULT)).await
            }
            Source::Command(argv) => {
                let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
                self.run(&Asked::new(&argv, &[])).await
            }
        };
        let found = match found {
            Ok((value, _)) if value.expose().is_empty() => Err(Why::Empty),
            found => found,
        };
        found.map_err(|why| not_had(source, why))
    }

    /// Looks a secret up by the attributes that most clients keep it under, and then by those that people use.
    async fn keyring(&self, service: &str, account: &str) -> std::result::Result<Value, Why> {
        let mut why = None;
        for attribute in ["username", "account"] {
            let argv = [
                "secret-tool",
                "lookup",
                "service",
                service,
                attribute,
                account,
            ];
            let asked = Asked::new(&argv, &[]);
            match ask(&asked, self.env.of_program(&asked), self.patience).await? {
                Answer::Said(bytes) => return Ok(Value::of_output(&bytes)),
                Answer::Nothing(failed) => why = why.or(Some(failed)),
            }
        }
        Err(why.unwrap_or(Why::Empty))
    }

    async fn run(&self, asked: &Asked) -> std::result::Result<(Value, Option<Stamp>), Why> {
        match ask(asked, self.env.of_program(asked), self.patience).await? {
            Answer::Said(bytes) => Ok((Value::of_output(&bytes), None)),
            Answer::Nothing(failed) => Err(failed),
        }
    }

    /// Looks at the file that a source is.
    async fn stamp(self: &Arc<Self>, source: &Source) -> Result<Option<Stamp>> {
        let path = match source {
            Source::File(path) => path.clone(),
            Source::Store(name) => self.store.path(name),
            Source::Env(_)
            | Source::Keyring { .. }
            | Source::OnePassword(_)
            | Source::Vault { .. }
            | Source::Command(_) => return Ok(None),
        };
        self.in_time(source, move |_: &Self| Stamp::at(&path))
            .await
            .map_err(|why| not_had(source, why))
    }

    /// Does something that blocks, on a thread for that, and does not wait for ever: a file may be on a disk far away.
    async fn in_time<T: Send + 'static>(
        self: &Arc<Self>,
        source: &Source,
        what: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> std::result::Result<T, Why> {
        let sources = self.clone();
        let done = tokio::task::spawn_blocking(move || what(&sources));
        match tokio::time::timeout(self.patience, done).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(Why::Stopping),
            Err(_) => Err(Why::TimedOut {
                secs: self.patience.as_secs(),
                by_hand: format!("whether {source} is on a disk that answers"),
            }),
        }
    }

    /// Does something in the store to its end.
    async fn at_the_disk<T: Send + 'static>(
        self: &Arc<Self>,
        verb: &'static str,
        what: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let sources = self.clone();
        let done = tokio::task::spawn_blocking(move || what(&sources)).await;
        done.unwrap_or_else(|_| {
            Err(Error {
                reference: "store".to_owned(),
                verb,
                why: Why::Stopping,
            })
        })
    }
}

fn not_had(source: &Source, why: Why) -> Error {
    Error {
        reference: source.to_string(),
        verb: "had",
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_is_forgotten_after_a_minute_though_nobody_asks() {
        let dir = tempfile::tempdir().expect("a directory");
        let env = Env::of([("A".to_owned(), "hunter2".to_owned())]);
        let secrets = Secrets::open(dir.path(), env).expect("it opens");
        let source = Source::Env("A".into());
        let value = secrets.resolve(&source).await.expect("it is set");
        let held = Arc::downgrade(&value);
        drop(value);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert!(held.upgrade().is_some());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(held.upgrade().is_none());
        assert_eq!(secrets.sources.known.known(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_keeps_a_value_longer_than_a_minute() {
        let dir = tempfile::tempdir().expect("a directory");
        let secrets = Secrets::open(dir.path(), Env::of([])).expect("it opens");
        assert_eq!(secrets.clone().kept_for(Duration::MAX).kept, KEPT);
        let short = Duration::from_secs(1);
        assert_eq!(secrets.kept_for(short).kept, short);
    }
}
