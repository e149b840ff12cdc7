//! How a text longer than a chunk is named: by its chunks, or, where they are many, by a text that lists them.

use crate::id::ChunkId;
use crate::wire::{Malformed, Reader, put_len};

/// Where a file's, a directory's or a stream's bytes are.
///
/// At level 0 the chunks are the bytes. At level n they are the ids of the chunks of level n - 1, 32 bytes each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Content {
    pub(crate) level: u8,
    pub(crate) chunks: Vec<ChunkId>,
}

impl Content {
    /// As many ids as stand in an entry: 4 KiB, or 128 MiB of file. More go to a list of their own.
    pub(crate) const MOST: usize = 128;
    /// No file is so long that it needs more.
    const DEEPEST: u8 = 6;

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.push(self.level);
        put_len(to, self.chunks.len());
        for id in &self.chunks {
            to.extend_from_slice(&id.0);
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let level = from.byte()?;
        if level > Self::DEEPEST {
            return Err(Malformed("a chunk list too deep"));
        }
        let count = from.count(32)?;
        let mut chunks = Vec::with_capacity(count);
        for _ in 0..count {
            chunks.push(ChunkId(from.array()?));
        }
        Ok(Self { level, chunks })
    }
}

/// Writes ids one after the other, as a list's text.
pub(crate) fn list(ids: &[ChunkId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

/// Reads them back.
pub(crate) fn unlist(text: &[u8]) -> Result<Vec<ChunkId>, Malformed> {
    let (ids, rest) = text.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(Malformed("a chunk list with a torn id"));
    }
    Ok(ids.iter().map(|id| ChunkId(*id)).collect())
}
