//! Keys: the one that a user holds, and those made from the repository's random master key.
//!
//! The master key is wrapped with age for every recipient and lies in `keys/`. Whoever holds one of the identities can
//! unwrap it. Chunk ids are keyed with a key derived from it, so that a store's owner cannot test whether it holds a
//! known file; objects are sealed with XChaCha20-Poly1305, whose nonces are long enough to be random.

use std::str::FromStr;

use age::secrecy::ExposeSecret;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::error::{Error, Result};
use crate::id::{ChunkId, SnapshotId};

/// How much longer a sealed text is: nonce and tag.
const NONCE: usize = 24;

/// An age identity (X25519): opens an encrypted store, and encrypts a new one to itself.
#[derive(Clone)]
pub struct Key(age::x25519::Identity);

impl Key {
    /// Makes a new one. Keep its [`secret`](Self::secret): without it nothing of the store can be read.
    #[must_use]
    pub fn generate() -> Self {
        Self(age::x25519::Identity::generate())
    }

    /// Returns the text that holds it, `AGE-SECRET-KEY-1…`.
    #[must_use]
    pub fn secret(&self) -> Zeroizing<String> {
        Zeroizing::new(self.0.to_string().expose_secret().to_owned())
    }

    /// Returns its public half, `age1…`.
    #[must_use]
    pub fn recipient(&self) -> String {
        self.0.to_public().to_string()
    }

    /// Unwraps a master key; `None` if it was not wrapped for this key.
    pub(crate) fn unwrap(&self, wrapped: &[u8]) -> Option<Master> {
        let plain = Zeroizing::new(age::decrypt(&self.0, wrapped).ok()?);
        Some(Master(Zeroizing::new(plain.as_slice().try_into().ok()?)))
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // The text is a secret, also where it is wrong.
        text.trim().parse().map(Self).map_err(|why| {
            Error::Invalid(format!(
                "this is no age identity (AGE-SECRET-KEY-1…): {why}"
            ))
        })
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.recipient())
    }
}

/// The random key that a repository is encrypted with.
#[derive(Clone)]
pub(crate) struct Master(Zeroizing<[u8; 32]>);

impl Master {
    pub(crate) fn generate() -> Self {
        Self(Zeroizing::new(rand::random()))
    }

    /// Wraps it for a recipient, `age1…`.
    pub(crate) fn wrap(&self, recipient: &str) -> Result<Vec<u8>> {
        let recipient: age::x25519::Recipient = recipient
            .parse()
            .map_err(|why| Error::Invalid(format!("{recipient:?} is no age recipient: {why}")))?;
        age::encrypt(&recipient, self.0.as_slice())
            .map_err(|why| Error::Invalid(format!("cannot encrypt to that recipient: {why}")))
    }

    /// Tells master keys apart, and tells nothing else.
    pub(crate) fn check(&self) -> [u8; 32] {
        blake3::derive_key("durable-blob v1 master key check", self.0.as_slice())
    }
}

/// Names what is stored and, in an encrypted store, seals it.
#[derive(Clone)]
pub(crate) struct Vault {
    master: Option<Master>,
    names: Zeroizing<[u8; 32]>,
    seal: Option<XChaCha20Poly1305>,
}

impl Vault {
    pub(crate) fn plain() -> Self {
        Self {
            master: None,
            names: Zeroizing::new([0; 32]),
            seal: None,
        }
    }

    pub(crate) fn new(master: Master) -> Self {
        let derive = |what| Zeroizing::new(blake3::derive_key(what, master.0.as_slice()));
        let seal = derive("durable-blob v1 seal");
        Self {
            names: derive("durable-blob v1 names"),
            seal: Some(XChaCha20Poly1305::new((&*seal).into())),
            master: Some(master),
        }
    }

    pub(crate) fn master(&self) -> Option<&Master> {
        self.master.as_ref()
    }

    fn hash(&self, bytes: &[u8]) -> [u8; 32] {
        match self.seal {
            Some(_) => blake3::keyed_hash(&self.names, bytes).into(),
            None => blake3::hash(bytes).into(),
        }
    }

    pub(crate) fn chunk_id(&self, bytes: &[u8]) -> ChunkId {
        ChunkId(self.hash(bytes))
    }

    pub(crate) fn snapshot_id(&self, bytes: &[u8]) -> SnapshotId {
        SnapshotId(self.hash(bytes))
    }

    pub(crate) fn sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Seals a text under the name of what it is; gives it back as it is in a store without a key.
    pub(crate) fn seal(&self, name: &[u8], plain: Vec<u8>) -> Vec<u8> {
        let Some(cipher) = &self.seal else {
            return plain;
        };
        let nonce: [u8; NONCE] = rand::random();
        let sealed = cipher
            .encrypt(
                XNonce::from_slice(&nonce),
                Payload {
                    msg: &plain,
                    aad: name,
                },
            )
            .expect("a text is never longer than the cipher allows (256 GiB)");
        [&nonce, sealed.as_slice()].concat()
    }

    /// Opens what [`seal`](Self::seal) gave; `None` if that was not sealed with this key and name.
    pub(crate) fn open(&self, name: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let Some(cipher) = &self.seal else {
            return Some(sealed.to_vec());
        };
        let (nonce, text) = sealed.split_at_checked(NONCE)?;
        cipher
            .decrypt(
                XNonce::from_slice(nonce),
                Payload {
                    msg: text,
                    aad: name,
                },
            )
            .ok()
    }
}
