//! What a head looked like when it was cut or made: a file beside the copy.
//!
//! ```text
//! "DWMANIF1"  number u64  id u64                     how many cuts came before in this head; a random name
//! origin: kind u8 [workspace, cut: text · id u64]    where the content lies
//! top: count u32, (name, value: text)…               extended attributes of the root
//! entries: count u32, (path: text · 12 numbers)…     sorted by path
//! crc32 u32                                          of everything before
//! ```
//! Numbers are little-endian, a text is a u32 length and its bytes. A manifest that cannot be read is no error: its head
//! counts as changed, and the next cut copies everything.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use protocol::{CutId, WorkspaceId};

use super::tree::{Entry, Stamp};
use crate::xattr::Xattrs;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"DWMANIF1";

/// Where the content that a manifest describes can be found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Origin {
    /// Nowhere: there was none.
    #[default]
    Empty,
    /// In `up`, beside the manifest.
    Beside,
    /// In the cut that the head was restored from, if the cut of that name still has this id.
    Restored {
        workspace: WorkspaceId,
        cut: CutId,
        id: u64,
    },
}

/// See the head of this file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Manifest {
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) origin: Origin,
    pub(super) top: Xattrs,
    pub(super) entries: Vec<Entry>,
}

impl Manifest {
    /// Reads how many cuts came before, without the rest.
    pub(super) fn number_of(path: &Path) -> Option<u64> {
        head(path).map(|(number, _)| number)
    }

    /// Reads the random name, without the rest.
    pub(super) fn id_of(path: &Path) -> Option<u64> {
        head(path).map(|(_, id)| id)
    }

    /// Reads all of it. None: it is not there, or damaged.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let bytes = match fs::read(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(Error::io("read", path))?,
        };
        let read = decode(&bytes);
        if read.is_none() {
            tracing::warn!(path = %path.display(), "a manifest is damaged; the next cut copies everything");
        }
        Ok(read)
    }

    /// Writes it so that a reader finds the old one or this. Not on disk before the file system is synced.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let half = path.with_extension("new");
        let io = |e| Error::io("write", &half)(e);
        File::create(&half)
            .and_then(|mut file| file.write_all(&self.encode()))
            .map_err(io)?;
        fs::rename(&half, path).map_err(Error::io("write", path))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, self.number);
        put(&mut out, self.id);
        match &self.origin {
            Origin::Empty => out.push(0),
            Origin::Beside => out.push(1),
            Origin::Restored { workspace, cut, id } => {
                out.push(2);
                text(&mut out, workspace.as_str().as_bytes());
                text(&mut out, cut.as_str().as_bytes());
                put(&mut out, *id);
            }
        }
        count(&mut out, self.top.len());
        for (name, value) in &self.top {
            text(&mut out, name);
            text(&mut out, value);
        }
        count(&mut out, self.entries.len());
        for entry in &self.entries {
            text(&mut out, entry.path.as_bytes());
            for number in [
                entry.ino,
                u64::from(entry.mode),
                u64::from(entry.uid),
                u64::from(entry.gid),
                entry.nlink,
                entry.size,
                entry.rdev,
                entry.mtime.sec.cast_unsigned(),
                entry.mtime.nsec.cast_unsigned(),
                entry.ctime.sec.cast_unsigned(),
                entry.ctime.nsec.cast_unsigned(),
                u64::from(entry.racy),
            ] {
                put(&mut out, number);
            }
        }
        let crc = crc32fast::hash(&out);
        out.extend(crc.to_le_bytes());
        out
    }
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

/// Four thousand million files or attributes are more than memory holds; what is cut off here fails the CRC's reader.
fn count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    count(out, bytes.len());
    out.extend(bytes);
}

fn head(path: &Path) -> Option<(u64, u64)> {
    let mut bytes = [0; 24];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .ok()?;
    let mut rest = bytes.strip_prefix(MAGIC)?;
    Some((number(&mut rest)?, number(&mut rest)?))
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let rest = &mut rest;
    let mut manifest = Manifest {
        number: number(rest)?,
        id: number(rest)?,
        ..Manifest::default()
    };
    let (kind, after) = rest.split_first()?;
    *rest = after;
    manifest.origin = match kind {
        0 => Origin::Empty,
        1 => Origin::Beside,
        2 => Origin::Restored {
            workspace: std::str::from_utf8(bytes_of(rest)?).ok()?.parse().ok()?,
            cut: std::str::from_utf8(bytes_of(rest)?).ok()?.parse().ok()?,
            id: number(rest)?,
        },
        _ => return None,
    };
    for _ in 0..small(rest)? {
        let name = bytes_of(rest)?.to_vec();
        manifest.top.insert(name, bytes_of(rest)?.to_vec());
    }
    for _ in 0..small(rest)? {
        manifest.entries.push(entry(rest)?);
    }
    rest.is_empty().then_some(manifest)
}

fn entry(rest: &mut &[u8]) -> Option<Entry> {
    Some(Entry {
        path: OsString::from_vec(bytes_of(rest)?.to_vec()),
        ino: number(rest)?,
        mode: u32::try_from(number(rest)?).ok()?,
        uid: u32::try_from(number(rest)?).ok()?,
        gid: u32::try_from(number(rest)?).ok()?,
        nlink: number(rest)?,
        size: number(rest)?,
        rdev: number(rest)?,
        mtime: stamp(rest)?,
        ctime: stamp(rest)?,
        racy: number(rest)? != 0,
    })
}

fn stamp(rest: &mut &[u8]) -> Option<Stamp> {
    Some(Stamp {
        sec: number(rest)?.cast_signed(),
        nsec: number(rest)?.cast_signed(),
    })
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u64::from_le_bytes(*number))
}

fn small(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_le_bytes(*number))
}

fn bytes_of<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(small(rest)?).ok()?;
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let entry = Entry {
            path: OsString::from_vec(b"odd \xff\n name".to_vec()),
            ino: 7,
            mode: 0o100_644,
            uid: 5,
            gid: 6,
            nlink: 2,
            size: 1 << 40,
            rdev: 3,
            mtime: Stamp {
                sec: -1,
                nsec: 999_999_999,
            },
            ctime: Stamp {
                sec: 1 << 33,
                nsec: 1,
            },
            racy: true,
        };
        Manifest {
            number: 3,
            id: u64::MAX,
            origin: Origin::Restored {
                workspace: "w-1".parse().unwrap(),
                cut: "c1".parse().unwrap(),
                id: 9,
            },
            top: Xattrs::from([(b"user.a".to_vec(), b"\0".to_vec())]),
            entries: vec![entry],
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was() {
        assert_eq!(decode(&sample().encode()), Some(sample()));
    }

    #[test]
    fn a_damaged_manifest_is_no_manifest() {
        let whole = sample().encode();
        for at in 0..whole.len() {
            assert_eq!(decode(&whole[..at]), None, "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            assert_eq!(decode(&flipped), None, "flipped at {at}");
        }
    }
}
