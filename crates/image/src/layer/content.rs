//! From the bytes of a blob to the bytes of its tar: length and digest of both are taken on the way, and what grows out
//! of all proportion is stopped.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};

use super::error::LayerError;
use crate::digest::{Digest, Hashing};
use crate::limits::Limits;

const BUFFER: usize = 128 << 10;

/// The blob as it comes: never longer than the manifest says.
pub(crate) struct Blob<R> {
    hashing: Hashing<R>,
    expected: u64,
}

impl<R: Read> Blob<R> {
    pub(crate) fn new(inner: R, expected: u64) -> Self {
        Self {
            hashing: Hashing::new(inner),
            expected,
        }
    }

    /// Reads what is left and returns the digest of the whole, or how its length is wrong.
    pub(crate) fn finish(mut self) -> Result<Digest, LayerError> {
        let expected = self.expected;
        io::copy(&mut self, &mut io::sink()).map_err(LayerError::from_reader)?;
        let found = self.hashing.length;
        if found != expected {
            return Err(LayerError::BlobSize { expected, found });
        }
        Ok(self.hashing.hasher.finish())
    }
}

impl<R: Read> Read for Blob<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.hashing.read(buffer).map_err(|source| {
            if source.kind() == io::ErrorKind::Interrupted {
                source
            } else {
                io::Error::other(LayerError::Read { source })
            }
        })?;
        if self.hashing.length > self.expected {
            let (expected, found) = (self.expected, self.hashing.length);
            return Err(io::Error::other(LayerError::BlobSize { expected, found }));
        }
        Ok(count)
    }
}

/// Counts what passes, for the reader at the other end.
struct Counted<'a, R> {
    inner: R,
    count: &'a Cell<u64>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// The unpacked content.
pub(crate) struct Content<'a> {
    inner: Box<dyn Read + 'a>,
    packed: &'a Cell<u64>,
    unpacked: u64,
    limits: Limits,
}

impl<'a> Content<'a> {
    /// Finds out by the first bytes how a blob is packed: what its media type says is not always true, and the digest
    /// of the content is checked anyway.
    pub(crate) fn open(
        blob: impl Read + 'a,
        packed: &'a Cell<u64>,
        limits: Limits,
    ) -> Result<Self, LayerError> {
        let mut blob = BufReader::with_capacity(
            BUFFER,
            Counted {
                inner: blob,
                count: packed,
            },
        );
        let start = blob.fill_buf().map_err(LayerError::from_reader)?;
        let inner: Box<dyn Read + 'a> = if start.starts_with(&[0x1f, 0x8b]) {
            Box::new(flate2::bufread::MultiGzDecoder::new(blob))
        } else if is_zstd(start) {
            Box::new(zstd::Decoder::with_buffer(blob).map_err(LayerError::from_reader)?)
        } else {
            Box::new(blob)
        };
        Ok(Self {
            inner,
            packed,
            unpacked: 0,
            limits,
        })
    }
}

/// A frame, or a skippable one before it.
fn is_zstd(start: &[u8]) -> bool {
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        || (start.len() >= 4 && start[0] & 0xf0 == 0x50 && start[1..4] == [0x2a, 0x4d, 0x18])
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.unpacked += count as u64;
        let limits = &self.limits;
        let most = self.packed.get().saturating_mul(limits.max_ratio);
        if self.unpacked > limits.free_bytes && self.unpacked > most {
            let why = LayerError::limit("max_ratio", limits.max_ratio, b"(all of the layer)");
            return Err(io::Error::other(why));
        }
        Ok(count)
    }
}
