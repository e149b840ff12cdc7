//! Packs: objects of some megabytes that hold many chunks, and the index of each.
//!
//! A pack is frames, one after the other. A frame is some chunks, compressed together and then sealed; so a thousand
//! small files cost one compression, one nonce and one read. The index tells frames and chunks in their order.

use crate::id::{ChunkId, PackId};
use crate::key::Vault;
use crate::wire::{Malformed, Reader, put_len, put_num};

/// Random bytes that a pack begins with. No two packs have one name: a sweep that removes one cannot hit another that a
/// push is writing, of the same chunks, just then.
const HEAD: usize = 16;

/// A frame is closed once it is so long. Larger ones compress better, and cost more when one small file is wanted.
pub(crate) const FRAME: usize = 256 << 10;
/// A pack is closed once it is so long.
pub(crate) const PACK: usize = 16 << 20;
/// No frame is longer: [`FRAME`] and the longest chunk after it.
const LONGEST: u32 = 8 << 20;
const LEVEL: i32 = 1;
const AAD: &[u8] = b"frame";

/// What the chunks of a frame belong to: files and streams, or directories and lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Data = 0,
    Meta = 1,
}

/// A frame as the index tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) class: Class,
    pub(crate) compressed: bool,
    /// Where it is in the pack.
    pub(crate) at: u64,
    pub(crate) stored: u32,
    pub(crate) raw: u32,
    /// Where its chunks are in [`Index::chunks`].
    pub(crate) chunks: std::ops::Range<u32>,
}

/// What a pack holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Index {
    pub(crate) frames: Vec<Frame>,
    /// Ids and lengths, frame after frame.
    pub(crate) chunks: Vec<(ChunkId, u32)>,
}

/// Chunks that wait to be a frame.
#[derive(Debug)]
pub(crate) struct Loose {
    pub(crate) class: Class,
    pub(crate) chunks: Vec<(ChunkId, u32)>,
    pub(crate) raw: Vec<u8>,
}

/// A frame ready to be stored.
#[derive(Debug)]
pub(crate) struct Sealed {
    class: Class,
    compressed: bool,
    raw: u32,
    chunks: Vec<(ChunkId, u32)>,
    pub(crate) bytes: Vec<u8>,
}

impl Loose {
    pub(crate) fn new(class: Class) -> Self {
        Self {
            class,
            chunks: Vec::new(),
            raw: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, id: ChunkId, bytes: &[u8]) {
        self.chunks.push((id, len32(bytes.len())));
        self.raw.extend_from_slice(bytes);
    }

    /// Compresses, unless that gains nothing, and seals.
    pub(crate) fn seal(self, vault: &Vault) -> Sealed {
        let raw = len32(self.raw.len());
        let packed = zstd::bulk::compress(&self.raw, LEVEL)
            .ok()
            .filter(|packed| packed.len() < self.raw.len() / 100 * 97);
        Sealed {
            class: self.class,
            compressed: packed.is_some(),
            raw,
            chunks: self.chunks,
            bytes: vault.seal(AAD, packed.unwrap_or(self.raw)),
        }
    }
}

/// Opens a stored frame and gives its chunks' bytes, one after the other.
pub(crate) fn unseal(vault: &Vault, frame: &Frame, stored: &[u8]) -> Result<Vec<u8>, &'static str> {
    let plain = vault
        .open(AAD, stored)
        .ok_or("it was not sealed with this store's key")?;
    let raw = if frame.compressed {
        zstd::bulk::decompress(&plain, frame.raw as usize)
            .map_err(|_| "it cannot be decompressed")?
    } else {
        plain
    };
    if raw.len() != frame.raw as usize {
        return Err("it has another length");
    }
    Ok(raw)
}

/// A pack being filled.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    pub(crate) bytes: Vec<u8>,
    pub(crate) index: Index,
}

impl Filling {
    pub(crate) fn push(&mut self, frame: Sealed) {
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&rand::random::<[u8; HEAD]>());
        }
        let first = len32(self.index.chunks.len());
        self.index.frames.push(Frame {
            class: frame.class,
            compressed: frame.compressed,
            at: self.bytes.len() as u64,
            stored: len32(frame.bytes.len()),
            raw: frame.raw,
            chunks: first..first + len32(frame.chunks.len()),
        });
        self.index.chunks.extend(frame.chunks);
        self.bytes.extend_from_slice(&frame.bytes);
    }

    /// Takes over what another holds.
    pub(crate) fn append(&mut self, other: Self) {
        if self.bytes.is_empty() {
            *self = other;
            return;
        }
        let (bytes, chunks) = (self.bytes.len() as u64, len32(self.index.chunks.len()));
        self.index
            .frames
            .extend(other.index.frames.into_iter().map(|mut frame| {
                frame.at += bytes - HEAD as u64;
                frame.chunks = frame.chunks.start + chunks..frame.chunks.end + chunks;
                frame
            }));
        self.index.chunks.extend(other.index.chunks);
        self.bytes
            .extend_from_slice(other.bytes.get(HEAD..).unwrap_or_default());
    }

    pub(crate) fn id(&self) -> PackId {
        PackId(blake3::hash(&self.bytes).into())
    }
}

impl Index {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(self.chunks.len() * 36 + self.frames.len() * 8 + 8);
        put_len(&mut to, self.frames.len());
        for frame in &self.frames {
            to.push(u8::from(frame.compressed) | (frame.class as u8) << 1);
            put_num(&mut to, frame.stored.into());
            put_len(&mut to, frame.chunks.len());
            for (id, len) in self.of(frame) {
                to.extend_from_slice(&id.0);
                put_num(&mut to, (*len).into());
            }
        }
        to
    }

    pub(crate) fn decode(text: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(text);
        let mut index = Self::default();
        let mut at = HEAD as u64;
        for _ in 0..from.count(3)? {
            let flags = from.byte()?;
            let class = match flags >> 1 {
                0 => Class::Data,
                1 => Class::Meta,
                _ => return Err(Malformed("a frame of a class unknown here")),
            };
            let stored = from.num32()?;
            let first = len32(index.chunks.len());
            let mut raw = 0u32;
            for _ in 0..from.count(33)? {
                let id = ChunkId(from.array()?);
                let len = from.num32()?;
                raw = raw
                    .checked_add(len)
                    .filter(|raw| *raw <= LONGEST)
                    .ok_or(Malformed("a frame too long"))?;
                index.chunks.push((id, len));
            }
            index.frames.push(Frame {
                class,
                compressed: flags & 1 != 0,
                at,
                stored,
                raw,
                chunks: first..len32(index.chunks.len()),
            });
            at += u64::from(stored);
        }
        if !from.is_empty() {
            return Err(Malformed("something after the last frame"));
        }
        Ok(index)
    }

    /// The chunks of a frame.
    pub(crate) fn of(&self, frame: &Frame) -> &[(ChunkId, u32)] {
        &self.chunks[frame.chunks.start as usize..frame.chunks.end as usize]
    }

    /// How long the pack is.
    pub(crate) fn pack_len(&self) -> u64 {
        self.frames
            .last()
            .map_or(0, |last| last.at + u64::from(last.stored))
    }
}

/// A length within a pack, which is never near four gigabytes.
fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("a pack is closed at some megabytes")
}
