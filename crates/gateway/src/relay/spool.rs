//! The file of one answer: `u32 length (LE) | u32 CRC-32 | kind | content`, appended by the relay, read by the daemon.
//!
//! Kind 1 is the head as JSON, 2 a piece of the body behind its `u64` offset (LE), 3 the end as JSON. A reader at the end
//! of the file sees nothing more yet; a record that is cut off there is still being written, or never will be.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use protocol::{ModelOutcome, ModelRequestId};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// The longest piece of a body in one record; it becomes at most one event.
const MAX_PIECE: usize = 64 << 10;
/// The longest record: a head with the longest headers hyper accepts stays below it.
const MAX_RECORD: usize = 1 << 20;
const HEAD: u8 = 1;
const BODY: u8 = 2;
const END: u8 = 3;

/// The upstream's status and the headers that are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// HTTP status.
    pub(crate) status: u16,
    /// Kept headers.
    pub(crate) headers: Vec<(String, String)>,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// The answer began.
    Head(Head),
    /// A piece of its body.
    Body {
        /// Where it starts.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// It ended.
    End(ModelOutcome),
}

/// Returns the file of a request.
pub(crate) fn path(dir: &Path, request: &ModelRequestId) -> PathBuf {
    dir.join(format!("{request}.resp"))
}

/// Returns the requests that have a file in `dir`; none where it is not there.
pub(crate) fn kept(dir: &Path) -> Vec<ModelRequestId> {
    let files = std::fs::read_dir(dir).into_iter().flatten();
    let ids = files.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.strip_suffix(".resp")?.parse().ok()
    });
    ids.collect()
}

/// The only writer of one file.
pub(crate) struct Writer {
    file: File,
    length: u64,
    offset: u64,
}

impl Writer {
    /// Creates the file; it must not be there.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self {
            file,
            length: 0,
            offset: 0,
        })
    }

    pub(crate) fn head(&mut self, head: &Head) -> io::Result<()> {
        self.record(HEAD, &[&serde_json::to_vec(head)?])
    }

    pub(crate) fn body(&mut self, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(MAX_PIECE) {
            self.record(BODY, &[&self.offset.to_le_bytes(), piece])?;
            self.offset += piece.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn end(&mut self, outcome: &ModelOutcome) -> io::Result<()> {
        self.record(END, &[&serde_json::to_vec(outcome)?])
    }

    /// Returns how long the file is.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns how much of a body it holds.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Makes it durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn record(&mut self, kind: u8, content: &[&[u8]]) -> io::Result<()> {
        let length = 1 + content.iter().map(|part| part.len()).sum::<usize>();
        let Some(claimed) = u32::try_from(length).ok().filter(|_| length <= MAX_RECORD) else {
            return Err(io::Error::other("record is too long"));
        };
        let mut record = Vec::with_capacity(8 + length);
        record.extend(claimed.to_le_bytes());
        record.extend([0; 4]);
        record.push(kind);
        for part in content {
            record.extend(*part);
        }
        let crc = crc32fast::hash(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all(&record)?;
        self.length += record.len() as u64;
        Ok(())
    }
}

/// Reads one file from its start, while it grows.
pub(crate) struct Reader {
    file: File,
    at: u64,
    buffer: BytesMut,
}

impl Reader {
    /// Opens the file; `None` where there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        match File::open(path) {
            Ok(file) => Ok(Some(Self {
                file,
                at: 0,
                buffer: BytesMut::new(),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the next record; `None` where the file ends for now.
    pub(crate) fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            let wanted = match self.buffer.first_chunk::<4>() {
                Some(claimed) => {
                    let length = u32::from_le_bytes(*claimed) as usize;
                    if length == 0 || length > MAX_RECORD {
                        return Err(damaged("impossible length"));
                    }
                    8 + length
                }
                None => 8,
            };
            if self.buffer.len() >= wanted && wanted > 8 {
                return take(&mut self.buffer, wanted).map(Some);
            }
            let filled = self.buffer.len();
            self.buffer.resize(filled + wanted.max(64 << 10), 0);
            let read = self.file.read_at(&mut self.buffer[filled..], self.at);
            self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
            let read = read?;
            self.at += read as u64;
            if read == 0 {
                return Ok(None);
            }
        }
    }
}

fn take(buffer: &mut BytesMut, length: usize) -> io::Result<Record> {
    let record = buffer.split_to(length).freeze();
    let crc = u32::from_le_bytes([record[4], record[5], record[6], record[7]]);
    if crc32fast::hash(&record[8..]) != crc {
        return Err(damaged("checksum does not match"));
    }
    let content = record.slice(9..);
    match record[8] {
        HEAD => Ok(Record::Head(serde_json::from_slice(&content)?)),
        END => Ok(Record::End(serde_json::from_slice(&content)?)),
        BODY => {
            let Some(offset) = content.first_chunk::<8>() else {
                return Err(damaged("body without offset"));
            };
            Ok(Record::Body {
                offset: u64::from_le_bytes(*offset),
                data: content.slice(8..),
            })
        }
        _ => Err(damaged("unknown kind")),
    }
}

fn damaged(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<Record> {
        vec![
            Record::Head(Head {
                status: 200,
                headers: vec![("a".into(), "b".into())],
            }),
            Record::Body {
                offset: 0,
                data: Bytes::from_static(b"\0one"),
            },
            Record::Body {
                offset: 4,
                data: Bytes::from_static(b"two"),
            },
            Record::End(ModelOutcome::Complete),
        ]
    }

    fn write(path: &Path) -> u64 {
        let mut writer = Writer::create(path).unwrap();
        for record in records() {
            match record {
                Record::Head(head) => writer.head(&head).unwrap(),
                Record::Body { data, .. } => writer.body(&data).unwrap(),
                Record::End(outcome) => writer.end(&outcome).unwrap(),
            }
        }
        writer.length()
    }

    fn read(path: &Path) -> io::Result<Vec<Record>> {
        let mut reader = Reader::open(path)?.unwrap();
        let mut list = Vec::new();
        while let Some(record) = reader.next()? {
            list.push(record);
        }
        Ok(list)
    }

    #[test]
    fn a_growing_file_is_read_record_by_record() {
        let dir = tempfile::tempdir().unwrap();
        let (whole, part) = (dir.path().join("whole"), dir.path().join("part"));
        let length = write(&whole);
        let bytes = std::fs::read(&whole).unwrap();
        assert_eq!(bytes.len() as u64, length);
        std::fs::write(&part, b"").unwrap();
        let mut reader = Reader::open(&part).unwrap().unwrap();
        let mut got = Vec::new();
        for byte in bytes {
            let mut file = OpenOptions::new().append(true).open(&part).unwrap();
            file.write_all(&[byte]).unwrap();
            while let Some(record) = reader.next().unwrap() {
                got.push(record);
            }
        }
        assert_eq!(got, records());
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn a_long_piece_is_split_and_stays_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut writer = Writer::create(&path).unwrap();
        let data: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        writer.body(&data).unwrap();
        let mut got = Vec::new();
        for record in read(&path).unwrap() {
            let Record::Body { offset, data } = record else {
                panic!("{record:?}")
            };
            assert_eq!(offset, got.len() as u64);
            got.extend(data);
        }
        assert_eq!(got, data);
    }
}
