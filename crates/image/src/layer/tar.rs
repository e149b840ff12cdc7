//! A reader of tar streams that trusts nothing: ustar, GNU and pax, long names and sparse files, in bounded memory.
//!
//! The `tar` crate holds a long name or an extended header in memory whole, as long as the archive claims it to be; a
//! layer comes from strangers, so this reader is ours. It knows nothing of files: names are bytes, given as they stand.

use std::io::{self, Read};

use super::error::LayerError;
use super::pax::{self, Pax, SparseMap};
use crate::limits::Limits;

const BLOCK: usize = 512;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
}

/// One entry; its data is read from the reader that gave it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// Bytes of data that follow in the stream.
    pub(crate) data: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) sparse: Option<SparseMap>,
}

/// Gives the entries of a stream one after the other.
pub(crate) struct Reader<R> {
    inner: R,
    limits: Limits,
    /// Of the present entry: data not yet read, and what fills its last block.
    left: u64,
    padding: u64,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(inner: R, limits: Limits) -> Self {
        Self {
            inner,
            limits,
            left: 0,
            padding: 0,
        }
    }

    /// Returns the next entry. What was not read of the one before is passed over.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, LayerError> {
        let (mut pax, mut long_name, mut long_link) = (None, None, None);
        loop {
            self.pass_over()?;
            let Some(block) = self.header()? else {
                if pax.is_some() || long_name.is_some() || long_link.is_some() {
                    return Err(LayerError::malformed(
                        "the archive ends in the middle of an entry",
                    ));
                }
                return Ok(None);
            };
            let flag = block[156];
            let size = numeric(&block[124..136]).ok_or_else(bad_header)?;
            match flag {
                b'x' => {
                    pax = Some(Pax::parse(
                        &self.extension(size)?,
                        self.limits.max_sparse_segments,
                    )?)
                }
                // Global headers name comments and commits; nobody honours them in a layer.
                b'g' => drop(self.extension(size)?),
                b'L' => long_name = Some(to_nul(self.extension(size)?)),
                b'K' => long_link = Some(to_nul(self.extension(size)?)),
                _ => {
                    let mut pax = pax.unwrap_or_default();
                    pax.path = pax.path.or(long_name);
                    pax.link = pax.link.or(long_link);
                    return self.entry(&block, flag, size, pax).map(Some);
                }
            }
        }
    }

    /// Returns the stream, which stands where the present entry's data begins.
    pub(crate) fn inner(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Says that the stream was moved behind the present entry's data.
    pub(crate) fn passed(&mut self) {
        (self.left, self.padding) = (0, 0);
    }

    /// Gives the stream back, to read what stands behind the archive's end.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        flag: u8,
        size: u64,
        pax: Pax,
    ) -> Result<Entry, LayerError> {
        let sparse_name = pax.sparse.name;
        let path = sparse_name
            .or(pax.path)
            .unwrap_or_else(|| header_path(block));
        let link = pax.link.unwrap_or_else(|| field(&block[157..257]));
        let kind = match flag {
            0 | b'0' | b'7' if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => {
                return Err(LayerError::refused(
                    &path,
                    "it is of a type that layers do not have",
                ));
            }
        };
        let mut data = match kind {
            Kind::File => pax.size.unwrap_or(size),
            // Whatever size these have written down, no data follows.
            _ => 0,
        };
        self.left = data;
        let whole = data
            .checked_next_multiple_of(BLOCK as u64)
            .ok_or_else(bad_header)?;
        self.padding = whole - data;
        let mut sparse = None;
        if kind == Kind::File {
            if flag == b'S' {
                // The rest of the map stands before the data and is not counted by its size.
                let numbers = self.gnu_map(block, &path)?;
                let real_size = numeric(&block[483..495]).ok_or_else(bad_header)?;
                sparse = Some(SparseMap::checked(&numbers, real_size, data)?);
            } else if let Some(real_size) = pax.sparse.real_size {
                let numbers = if pax.sparse.major == Some(1) {
                    let most = self.limits.max_sparse_segments;
                    let (numbers, taken) = pax::map_before_data(&mut *self, most)?;
                    data = data.checked_sub(taken).ok_or_else(bad_header)?;
                    numbers
                } else {
                    pax.sparse.numbers
                };
                sparse = Some(SparseMap::checked(&numbers, real_size, data)?);
            }
        }
        Ok(Entry {
            kind,
            path,
            link,
            data,
            mode: u32::try_from(numeric(&block[100..108]).ok_or_else(bad_header)? & 0o7777)
                .unwrap_or(0),
            uid: owner(pax.uid, &block[108..116])?,
            gid: owner(pax.gid, &block[116..124])?,
            mtime: match pax.mtime {
                Some(mtime) => mtime,
                None => (signed(&block[136..148]).ok_or_else(bad_header)?, 0),
            },
            xattrs: pax.xattrs,
            sparse,
        })
    }

    /// Reads the map of an old GNU sparse file: four segments in its header, twenty-one in each block that follows.
    fn gnu_map(&mut self, block: &[u8; BLOCK], path: &[u8]) -> Result<Vec<u64>, LayerError> {
        let mut numbers = Vec::new();
        let take = |numbers: &mut Vec<u64>, fields: &[u8]| -> Result<(), LayerError> {
            for pair in fields.chunks_exact(24) {
                if pair[0] == 0 && pair[12] == 0 {
                    break;
                }
                numbers.push(numeric(&pair[..12]).ok_or_else(bad_header)?);
                numbers.push(numeric(&pair[12..]).ok_or_else(bad_header)?);
            }
            Ok(())
        };
        take(&mut numbers, &block[386..482])?;
        let mut more = block[482] != 0;
        while more {
            let mut next = [0; BLOCK];
            self.inner
                .read_exact(&mut next)
                .map_err(LayerError::from_reader)?;
            take(&mut numbers, &next[..504])?;
            more = next[504] != 0;
            if numbers.len() > 2 * self.limits.max_sparse_segments {
                let allowed = self.limits.max_sparse_segments as u64;
                return Err(LayerError::limit("max_sparse_segments", allowed, path));
            }
        }
        Ok(numbers)
    }

    /// Reads the next header that is no filling; nothing at the archive's end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, LayerError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self
                .inner
                .read(&mut block[filled..])
                .map_err(LayerError::from_reader)?
            {
                0 if filled == 0 => return Ok(None),
                0 => {
                    return Err(LayerError::malformed(
                        "the archive ends in the middle of a header",
                    ));
                }
                count => filled += count,
            }
        }
        if block.iter().all(|&b| b == 0) {
            return Ok(None);
        }
        let stated = numeric(&block[148..156]).ok_or_else(bad_header)?;
        let sum = |as_number: fn(u8) -> i64| -> i64 {
            let counted = |(at, &b): (usize, &u8)| {
                if (148..156).contains(&at) {
                    32
                } else {
                    as_number(b)
                }
            };
            block.iter().enumerate().map(counted).sum()
        };
        let stated = i64::try_from(stated).unwrap_or(-1);
        // Old writers added the bytes up as signed.
        if stated != sum(i64::from) && stated != sum(|b| i64::from(b.cast_signed())) {
            return Err(LayerError::malformed("a header's checksum is wrong"));
        }
        Ok(Some(block))
    }

    /// Reads a long name or an extended header, which is bounded.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, LayerError> {
        let allowed = self.limits.max_extension_bytes;
        if size > allowed {
            return Err(LayerError::limit(
                "max_extension_bytes",
                allowed,
                b"(extension header)",
            ));
        }
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64) - size;
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)
            .map_err(LayerError::from_reader)?;
        Ok(bytes)
    }

    fn pass_over(&mut self) -> Result<(), LayerError> {
        let mut scrap = [0; 8192];
        while self.left > 0 {
            self.read(&mut scrap).map_err(LayerError::from_reader)?;
        }
        while self.padding > 0 {
            let wanted = usize::try_from(self.padding).unwrap_or(BLOCK).min(BLOCK);
            match self
                .inner
                .read(&mut scrap[..wanted])
                .map_err(LayerError::from_reader)?
            {
                // Some writers leave the last filling out.
                0 => self.padding = 0,
                count => self.padding -= count as u64,
            }
        }
        Ok(())
    }
}

