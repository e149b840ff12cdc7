//! The records of a pax extended header, and the maps of sparse files.

use std::io::Read;

use super::error::LayerError;

/// What one entry's extended header says. What it does not name stays as the plain header has it.
#[derive(Default)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<(i64, u32)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) sparse: PaxSparse,
}

/// GNU tar has three ways to put a sparse file into a pax archive.
#[derive(Default)]
pub(crate) struct PaxSparse {
    /// Where the map is: 1.0 puts it before the data.
    pub(crate) major: Option<u64>,
    pub(crate) real_size: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    /// The numbers of 0.0 and 0.1: offset, length, offset, length.
    pub(crate) numbers: Vec<u64>,
}

/// Where the data of a sparse file goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseMap {
    pub(crate) segments: Vec<(u64, u64)>,
    pub(crate) real_size: u64,
}

impl Pax {
    /// Reads `<length> <key>=<value>\n` again and again.
    pub(crate) fn parse(mut bytes: &[u8], max_segments: usize) -> Result<Self, LayerError> {
        let bad = || LayerError::malformed("a pax header's record is malformed");
        let mut pax = Self::default();
        while !bytes.is_empty() {
            let space = bytes
                .iter()
                .take(20)
                .position(|&b| b == b' ')
                .ok_or_else(bad)?;
            let length =
                usize::try_from(number(&bytes[..space]).ok_or_else(bad)?).map_err(|_| bad())?;
            if length <= space + 1 || length > bytes.len() || bytes[length - 1] != b'\n' {
                return Err(bad());
            }
            let record = &bytes[space + 1..length - 1];
            bytes = &bytes[length..];
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(bad)?;
            pax.take(&record[..equals], &record[equals + 1..], max_segments)
                .ok_or_else(bad)??;
        }
        Ok(pax)
    }

    /// Returns nothing for a value that is malformed. An empty value takes the record back, says POSIX.
    fn take(
        &mut self,
        key: &[u8],
        value: &[u8],
        max_segments: usize,
    ) -> Option<Result<(), LayerError>> {
        let text = || Some(value.to_vec()).filter(|v| !v.is_empty());
        let whole = || {
            if value.is_empty() {
                Some(None)
            } else {
                number(value).map(Some)
            }
        };
        match key {
            b"path" => self.path = text(),
            b"linkpath" => self.link = text(),
            b"size" => self.size = whole()?,
            b"uid" => self.uid = whole()?,
            b"gid" => self.gid = whole()?,
            b"mtime" if value.is_empty() => self.mtime = None,
            b"mtime" => self.mtime = Some(time(value)?),
            b"GNU.sparse.major" => self.sparse.major = whole()?,
            b"GNU.sparse.name" => self.sparse.name = text(),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.real_size = whole()?,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.numbers.push(number(value)?);
            }
            b"GNU.sparse.map" => {
                for part in value.split(|&b| b == b',') {
                    self.sparse.numbers.push(number(part)?);
                }
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        if self.sparse.numbers.len() > 2 * max_segments {
            let allowed = max_segments as u64;
            return Some(Err(LayerError::limit(
                "max_sparse_segments",
                allowed,
                b"(pax header)",
            )));
        }
        Some(Ok(()))
    }
}

impl SparseMap {
    /// Takes a map whose segments ascend, do not overlap, lie within the file and hold exactly `data` bytes.
    pub(crate) fn checked(numbers: &[u64], real_size: u64, data: u64) -> Result<Self, LayerError> {
        let bad = || LayerError::malformed("a sparse file's map is malformed");
        if !numbers.len().is_multiple_of(2) {
            return Err(bad());
        }
        let mut segments = Vec::with_capacity(numbers.len() / 2);
        let (mut end, mut total) = (0_u64, 0_u64);
        for pair in numbers.chunks_exact(2) {
            let (offset, length) = (pair[0], pair[1]);
            if offset < end {
                return Err(bad());
            }
            end = offset.checked_add(length).ok_or_else(bad)?;
            total = total.checked_add(length).ok_or_else(bad)?;
            if length > 0 {
                segments.push((offset, length));
            }
        }
        if end > real_size || total != data {
            return Err(bad());
        }
        Ok(Self {
            segments,
            real_size,
        })
    }
}

/// Reads the map of a 1.0 sparse file: decimal numbers, one a line, filled up to a whole block. Returns also its length.
pub(crate) fn map_before_data(
    mut reader: impl Read,
    max_segments: usize,
) -> Result<(Vec<u64>, u64), LayerError> {
    let bad = || LayerError::malformed("a sparse file's map is malformed");
    let (mut numbers, mut wanted, mut taken) = (Vec::new(), None, 0_u64);
    let mut digits: Vec<u8> = Vec::new();
    let mut block = [0; 512];
    loop {
        reader
            .read_exact(&mut block)
            .map_err(LayerError::from_reader)?;
        taken += 512;
        for &byte in &block {
            if byte != b'\n' {
                digits.push(byte);
                if digits.len() > 20 {
                    return Err(bad());
                }
                continue;
            }
            let value = number(&digits).ok_or_else(bad)?;
            digits.clear();
            match wanted {
                None if value > max_segments as u64 => {
                    let allowed = max_segments as u64;
                    return Err(LayerError::limit(
                        "max_sparse_segments",
                        allowed,
                        b"(sparse map)",
                    ));
                }
                None => wanted = Some(value * 2),
                Some(_) => numbers.push(value),
            }
            if wanted == Some(numbers.len() as u64) {
                return Ok((numbers, taken));
            }
        }
    }
}

/// Reads an unsigned decimal number; nothing else may stand there.
fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Reads seconds with a fraction, before or after 1970.
fn time(bytes: &[u8]) -> Option<(i64, u32)> {
    let (negative, bytes) = match bytes.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, bytes),
    };
    let mut parts = bytes.splitn(2, |&b| b == b'.');
    let seconds = i64::try_from(number(parts.next()?)?).ok()?;
    let mut nanos = 0_u32;
    if let Some(fraction) = parts.next().filter(|f| !f.is_empty()) {
        number(&fraction[..fraction.len().min(9)])?;
        for place in 0..9 {
            let digit = fraction.get(place).map_or(0, |b| u32::from(b - b'0'));
            nanos = nanos * 10 + digit;
        }
    }
    match (negative, nanos) {
        (false, _) => Some((seconds, nanos)),
        (true, 0) => Some((-seconds, 0)),
        (true, _) => Some((-seconds - 1, 1_000_000_000 - nanos)),
    }
}
