//! Where chunks go: known ones nowhere, fresh ones into frames, frames into packs, packs to the store.
//! An index object follows its pack, so that whatever an interrupted push leaves with an index is whole, and the next
//! push finds it. How much is under way at once is bounded, and so is memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::chunker::META;
use crate::content::{self, Content};
use crate::error::{Error, Result};
use crate::id::{ChunkId, IdSet, PackId};
use crate::index::{self, Known};
use crate::key::Vault;
use crate::pack::{Class, FRAME, Filling, Index, Loose, PACK, Sealed};

/// Packs on their way at once: 64 MiB of memory.
const UPLOADS: usize = 4;

/// Takes the chunks of one push.
pub(crate) struct Sink<'s> {
    backend: &'s Backend,
    vault: &'s Vault,
    pub(crate) known: Arc<Known>,
    fresh: Mutex<IdSet<ChunkId>>,
    filling: Mutex<[Filling; 2]>,
    uploads: Mutex<VecDeque<JoinHandle<Result<()>>>>,
    written: Mutex<Vec<(PackId, Index)>>,
    pub(crate) new_bytes: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
}

/// One thread's open frames.
pub(crate) struct Lane {
    open: [Loose; 2],
    /// For the chunker.
    pub(crate) buffer: Vec<u8>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self {
            open: [Loose::new(Class::Data), Loose::new(Class::Meta)],
            buffer: Vec::new(),
        }
    }
}

impl<'s> Sink<'s> {
    pub(crate) fn new(backend: &'s Backend, vault: &'s Vault, known: Arc<Known>) -> Self {
        Self {
            backend,
            vault,
            known,
            fresh: Mutex::default(),
            filling: Mutex::default(),
            uploads: Mutex::default(),
            written: Mutex::default(),
            new_bytes: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
        }
    }

    /// Takes a chunk. A frame that is full by it comes back, for the caller or another thread to [`store`](Self::store).
    pub(crate) fn add(
        &self,
        lane: &mut Lane,
        class: Class,
        bytes: &[u8],
    ) -> (ChunkId, Option<Loose>) {
        let id = self.vault.chunk_id(bytes);
        if self.known.find(&id).is_some() || !lock(&self.fresh).insert(id) {
            return (id, None);
        }
        self.new_bytes.fetch_add(bytes.len() as u64, Relaxed);
        let open = &mut lane.open[class as usize];
        // A long chunk is a frame of its own: the short ones stay together.
        if bytes.len() >= FRAME / 2 {
            let mut alone = Loose::new(class);
            alone.push(id, bytes);
            return (id, Some(alone));
        }
        open.push(id, bytes);
        let full = open.raw.len() >= FRAME;
        (id, full.then(|| std::mem::replace(open, Loose::new(class))))
    }

    /// Takes a chunk, and stores the frame that is full by it.
    pub(crate) fn add_now(&self, lane: &mut Lane, class: Class, bytes: &[u8]) -> Result<ChunkId> {
        let (id, full) = self.add(lane, class, bytes);
        full.map_or(Ok(()), |frame| self.store(frame))?;
        Ok(id)
    }

    /// Takes a text of the store's own: a directory or a list.
    pub(crate) fn add_meta(&self, lane: &mut Lane, text: &[u8]) -> Result<Content> {
        let chunks = self.split_meta(lane, text)?;
        self.listed(lane, 0, chunks)
    }

    /// Names a text by its chunks, through as many lists as it takes.
    pub(crate) fn listed(
        &self,
        lane: &mut Lane,
        level: u8,
        chunks: Vec<ChunkId>,
    ) -> Result<Content> {
        if chunks.len() <= Content::MOST {
            return Ok(Content { level, chunks });
        }
        let ids = self.split_meta(lane, &content::list(&chunks))?;
        self.listed(lane, level + 1, ids)
    }

    fn split_meta(&self, lane: &mut Lane, mut text: &[u8]) -> Result<Vec<ChunkId>> {
        let mut chunks = Vec::new();
        if text.is_empty() {
            return Ok(chunks);
        }
        if text.len() <= META.min {
            chunks.push(self.add_now(lane, Class::Meta, text)?);
            return Ok(chunks);
        }
        let mut buffer = Vec::new();
        META.split(&mut text, &mut buffer, |chunk| {
            chunks.push(self.add_now(lane, Class::Meta, chunk)?);
            Ok::<(), Carried>(())
        })
        .map_err(|Carried(why)| why)?;
        Ok(chunks)
    }

    /// Compresses and seals a frame, and puts it into a pack.
    pub(crate) fn store(&self, frame: Loose) -> Result<()> {
        let class = frame.class;
        let sealed: Sealed = frame.seal(self.vault);
        let full = {
            let mut filling = lock(&self.filling);
            let pack = &mut filling[class as usize];
            pack.push(sealed);
            (pack.bytes.len() >= PACK).then(|| std::mem::take(pack))
        };
        full.map_or(Ok(()), |pack| self.upload(pack))
    }

    /// Stores what a thread still holds.
    pub(crate) fn flush(&self, lane: &mut Lane) -> Result<()> {
        for open in &mut lane.open {
            if !open.chunks.is_empty() {
                let class = open.class;
                self.store(std::mem::replace(open, Loose::new(class)))?;
            }
        }
        Ok(())
    }

    /// Sends off what is not on its way yet. Nothing comes after it.
    pub(crate) fn close(&self) -> Result<()> {
        let [mut data, meta] = std::mem::take(&mut *lock(&self.filling));
        // A small push is one object; directories are kept apart from data only where there are many.
        if data.bytes.len() + meta.bytes.len() <= PACK {
            data.append(meta);
        } else {
            self.upload(meta)?;
        }
        self.upload(data)
    }

    /// Waits until everything is in the store, durably, and gives the packs that are new.
    pub(crate) fn finish(&self) -> Result<Vec<(PackId, Index)>> {
        self.close()?;
        let left = std::mem::take(&mut *lock(&self.uploads));
        for job in left {
            self.backend.wait(job)?;
        }
        // Also where nothing was written: what another push put there a moment ago, and this one relies on, has a name by
        // then, which its own sync may not have reached.
        self.backend.settle(["packs", "index"])?;
        Ok(std::mem::take(&mut *lock(&self.written)))
    }

    fn upload(&self, pack: Filling) -> Result<()> {
        if pack.index.frames.is_empty() {
            return Ok(());
        }
        let id = pack.id();
        self.stored_bytes
            .fetch_add(pack.bytes.len() as u64, Relaxed);
        let index = index::close(self.vault, id, &pack.index);
        let job = self
            .backend
            .put_both((object(id), pack.bytes), (index::object(id), index));
        lock(&self.written).push((id, pack.index));
        let oldest = {
            let mut uploads = lock(&self.uploads);
            uploads.push_back(job);
            if uploads.len() > UPLOADS {
                uploads.pop_front()
            } else {
                None
            }
        };
        oldest.map_or(Ok(()), |job| self.backend.wait(job))
    }
}

/// The name of a pack.
pub(crate) fn object(pack: PackId) -> String {
    format!("packs/{pack}")
}

/// Carries an error of ours through the chunker, whose own are the reader's.
pub(crate) struct Carried(pub(crate) Error);

impl From<Error> for Carried {
    fn from(why: Error) -> Self {
        Self(why)
    }
}

impl From<std::io::Error> for Carried {
    fn from(why: std::io::Error) -> Self {
        Self(Error::Io {
            doing: "read",
            path: "what is to be pushed".into(),
            source: why,
        })
    }
}

/// Takes a lock; after a panic of another thread too, because that ends the push anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
