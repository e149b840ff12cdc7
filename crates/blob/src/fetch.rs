//! Reads chunks back, each checked against its name.

use std::sync::{Arc, Mutex};

use crate::content::{self, Content};
use crate::error::{Damage, Error, Result, escaped};
use crate::id::{ChunkId, PackId, SnapshotId};
use crate::index::{Known, Place};
use crate::pack::{self, Frame};
use crate::sink::{self, lock};
use crate::store::Store;

/// Frames kept in memory for the next chunk of the same frame.
const KEPT: usize = 16;

/// A chunk that cannot be had.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) chunk: ChunkId,
    pub(crate) pack: Option<PackId>,
    pub(crate) why: String,
}

/// Why a text cannot be had: one of its chunks, or the store as a whole.
#[derive(Debug)]
pub(crate) enum Fault {
    Bad(Bad),
    Store(Error),
}

impl From<Error> for Fault {
    fn from(why: Error) -> Self {
        Self::Store(why)
    }
}

impl Fault {
    /// Says what needed it.
    pub(crate) fn of(self, snapshot: &SnapshotId, path: &[u8]) -> Error {
        match self {
            Self::Store(why) => why,
            Self::Bad(bad) => Error::Chunk(Box::new(bad.of(snapshot, path))),
        }
    }
}

impl Bad {
    pub(crate) fn of(self, snapshot: &SnapshotId, path: &[u8]) -> Damage {
        Damage {
            snapshot: *snapshot,
            path: escaped(path),
            chunk: self.chunk,
            pack: self.pack,
            why: self.why,
        }
    }
}

/// Reads from one store with one view of what it has.
pub(crate) struct Fetch<'s> {
    pub(crate) store: &'s Store,
    pub(crate) known: Arc<Known>,
    #[expect(
        clippy::type_complexity,
        reason = "pack and frame, and the frame's bytes"
    )]
    kept: Mutex<Vec<((u32, u32), Arc<Vec<u8>>)>>,
}

impl<'s> Fetch<'s> {
    pub(crate) fn new(store: &'s Store, known: Arc<Known>) -> Self {
        Self {
            store,
            known,
            kept: Mutex::default(),
        }
    }

    /// Finds a chunk.
    pub(crate) fn place(&self, chunk: &ChunkId) -> Result<Place, Bad> {
        self.known.find(chunk).ok_or_else(|| Bad {
            chunk: *chunk,
            pack: None,
            why: match self.known.damaged.as_slice() {
                [] => "it is missing".into(),
                damaged => format!("it is missing, and {} cannot be read", damaged.join(", ")),
            },
        })
    }

    /// Reads one chunk.
    pub(crate) fn chunk(&self, chunk: &ChunkId) -> Result<Vec<u8>, Fault> {
        let place = self.place(chunk).map_err(Fault::Bad)?;
        let key = (place.pack, place.frame);
        let kept = lock(&self.kept)
            .iter()
            .find(|(at, _)| *at == key)
            .map(|(_, raw)| Arc::clone(raw));
        let raw = match kept {
            Some(raw) => raw,
            None => {
                let (pack, frame) = self.known.frame(place);
                let bad = |why: &str| {
                    Fault::Bad(Bad {
                        chunk: *chunk,
                        pack: Some(pack),
                        why: why.into(),
                    })
                };
                let stored = self
                    .store
                    .backend
                    .get_range(&sink::object(pack), frame.at, frame.stored.into())?
                    .ok_or_else(|| bad("the pack is missing"))?;
                let raw = self.unseal(frame, &stored).map_err(bad)?;
                let raw = Arc::new(raw);
                let mut kept = lock(&self.kept);
                if kept.len() >= KEPT {
                    kept.remove(0);
                }
                kept.push((key, Arc::clone(&raw)));
                raw
            }
        };
        self.cut(chunk, place, &raw)
            .map(<[u8]>::to_vec)
            .map_err(Fault::Bad)
    }

    /// Opens a frame.
    pub(crate) fn unseal(&self, frame: &Frame, stored: &[u8]) -> Result<Vec<u8>, &'static str> {
        if stored.len() != frame.stored as usize {
            return Err("the pack is cut short");
        }
        pack::unseal(&self.store.vault, frame, stored)
    }

    /// Takes a chunk out of its frame and checks that it is the one named.
    pub(crate) fn cut<'r>(
        &self,
        chunk: &ChunkId,
        place: Place,
        raw: &'r [u8],
    ) -> Result<&'r [u8], Bad> {
        let at = place.at as usize;
        raw.get(at..at + place.len as usize)
            .filter(|bytes| self.store.vault.chunk_id(bytes) == *chunk)
            .ok_or_else(|| Bad {
                chunk: *chunk,
                pack: Some(self.known.frame(place).0),
                why: "its bytes are not those it is named by".into(),
            })
    }

    /// Resolves lists down to the chunks that are the text. `seen` is told of every chunk on the way.
    pub(crate) fn leaves(
        &self,
        content: &Content,
        seen: &mut dyn FnMut(&ChunkId),
    ) -> Result<Vec<ChunkId>, Fault> {
        let mut chunks = content.chunks.clone();
        for _ in 0..content.level {
            let mut text = Vec::new();
            for chunk in &chunks {
                seen(chunk);
                text.extend_from_slice(&self.chunk(chunk)?);
            }
            let first = chunks.first().copied();
            chunks = content::unlist(&text).map_err(|why| match first {
                Some(chunk) => Fault::Bad(Bad {
                    chunk,
                    pack: None,
                    why: why.to_string(),
                }),
                None => Fault::Store(Error::Invalid(why.to_string())),
            })?;
        }
        chunks.iter().for_each(seen);
        Ok(chunks)
    }

    /// Reads a whole text; for directories.
    pub(crate) fn text(
        &self,
        content: &Content,
        seen: &mut dyn FnMut(&ChunkId),
    ) -> Result<Vec<u8>, Fault> {
        let mut text = Vec::new();
        for chunk in self.leaves(content, seen)? {
            text.extend_from_slice(&self.chunk(&chunk)?);
        }
        Ok(text)
    }

    /// Reads a directory.
    pub(crate) fn directory(
        &self,
        content: &Content,
        seen: &mut dyn FnMut(&ChunkId),
    ) -> Result<Vec<crate::entry::Entry>, Fault> {
        let text = self.text(content, seen)?;
        crate::entry::directory(&text).map_err(|why| match content.chunks.first() {
            Some(chunk) => Fault::Bad(Bad {
                chunk: *chunk,
                pack: None,
                why: why.to_string(),
            }),
            None => Fault::Store(Error::Invalid(why.to_string())),
        })
    }
}
