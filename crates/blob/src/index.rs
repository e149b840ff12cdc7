//! Which chunks the store has, and where: the index objects read into memory, with a copy on this machine's disk.
//!
//! The copy is a cache. What it says counts only for index objects that the store still lists, so that it can be old,
//! torn or absent. An index object that cannot be read is set aside: its chunks are as good as missing, a push uploads
//! them again, and a pull that needs one tells of both.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::envelope::{self, Body};
use crate::error::{Error, Result};
use crate::id::{ChunkId, IdMap, IdSet, PackId};
use crate::key::Vault;
use crate::pack::{Frame, Index};
use crate::wire::Reader;

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) pack: u32,
    pub(crate) frame: u32,
    /// Where it begins in the frame's raw bytes.
    pub(crate) at: u32,
    pub(crate) len: u32,
}

/// All chunks known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) packs: Vec<(PackId, Index)>,
    pub(crate) by_pack: IdMap<PackId, u32>,
    places: IdMap<ChunkId, Place>,
    /// Packs that have an index object and are not there. What other packs have too is found there.
    pub(crate) dangling: IdSet<PackId>,
    /// Index objects that cannot be read.
    pub(crate) damaged: Vec<String>,
}

impl Known {
    /// Reads what the store has: only what is new where `before` still holds, else as much as possible from the copy.
    pub(crate) fn load(
        backend: &Backend,
        vault: &Vault,
        before: Option<Arc<Self>>,
        cache: Option<&Path>,
    ) -> Result<Arc<Self>> {
        // The packs after the indexes: whatever index is listed, its pack was there before.
        let mut listed = names(backend, "index")?;
        let packs: IdSet<PackId> = names(backend, "packs")?.into_iter().collect();
        listed.sort_by_key(|pack| !packs.contains(pack));
        let dangling = listed.iter().filter(|pack| !packs.contains(pack));
        let dangling: IdSet<PackId> = dangling.copied().collect();
        let before = before.filter(|before| before.holds(&listed, &dangling));
        let mut copies = match (&before, cache) {
            (None, Some(path)) => read_cache(path),
            _ => IdMap::default(),
        };
        if let Some(before) = &before {
            listed.retain(|pack| !before.by_pack.contains_key(pack));
            if listed.is_empty() {
                return Ok(Arc::clone(before));
            }
        }
        let is_whole = before.is_none();
        let mut known = before.map_or_else(Self::default, Arc::unwrap_or_clone);
        known.dangling = dangling;
        let mut fresh = Vec::new();
        for pack in listed {
            if let Some(index) = copies.remove(&pack) {
                known.add(pack, index);
                continue;
            }
            let name = object(pack);
            // Gone since it was listed: a garbage collection.
            let Some(bytes) = backend.get(&name)? else {
                continue;
            };
            match read(vault, &name, &bytes) {
                Ok(index) => {
                    fresh.push((pack, index.encode()));
                    known.add(pack, index);
                }
                Err(why @ Error::TooNew { .. }) => return Err(why),
                Err(why) => {
                    tracing::warn!(object = name, %why, "an index object is set aside");
                    known.damaged.push(name);
                }
            }
        }
        if let Some(path) = cache {
            // Much of it is about packs that are gone: written anew, not added to.
            let stale = is_whole && copies.len() > known.packs.len();
            let all = known
                .packs
                .iter()
                .map(|(pack, index)| (*pack, index.encode()));
            let kept = if stale {
                rewrite(path, all)
            } else {
                append(path, &fresh)
            };
            if let Err(why) = kept {
                tracing::warn!(path = %path.display(), %why, "the index cache cannot be written");
            }
        }
        Ok(Arc::new(known))
    }

    /// Says whether all of it is still so, and what is listed besides can simply be added.
    fn holds(&self, listed: &[PackId], dangling: &IdSet<PackId>) -> bool {
        let there: IdSet<&PackId> = listed.iter().collect();
        self.damaged.is_empty()
            && self.dangling == *dangling
            && self.packs.iter().all(|(pack, _)| there.contains(pack))
    }

