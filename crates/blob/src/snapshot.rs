//! Snapshot objects: small, written last, and never changed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::backend::{Lasts, Prepared};
use crate::content::Content;
use crate::entry::Entry;
use crate::envelope::{self, Body};
use crate::error::{Error, Result};
use crate::id::{SnapshotId, hex, unhex};
use crate::store::Store;
use crate::wire::Reader;

/// A stream of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// How many bytes it has.
    pub len: u64,
    pub(crate) content: Content,
}

/// What was pushed at one time.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its name.
    pub id: SnapshotId,
    /// When it was made, by the clock of the machine that pushed it; for people.
    pub created: SystemTime,
    /// The snapshots that it follows.
    pub parents: Vec<SnapshotId>,
    /// Its streams by name.
    pub streams: BTreeMap<String, Stream>,
    /// Entries of the tree and bytes of their files.
    pub entries: u64,
    /// What the caller said about it.
    pub note: serde_json::Value,
    /// The root directory, if a tree was pushed.
    pub(crate) tree: Option<Entry>,
}

impl Snapshot {
    /// Says whether it has a tree of files.
    #[must_use]
    pub fn has_tree(&self) -> bool {
        self.tree.is_some()
    }

    /// Says whether two snapshots of one store have the same tree: every name, attribute and byte, also of the root.
    #[must_use]
    pub fn has_same_tree(&self, other: &Self) -> bool {
        self.tree == other.tree
    }
}

/// The object as it is stored, JSON.
#[derive(Serialize, Deserialize)]
struct Stored {
    created_ms: u64,
    /// Makes every snapshot another one, also of the same content in the same millisecond.
    nonce: String,
    parents: Vec<SnapshotId>,
    /// The root's entry.
    tree: Option<String>,
    entries: u64,
    streams: BTreeMap<String, StoredStream>,
    note: serde_json::Value,
}

#[derive(Serialize, Deserialize)]
struct StoredStream {
    len: u64,
    content: String,
}

/// A snapshot object ready to be written.
pub(crate) struct Ready {
    pub(crate) snapshot: Snapshot,
    text: Vec<u8>,
}

/// Encodes a snapshot, and puts its `id` right.
pub(crate) fn ready(store: &Store, mut snapshot: Snapshot) -> Ready {
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut to = Vec::new();
        encode(&mut to);
        hex(&to)
    };
    let stored = Stored {
        created_ms: millis(snapshot.created),
        nonce: hex(&rand::random::<[u8; 16]>()),
        parents: snapshot.parents.clone(),
        tree: snapshot
            .tree
            .as_ref()
            .map(|root| encoded(&|to| root.encode(to))),
        entries: snapshot.entries,
        streams: snapshot
            .streams
            .iter()
            .map(|(name, stream)| {
                let stored = StoredStream {
                    len: stream.len,
                    content: encoded(&|to| stream.content.encode(to)),
                };
                (name.clone(), stored)
            })
            .collect(),
        note: snapshot.note.clone(),
    };
    let text = serde_json::to_vec(&stored).expect("a snapshot is plain JSON");
    snapshot.id = store.vault.snapshot_id(&text);
    Ready { snapshot, text }
}

impl Ready {
    /// Begins to write the object, for the announcement and the snapshot; nobody sees either yet.
    pub(crate) fn prepare(&self, store: &Store) -> [Prepared; 2] {
        let id = &self.snapshot.id;
        [pending(id), object(id)].map(|name| {
            let closed = envelope::close(&store.vault, &name, Body::Sealed, self.text.clone());
            store.backend.prepare(&name, closed)
        })
    }

    /// Shows the object where it is not a snapshot yet, but kept in mind by every collection. A power cut may take it away
    /// again, and ends the push as well.
    pub(crate) fn announce(&self, store: &Store, prepared: Prepared) -> Result<()> {
        let name = pending(&self.snapshot.id);
        create(store, &name, prepared, Lasts::UntilThen)
    }

    /// Makes it a snapshot.
    pub(crate) fn publish(&self, store: &Store, prepared: Prepared) -> Result<()> {
        let name = object(&self.snapshot.id);
        create(store, &name, prepared, Lasts::Always)
    }
}

fn create(store: &Store, name: &str, prepared: Prepared, lasts: Lasts) -> Result<()> {
    if store.backend.create_prepared(name, prepared, lasts)? {
        return Ok(());
    }
    Err(Error::Invalid(format!("{name} exists already")))
}

/// Reads one.
pub(crate) fn read(store: &Store, id: &SnapshotId) -> Result<Snapshot> {
    read_at(store, id, &object(id))?.ok_or(Error::NoSnapshot(*id))
}

/// Reads one that is not published yet; `None` if it is by now, or was given up.
pub(crate) fn read_pending(store: &Store, id: &SnapshotId) -> Result<Option<Snapshot>> {
    read_at(store, id, &pending(id))
}

fn read_at(store: &Store, id: &SnapshotId, name: &str) -> Result<Option<Snapshot>> {
    let Some(bytes) = store.backend.get(name)? else {
        return Ok(None);
    };
    let text = envelope::open(&store.vault, name, Body::Sealed, &bytes)?;
    if store.vault.snapshot_id(&text) != *id {
        return Err(Error::damaged(name, "it is another snapshot"));
    }
    match parse(*id, &text) {
        Some(snapshot) => Ok(Some(snapshot)),
        None => Err(Error::damaged(name, "it is malformed")),
    }
}

fn parse(id: SnapshotId, text: &[u8]) -> Option<Snapshot> {
    let stored: Stored = serde_json::from_slice(text).ok()?;
    let tree = match stored.tree {
        Some(root) => Some(Entry::decode(&mut Reader(&unhex(&root)?)).ok()?),
        None => None,
    };
    let mut streams = BTreeMap::new();
    for (name, stream) in stored.streams {
        let content = Content::decode(&mut Reader(&unhex(&stream.content)?)).ok()?;
        streams.insert(
            name,
            Stream {
                len: stream.len,
                content,
            },
        );
    }
    Some(Snapshot {
        id,
        created: SystemTime::UNIX_EPOCH + Duration::from_millis(stored.created_ms),
        parents: stored.parents,
        streams,
        entries: stored.entries,
        note: stored.note,
        tree,
    })
}

/// The name of a snapshot's object.
pub(crate) fn object(id: &SnapshotId) -> String {
    format!("snapshots/{id}")
}

/// The name of its object while it is checked whether all it needs is there.
pub(crate) fn pending(id: &SnapshotId) -> String {
    format!("pending/{id}")
}

/// Milliseconds since 1970.
pub(crate) fn millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}
