//! One entry of a directory, as it is stored. A directory is its entries in the order of their names, one after the
//! other; nothing in them depends on the machine, but for the inode numbers by which hard links are told.

use crate::content::Content;
use crate::wire::{Malformed, Reader, put_bytes, put_len, put_num, put_signed};

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File {
        size: u64,
        /// Where data is, as offset and length, where the file has holes; `None` where it has none.
        extents: Option<Vec<(u64, u64)>>,
        /// The data, the extents one after the other.
        content: Content,
    },
    Dir(Content),
    Symlink(Vec<u8>),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
    Socket,
}

/// A name in a directory and everything about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permission bits, with setuid, setgid and sticky.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, u32),
    /// In the order of their names.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The same number means the same file; `None` where it has one name only.
    pub(crate) link: Option<u64>,
}

const LINKED: u8 = 0x10;
const SPARSE: u8 = 0x20;

impl Entry {
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        put_bytes(to, &self.name);
        let mut tag = match &self.kind {
            Kind::File { extents: None, .. } => 1,
            Kind::File { .. } => 1 | SPARSE,
            Kind::Dir(_) => 2,
            Kind::Symlink(_) => 3,
            Kind::CharDevice(..) => 4,
            Kind::BlockDevice(..) => 5,
            Kind::Fifo => 6,
            Kind::Socket => 7,
        };
        if self.link.is_some() {
            tag |= LINKED;
        }
        to.push(tag);
        for number in [self.mode, self.uid, self.gid] {
            put_num(to, number.into());
        }
        put_signed(to, self.mtime.0);
        put_num(to, self.mtime.1.into());
        put_len(to, self.xattrs.len());
        for (name, value) in &self.xattrs {
            put_bytes(to, name);
            put_bytes(to, value);
        }
        if let Some(link) = self.link {
            put_num(to, link);
        }
        match &self.kind {
            Kind::File {
                size,
                extents,
                content,
            } => {
                put_num(to, *size);
                if let Some(extents) = extents {
                    put_len(to, extents.len());
                    let mut end = 0;
                    for (at, len) in extents {
                        put_num(to, at - end);
                        put_num(to, *len);
                        end = at + len;
                    }
                }
                content.encode(to);
            }
            Kind::Dir(content) => content.encode(to),
            Kind::Symlink(target) => put_bytes(to, target),
            Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) => {
                put_num(to, (*major).into());
                put_num(to, (*minor).into());
            }
            Kind::Fifo | Kind::Socket => {}
        }
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let name = from.bytes()?.to_vec();
        let tag = from.byte()?;
        let mode = from.num32()?;
        if mode > 0o7777 {
            return Err(Malformed("a mode with unknown bits"));
        }
        let (uid, gid) = (from.num32()?, from.num32()?);
        let mtime = (from.signed()?, from.num32()?);
        if mtime.1 >= 1_000_000_000 {
            return Err(Malformed("a time beyond its second"));
        }
        let mut xattrs = Vec::new();
        for _ in 0..from.count(2)? {
            xattrs.push((from.bytes()?.to_vec(), from.bytes()?.to_vec()));
        }
        let link = if tag & LINKED == 0 {
            None
        } else {
            Some(from.num()?)
        };
        let kind = match tag & !LINKED {
            1 => Kind::File {
                size: from.num()?,
                extents: None,
                content: Content::decode(from)?,
            },
            0x21 => {
                let size = from.num()?;
                Kind::File {
                    size,
                    extents: Some(extents(from, size)?),
                    content: Content::decode(from)?,
                }
            }
            2 => Kind::Dir(Content::decode(from)?),
            3 => Kind::Symlink(from.bytes()?.to_vec()),
            4 => Kind::CharDevice(from.num32()?, from.num32()?),
            5 => Kind::BlockDevice(from.num32()?, from.num32()?),
            6 => Kind::Fifo,
            7 => Kind::Socket,
            _ => return Err(Malformed("an entry of a kind unknown here")),
        };
        Ok(Self {
            name,
            kind,
            mode,
            uid,
            gid,
            mtime,
            xattrs,
            link,
        })
    }

    /// Says whether the name can be one of a directory's, so that nothing is ever written outside of it.
    pub(crate) fn is_sound(&self) -> bool {
        !matches!(self.name.as_slice(), b"" | b"." | b"..")
            && self.name.len() <= 255
            && !self.name.iter().any(|byte| matches!(byte, 0 | b'/'))
    }

    /// How many bytes of data the content must have.
    pub(crate) fn data_len(&self) -> u64 {
        match &self.kind {
            Kind::File {
                size,
                extents: None,
                ..
            } => *size,
            Kind::File {
                extents: Some(extents),
                ..
            } => extents.iter().map(|(_, len)| len).sum(),
            _ => 0,
        }
    }
}

fn extents(from: &mut Reader<'_>, size: u64) -> Result<Vec<(u64, u64)>, Malformed> {
    let mut end = 0u64;
    let mut all = Vec::new();
    for _ in 0..from.count(2)? {
        let at = end
            .checked_add(from.num()?)
            .ok_or(Malformed("an extent beyond its file"))?;
        let len = from.num()?;
        end = at
            .checked_add(len)
            .filter(|end| *end <= size)
            .ok_or(Malformed("an extent beyond its file"))?;
        all.push((at, len));
    }
    Ok(all)
}

/// Reads a directory's text. Names come in strict order, so that none is there twice.
pub(crate) fn directory(text: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let mut from = Reader(text);
    let mut entries: Vec<Entry> = Vec::new();
    while !from.is_empty() {
        let entry = Entry::decode(&mut from)?;
        if !entry.is_sound() {
            return Err(Malformed("a name that no directory can have"));
        }
        if entries.last().is_some_and(|last| last.name >= entry.name) {
            return Err(Malformed("names out of order"));
        }
        entries.push(entry);
    }
    Ok(entries)
}