    /// How many chunks it knows.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn add(&mut self, pack: PackId, index: Index) {
        let number = number(self.packs.len());
        for (frame_no, frame) in index.frames.iter().enumerate() {
            let mut at = 0;
            for (id, len) in index.of(frame) {
                self.places.entry(*id).or_insert(Place {
                    pack: number,
                    frame: self::number(frame_no),
                    at,
                    len: *len,
                });
                at += len;
            }
        }
        self.by_pack.insert(pack, number);
        self.packs.push((pack, index));
    }

    pub(crate) fn find(&self, id: &ChunkId) -> Option<Place> {
        self.places.get(id).copied()
    }

    /// The pack and frame of a place.
    pub(crate) fn frame(&self, place: Place) -> (PackId, &Frame) {
        let (pack, index) = &self.packs[place.pack as usize];
        (*pack, &index.frames[place.frame as usize])
    }

    /// Takes packs out, as if the store had never had them.
    pub(crate) fn without(self: Arc<Self>, gone: &dyn Fn(&PackId) -> bool) -> Arc<Self> {
        if !self.packs.iter().any(|(pack, _)| gone(pack)) {
            return self;
        }
        let mut rest = Self {
            damaged: self.damaged.clone(),
            dangling: self.dangling.clone(),
            ..Self::default()
        };
        for (pack, index) in &self.packs {
            if !gone(pack) {
                rest.add(*pack, index.clone());
            }
        }
        Arc::new(rest)
    }
}

/// The name of a pack's index object.
pub(crate) fn object(pack: PackId) -> String {
    format!("index/{pack}")
}

/// The packs that have an object in `index` or `packs`.
pub(crate) fn names(backend: &Backend, dir: &str) -> Result<Vec<PackId>> {
    let names = backend.names(dir)?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Closes an index object.
pub(crate) fn close(vault: &Vault, pack: PackId, index: &Index) -> Vec<u8> {
    envelope::close(vault, &object(pack), Body::Sealed, index.encode())
}

fn read(vault: &Vault, name: &str, bytes: &[u8]) -> Result<Index> {
    let text = envelope::open(vault, name, Body::Sealed, bytes)?;
    Index::decode(&text).map_err(|why| Error::damaged(name, why.to_string()))
}

fn number(len: usize) -> u32 {
    u32::try_from(len).expect("packs and frames are counted in thousands")
}

/// A record of the cache: pack, length, text, and sixteen bytes of a hash over these.
fn record(pack: PackId, text: &[u8]) -> Vec<u8> {
    let mut record = pack.0.to_vec();
    record.extend_from_slice(&(text.len() as u64).to_le_bytes());
    record.extend_from_slice(text);
    let hash = blake3::hash(&record);
    record.extend_from_slice(&hash.as_bytes()[..16]);
    record
}

/// Reads as far as the records are whole.
fn read_cache(path: &Path) -> IdMap<PackId, Index> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let mut from = Reader(&bytes);
    let mut all = IdMap::default();
    while let Some((pack, index)) = next_record(&mut from) {
        all.insert(pack, index);
    }
    if !from.is_empty() {
        tracing::warn!(path = %path.display(), "the index cache has a torn end and is made anew");
        // What would be appended after the tear could not be read.
        drop(std::fs::remove_file(path));
        return IdMap::default();
    }
    all
}

fn next_record(from: &mut Reader<'_>) -> Option<(PackId, Index)> {
    let mut rest = *from;
    let pack = PackId(rest.array().ok()?);
    let len = usize::try_from(u64::from_le_bytes(rest.array().ok()?)).ok()?;
    let text = rest.take(len).ok()?;
    let told = rest.take(16).ok()?;
    let covered = &from.0[..40 + len];
    if blake3::hash(covered).as_bytes()[..16] != *told {
        return None;
    }
    let index = Index::decode(text).ok()?;
    *from = rest;
    Some((pack, index))
}

pub(crate) fn append(path: &Path, records: &[(PackId, Vec<u8>)]) -> std::io::Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let bytes: Vec<u8> = records
        .iter()
        .flat_map(|(pack, text)| record(*pack, text))
        .collect();
    // One write: two processes that share the file do not mix their records.
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?
        .write_all(&bytes)
}

fn rewrite(path: &Path, records: impl Iterator<Item = (PackId, Vec<u8>)>) -> std::io::Result<()> {
    let bytes: Vec<u8> = records
        .flat_map(|(pack, text)| record(pack, &text))
        .collect();
    crate::files::replace(path, &bytes)
}
