//! Events as bytes: encoded and checksummed in the caller's task, so that the writer only chains and stores them.

use protocol::{
    EVENT_VERSION, Epoch, Event, EventId, Head, SandboxId, Seq, Stored, UnixMillis, chain_hash,
};

use crate::{Append, Damage, Error, Flaw, MAX_APPEND_BYTES};

/// An event before it has a place.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub(crate) id: EventId,
    pub(crate) kind: &'static str,
    pub(crate) payload: String,
    pub(crate) crc: u32,
    pub(crate) digest: [u8; 32],
}

/// Encodes the events of an append; refuses what must not reach an engine.
pub(crate) fn encode(append: &Append) -> Result<Vec<Encoded>, Error> {
    let sandbox = append.sandbox;
    if append.events.is_empty() {
        return Err(Error::NothingToAppend { sandbox });
    }
    let mut bytes = 0;
    let mut encoded = Vec::with_capacity(append.events.len());
    for new in &append.events {
        let payload = serde_json::to_string(&new.event).map_err(|e| Error::Unencodable {
            sandbox,
            why: e.to_string(),
        })?;
        bytes += payload.len();
        encoded.push(Encoded {
            id: new.id,
            kind: new.event.kind(),
            crc: crc32fast::hash(payload.as_bytes()),
            digest: Head::digest(payload.as_bytes()),
            payload,
        });
    }
    if bytes > MAX_APPEND_BYTES {
        return Err(Error::TooLarge {
            sandbox,
            bytes,
            limit: MAX_APPEND_BYTES,
        });
    }
    Ok(encoded)
}

/// Decodes events that are to be copied in; refuses what no reader of this release would understand.
pub(crate) fn decoded(sandbox: SandboxId, events: Vec<Raw>) -> Result<Vec<(Raw, Event)>, Error> {
    if events.is_empty() {
        return Err(Error::NothingToAppend { sandbox });
    }
    let decoded = events.into_iter().map(|raw| {
        let seq = raw.seq;
        let stored = raw.clone().decode();
        let stored = stored.map_err(|flaw| Error::Damaged {
            sandbox,
            damage: Damage { seq, flaw },
        })?;
        Ok((raw, stored.event))
    });
    decoded.collect()
}

/// An event as an engine stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// Its place.
    pub seq: Seq,
    /// Its random id.
    pub id: EventId,
    /// The epoch it was written under.
    pub epoch: Epoch,
    /// When it was written, for people.
    pub at: UnixMillis,
    /// The version of its payload.
    pub version: u16,
    /// What happened, JSON.
    pub payload: Vec<u8>,
    /// The payload's CRC-32.
    pub crc: u32,
    /// The chain hash over it and everything before it.
    pub hash: [u8; 32],
}

impl Raw {
    /// Returns the event, or what is wrong with its bytes. The chain is the reader's business.
    ///
    /// # Errors
    /// The flaw.
    pub fn decode(self) -> Result<Stored, Flaw> {
        if self.version > EVENT_VERSION {
            return Err(Flaw::NewerVersion {
                version: self.version,
            });
        }
        if crc32fast::hash(&self.payload) != self.crc {
            return Err(Flaw::BadCrc);
        }
        let event: Event = serde_json::from_slice(&self.payload)
            .map_err(|e| Flaw::Unreadable { why: e.to_string() })?;
        Ok(Stored {
            seq: self.seq,
            id: self.id,
            epoch: self.epoch,
            at: self.at,
            event,
            hash: self.hash,
        })
    }

    /// Returns whether the event follows from its predecessor's hash.
    pub(crate) fn follows(&self, prev: &[u8; 32]) -> bool {
        chain_hash(prev, self.seq, self.id, self.epoch, self.at, &self.payload) == self.hash
    }
}
