//! The envelope around every object but packs: magic, version, sealed or not, body, and a hash over all of it and its
//! name. So a flipped bit, a lost tail and one object put in another's place are told apart from what was written.

use crate::error::{Error, Result};
use crate::key::Vault;

const MAGIC: &[u8; 4] = b"DSBO";
const VERSION: u8 = 1;
const HEAD: usize = 6;
const HASH: usize = 32;

/// Whether the body is sealed; a store's `config` and `keys` are read before there is a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Open,
    Sealed,
}

/// Closes an object.
pub(crate) fn close(vault: &Vault, name: &str, body: Body, text: Vec<u8>) -> Vec<u8> {
    let sealed = body == Body::Sealed && vault.sealed();
    let text = if sealed {
        vault.seal(name.as_bytes(), text)
    } else {
        text
    };
    let mut object = Vec::with_capacity(HEAD + text.len() + HASH);
    object.extend_from_slice(MAGIC);
    object.extend_from_slice(&[VERSION, u8::from(sealed)]);
    object.extend_from_slice(&text);
    let hash = hash(name, &object);
    object.extend_from_slice(&hash);
    object
}

/// Opens one, or says what is wrong with it.
pub(crate) fn open(vault: &Vault, name: &str, body: Body, object: &[u8]) -> Result<Vec<u8>> {
    let damaged = |why| Error::damaged(name, why);
    let (rest, told) = object
        .split_last_chunk::<HASH>()
        .ok_or_else(|| damaged("it is cut short"))?;
    if *told != hash(name, rest) {
        return Err(damaged("its hash does not fit"));
    }
    let (head, text) = rest
        .split_at_checked(HEAD)
        .ok_or_else(|| damaged("it is cut short"))?;
    if &head[..4] != MAGIC {
        return Err(damaged("it is no object of a blob store"));
    }
    if head[4] > VERSION {
        return Err(Error::TooNew {
            object: name.into(),
            found: head[4].into(),
            known: VERSION.into(),
        });
    }
    match (head[5], body == Body::Sealed && vault.sealed()) {
        (0, false) => Ok(text.to_vec()),
        (1, true) => vault
            .open(name.as_bytes(), text)
            .ok_or_else(|| damaged("it was not sealed with this store's key")),
        // Whoever can write to the store must not be able to pass an open text for a sealed one.
        _ => Err(damaged(
            "it is sealed where it should not be, or the other way round",
        )),
    }
}

fn hash(name: &str, bytes: &[u8]) -> [u8; HASH] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(&[0]);
    hasher.update(bytes);
    hasher.finalize().into()
}
