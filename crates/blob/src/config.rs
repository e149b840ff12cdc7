//! What a store says about itself, and how a new one begins.

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::envelope::{self, Body};
use crate::error::{Error, Result};
use crate::id::hex;
use crate::key::{Key, Master, Vault};

/// The format that this release writes.
const VERSION: u32 = 1;
const NAME: &str = "config";

/// The `config` object, JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Config {
    version: u32,
    /// Random: tells stores apart, for local caches.
    pub(crate) id: String,
    /// Tells which master key it is; `None` in a store that is not encrypted.
    master: Option<String>,
}

/// Reads the config and finds the key; makes both where there is no store yet.
pub(crate) fn open(backend: &Backend, key: Option<&Key>) -> Result<(Config, Vault)> {
    if let Some(config) = read(backend)? {
        return known(backend, config, key);
    }
    let vault = key.map_or_else(Vault::plain, |_| Vault::new(Master::generate()));
    if let (Some(key), Some(master)) = (key, vault.master()) {
        add_key(backend, master, &key.recipient())?;
    }
    let config = Config {
        version: VERSION,
        id: hex(&rand::random::<[u8; 16]>()),
        master: vault.master().map(|master| hex(&master.check())),
    };
    let text = serde_json::to_vec(&config).expect("a config is plain JSON");
    if backend.create(NAME, envelope::close(&vault, NAME, Body::Open, text))? {
        return Ok((config, vault));
    }
    // Somebody else made it first. The key object written above fits no config and is passed over.
    let config = read(backend)?.ok_or_else(|| Error::damaged(NAME, "it was there and is gone"))?;
    known(backend, config, key)
}

/// Reads the config; `None` where there is no store.
pub(crate) fn read(backend: &Backend) -> Result<Option<Config>> {
    let object = backend.get(NAME)?;
    object.map(|object| parse(&object)).transpose()
}

fn parse(object: &[u8]) -> Result<Config> {
    let text = envelope::open(&Vault::plain(), NAME, Body::Open, object)?;
    let config: Config =
        serde_json::from_slice(&text).map_err(|why| Error::damaged(NAME, why.to_string()))?;
    if config.version > VERSION {
        return Err(Error::TooNew {
            object: NAME.into(),
            found: config.version,
            known: VERSION,
        });
    }
    Ok(config)
}

fn known(backend: &Backend, config: Config, key: Option<&Key>) -> Result<(Config, Vault)> {
    let vault = match (&config.master, key) {
        (None, None) => Vault::plain(),
        (None, Some(_)) => return Err(Error::NotEncrypted),
        (Some(_), None) => return Err(Error::KeyNeeded),
        (Some(check), Some(key)) => Vault::new(find(backend, check, key)?),
    };
    Ok((config, vault))
}

/// Tries the key on every key object.
fn find(backend: &Backend, check: &str, key: &Key) -> Result<Master> {
    let mut damage = None;
    for name in backend.names("keys")? {
        let name = format!("keys/{name}");
        let Some(object) = backend.get(&name)? else {
            continue;
        };
        match envelope::open(&Vault::plain(), &name, Body::Open, &object) {
            Ok(wrapped) => match key.unwrap(&wrapped) {
                Some(master) if hex(&master.check()) == *check => return Ok(master),
                _ => {}
            },
            Err(why) => damage = Some(why),
        }
    }
    Err(damage.unwrap_or(Error::WrongKey))
}

/// Wraps the master key for one more recipient.
pub(crate) fn add_key(backend: &Backend, master: &Master, recipient: &str) -> Result<()> {
    let name = format!("keys/{}", hex(&rand::random::<[u8; 16]>()));
    let wrapped = master.wrap(recipient)?;
    backend.put(
        &name,
        envelope::close(&Vault::plain(), &name, Body::Open, wrapped),
    )
}