/// Reads the present entry's data.
impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.inner.read(&mut buffer[..wanted])?;
        if count == 0 {
            let why = LayerError::malformed("the archive ends in the middle of a file");
            return Err(io::Error::other(why));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn bad_header() -> LayerError {
    LayerError::malformed("a header's number is malformed")
}

fn owner(pax: Option<u64>, field: &[u8]) -> Result<u64, LayerError> {
    match pax {
        Some(id) => Ok(id),
        None => numeric(field).ok_or_else(bad_header),
    }
}

/// Joins the prefix of a ustar header to its name.
fn header_path(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = field(&block[..100]);
    let is_ustar = &block[257..263] == b"ustar\0";
    let mut path = if is_ustar {
        field(&block[345..500])
    } else {
        Vec::new()
    };
    if path.is_empty() {
        return name;
    }
    path.push(b'/');
    path.extend(name);
    path
}

/// Returns a text field up to its end.
fn field(bytes: &[u8]) -> Vec<u8> {
    to_nul(bytes.to_vec())
}

fn to_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|&b| b == 0) {
        bytes.truncate(end);
    }
    bytes
}

/// Reads an octal number, or GNU's big-endian binary form.
fn numeric(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| u64::try_from(value).ok())
}

fn signed(field: &[u8]) -> Option<i64> {
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, &byte) in field.iter().enumerate() {
            let byte = if at == 0 && !negative {
                byte & 0x7f
            } else {
                byte
            };
            value = value.checked_mul(256)? + i128::from(byte);
        }
        return i64::try_from(value).ok();
    }
    let text = field.trim_ascii_start();
    let end = text
        .iter()
        .position(|&b| b == 0 || b == b' ')
        .unwrap_or(text.len());
    let rest_is_empty = text[end..].iter().all(|&b| b == 0 || b == b' ');
    if !rest_is_empty {
        return None;
    }
    text[..end].iter().try_fold(0_i64, |value, &b| match b {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(b - b'0')),
        _ => None,
    })
}
