//! Where a byte stream is cut into chunks: by content (FastCDC), so that an insertion moves few boundaries.

use std::io::Read;

use fastcdc::v2020::FastCDC;

/// The sizes that chunks of a kind may have. Changing one makes every later push share nothing with earlier ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) min: usize,
    average: usize,
    pub(crate) max: usize,
}

/// Chunks of files and streams. What is shorter than `min` is one chunk.
pub(crate) const DATA: Sizes = Sizes {
    min: 256 << 10,
    average: 1 << 20,
    max: 4 << 20,
};

/// Chunks of directories and chunk lists: small, because one entry changes.
pub(crate) const META: Sizes = Sizes {
    min: 16 << 10,
    average: 64 << 10,
    max: 256 << 10,
};

impl Sizes {
    /// Cuts what `read` gives and hands each chunk to `each`. The buffer is the caller's, to be used again.
    pub(crate) fn split<E: From<std::io::Error>>(
        self,
        read: &mut dyn Read,
        buffer: &mut Vec<u8>,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        buffer.resize(2 * self.max, 0);
        let (mut start, mut end, mut ended) = (0, 0, false);
        loop {
            if end - start < self.max && !ended {
                buffer.copy_within(start..end, 0);
                end -= start;
                start = 0;
                while end < buffer.len() {
                    match read.read(&mut buffer[end..]) {
                        Ok(0) => {
                            ended = true;
                            break;
                        }
                        Ok(len) => end += len,
                        Err(why) if why.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(why) => return Err(why.into()),
                    }
                }
            }
            if start == end {
                return Ok(());
            }
            let len = self.first(&buffer[start..end]);
            each(&buffer[start..start + len])?;
            start += len;
        }
    }

    /// Returns the length of the first chunk of a text that is complete or at least `max` long.
    fn first(self, text: &[u8]) -> usize {
        if text.len() <= self.min {
            return text.len();
        }
        let (_, end) = FastCDC::new(text, self.min, self.average, self.max).cut(0, text.len());
        end.clamp(1, text.len())
    }
}
