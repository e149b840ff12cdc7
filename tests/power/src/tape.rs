//! A disk that remembers every write and every flush in their order, so that it can be had again as a power cut at any moment
//! would have left it.
//!
//! A device may hold back what was not flushed, and lose it with its power: what it was sent after the last flush is there,
//! gone, or there in part. Whole blocks are the unit: no device that is sold tears one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::seed::Seed;

pub(crate) const BLOCK: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK as u64;

type Block = Box<[u8; BLOCK]>;

/// A place on the tape: how much was recorded before it.
pub(crate) type Mark = u64;

/// What the device had in its own cache when the power went, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    /// All of it was kept.
    Kept,
    /// What was not flushed is gone.
    Lost,
    /// Of what was not flushed, some is there.
    Torn,
}

impl Cache {
    pub(crate) fn draw(chance: &mut Seed) -> Self {
        match chance.between(0, 3) {
            0 => Self::Kept,
            1 => Self::Lost,
            _ => Self::Torn,
        }
    }
}

enum Entry {
    Write(u64, Block),
    Flush,
}

#[derive(Default)]
struct Inner {
    entries: Vec<Entry>,
    /// The last write of each block.
    now: BTreeMap<u64, usize>,
}

/// The disk and its history.
pub(crate) struct Tape {
    bytes: u64,
    inner: Mutex<Inner>,
}

impl Tape {
    /// Begins with what an image holds; that is on the disk for good.
    pub(crate) fn of(image: &File) -> io::Result<Self> {
        let tape = Self {
            bytes: image.metadata()?.len(),
            inner: Mutex::default(),
        };
        let mut at = 0;
        loop {
            at = match rustix::fs::seek(image, SeekFrom::Data(at)) {
                Ok(at) => at / BLOCK_BYTES * BLOCK_BYTES,
                // No data behind it.
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno.into()),
            };
            let mut block = [0; BLOCK];
            image.read_exact_at(&mut block, at)?;
            if block != [0; BLOCK] {
                tape.write(at, &block);
            }
            at += BLOCK_BYTES;
        }
        tape.flush();
        Ok(tape)
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the recording is now. What anybody was told before this call rests on what is before this mark.
    pub(crate) fn mark(&self) -> Mark {
        self.inner().entries.len() as Mark
    }

    /// Reads as much as there is of `out.len()` bytes; returns how many.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let inner = self.inner();
        let wanted = self.bytes.saturating_sub(offset).min(out.len() as u64);
        let out = &mut out[..usize::try_from(wanted).unwrap_or(0)];
        let mut done = 0;
        while done < out.len() {
            let (block, within) = split(offset + done as u64);
            let part = (BLOCK - within).min(out.len() - done);
            match inner.block(block) {
                Some(held) => {
                    out[done..done + part].copy_from_slice(&held[within..within + part]);
                }
                None => out[done..done + part].fill(0),
            }
            done += part;
        }
        done
    }

    /// Records a write.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        let mut inner = self.inner();
        let mut done = 0;
        while done < data.len() {
            let (number, within) = split(offset + done as u64);
            let part = (BLOCK - within).min(data.len() - done);
            let mut block = inner
                .block(number)
                .filter(|_| part < BLOCK)
                .map_or_else(|| Box::new([0; BLOCK]), Clone::clone);
            block[within..within + part].copy_from_slice(&data[done..done + part]);
            let nth = inner.entries.len();
            inner.now.insert(number, nth);
            inner.entries.push(Entry::Write(number, block));
            done += part;
        }
    }

    /// Records that everything before it must stay.
    pub(crate) fn flush(&self) {
        self.inner().entries.push(Entry::Flush);
    }

    /// Makes an image of the disk as a power cut at `at` leaves it; returns how many writes the device lost.
    pub(crate) fn image(
        &self,
        at: Mark,
        cache: Cache,
        chance: &mut Seed,
        image: &File,
    ) -> io::Result<u64> {
        let inner = self.inner();
        let end = usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(inner.entries.len());
        let before = &inner.entries[..end];
        let flushed = before
            .iter()
            .rposition(|entry| matches!(entry, Entry::Flush))
            .unwrap_or(0);
        let mut lost = 0;
        let mut blocks: BTreeMap<u64, &Block> = BTreeMap::new();
        for (nth, entry) in before.iter().enumerate() {
            let Entry::Write(number, block) = entry else {
                continue;
            };
            let kept = nth < flushed
                || match cache {
                    Cache::Kept => true,
                    Cache::Lost => false,
                    Cache::Torn => chance.between(0, 2) == 0,
                };
            if kept {
                blocks.insert(*number, block);
            } else {
                lost += 1;
            }
        }
        image.set_len(self.bytes)?;
        for (number, block) in blocks {
            image.write_all_at(&block[..], number * BLOCK_BYTES)?;
        }
        Ok(lost)
    }
}

impl Inner {
    fn block(&self, number: u64) -> Option<&Block> {
        match self.entries.get(*self.now.get(&number)?)? {
            Entry::Write(_, block) => Some(block),
            Entry::Flush => None,
        }
    }
}

/// Returns the block that a byte is in, and its place in it.
fn split(offset: u64) -> (u64, usize) {
    let within = usize::try_from(offset % BLOCK_BYTES).unwrap_or(0);
    (offset / BLOCK_BYTES, within)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tape(blocks: u64) -> Tape {
        let image = tempfile::tempfile().unwrap();
        image.set_len(blocks * BLOCK_BYTES).unwrap();
        image.write_all_at(b"old", BLOCK_BYTES).unwrap();
        Tape::of(&image).unwrap()
    }

    fn left(tape: &Tape, at: Mark, cache: Cache, seed: u64) -> (Vec<u8>, u64) {
        let image = tempfile::tempfile().unwrap();
        let lost = tape.image(at, cache, &mut Seed::new(seed), &image).unwrap();
        let mut bytes = vec![0; usize::try_from(tape.bytes()).unwrap()];
        image.read_exact_at(&mut bytes, 0).unwrap();
        (bytes, lost)
    }

    #[test]
    fn it_reads_what_was_written_last() {
        let tape = tape(3);
        tape.write(BLOCK_BYTES - 2, b"abcd");
        let mut read = [b'x'; 8];
        assert_eq!(tape.read(BLOCK_BYTES - 3, &mut read), 8);
        assert_eq!(&read, b"\0abcdd\0\0".map(|b| b).as_slice());
        assert_eq!(tape.read(3 * BLOCK_BYTES - 5, &mut read), 5);
        assert_eq!(tape.read(3 * BLOCK_BYTES + 5, &mut read), 0);
    }

    #[test]
    fn what_was_flushed_stays_and_the_rest_is_the_caches() {
        let tape = tape(64);
        tape.write(0, b"first");
        tape.flush();
        let flushed = tape.mark();
        for nth in 2..64 {
            tape.write(nth * BLOCK_BYTES, b"later");
        }
        tape.write(0, b"again");
        let end = tape.mark();
        let (kept, none) = left(&tape, end, Cache::Kept, 1);
        assert!(kept.starts_with(b"again") && none == 0);
        let (gone, lost) = left(&tape, end, Cache::Lost, 1);
        assert_eq!(lost, 63);
        assert_eq!(gone, left(&tape, flushed, Cache::Kept, 1).0);
        assert!(gone.starts_with(b"first"));
        assert_eq!(&gone[BLOCK..BLOCK + 3], b"old");
        let (torn, some) = left(&tape, end, Cache::Torn, 1);
        assert!(0 < some && some < 63);
        assert_eq!(torn, left(&tape, end, Cache::Torn, 1).0);
        assert_ne!(torn, left(&tape, end, Cache::Torn, 2).0);
        // Before the flush it was only sent.
        assert!(
            left(&tape, flushed - 1, Cache::Lost, 1)
                .0
                .starts_with(b"\0")
        );
    }
}
