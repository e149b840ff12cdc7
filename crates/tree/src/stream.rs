//! The actions of a merge as one tar stream, for an extractor that knows nothing of merges.
//!
//! First come deletions, the deepest first: an empty regular file each, with the pax record `DURABLE.delete=1`. Then
//! directories, files, links and devices from the top down, with attributes as `SCHILY.xattr.` records. Names of more than
//! 100 bytes, or not of ASCII, are `path` and `linkpath` records, byte for byte. Sockets have no place in a tar and are
//! left out: they mean nothing without the process that listens.
//!
//! The record `DURABLE.was` of an entry says what ours has at its path: `absent`, `d` for a directory, else a letter, the
//! mode in octal, the size and the time of the last write. The last entry of all is a global header, `DURABLE.end=1`:
//! without it the stream was cut off.

use std::collections::HashMap;
use std::io::{self, Read, Write};

use tar::{Builder, EntryType, Header};

use crate::merge::{Action, Content, Merge, Sides};
use crate::view::Open;
use crate::{Entry, Error, Kind, Layer, Result};

/// How ids are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// Taken from every user id that is at least as large: where the sandbox's ids begin on this machine.
    pub uid_offset: u32,
    /// The same for groups.
    pub gid_offset: u32,
}

/// Writes what is to be done. The views are those of the merge, unchanged.
///
/// # Errors
/// [`Error::Output`] where `out` refuses; [`Error::Unexpected`] where a file is not as long as the merge saw it, else what
/// the kernel says. What was written until then is no whole tar.
pub fn write_actions(
    merge: &Merge,
    sides: Sides<'_>,
    options: StreamOptions,
    out: &mut impl Write,
) -> Result<()> {
    let mut writer = Writer {
        merge,
        sides,
        ours: sides.ours.open()?,
        theirs: sides.theirs.open()?,
        options,
        first_names: HashMap::new(),
        tar: Builder::new(out),
    };
    for action in &merge.actions {
        writer.action(action)?;
    }
    let mut records = Records::default();
    records.push(b"DURABLE.end", b"1");
    writer.records(&records, EntryType::XGlobalHeader)?;
    writer.tar.finish().map_err(Error::Output)
}

struct Writer<'a, W: Write> {
    merge: &'a Merge,
    sides: Sides<'a>,
    ours: Open,
    theirs: Open,
    options: StreamOptions,
    /// Under which name a file of several was written.
    first_names: HashMap<(Layer, u64, u64), Vec<u8>>,
    tar: Builder<W>,
}

impl<W: Write> Writer<'_, W> {
    fn action(&mut self, action: &Action) -> Result<()> {
        match action {
            Action::Delete { path } => {
                let mut header = Header::new_ustar();
                header.set_entry_type(EntryType::Regular);
                header.set_mode(0o644);
                let mut records = Records::default();
                records.push(b"DURABLE.delete", b"1");
                self.append(header, records, path, io::empty(), 0)
            }
            Action::MakeDir { path, entry } => {
                let path = if path.is_empty() {
                    b"."
                } else {
                    path.as_slice()
                };
                let path = [path, b"/"].concat();
                let (header, records) = self.header(entry, EntryType::Directory);
                self.append(header, records, &path, io::empty(), 0)
            }
            Action::Put {
                path,
                entry,
                content,
            } => self.put(path, entry, *content),
        }
    }

    fn put(&mut self, path: &[u8], entry: &Entry, content: Content) -> Result<()> {
        let entry_type = match entry.kind {
            Kind::File => return self.file(path, entry, content),
            Kind::Symlink => EntryType::Symlink,
            Kind::Fifo => EntryType::Fifo,
            Kind::CharDevice => EntryType::Char,
            Kind::BlockDevice => EntryType::Block,
            Kind::Socket | Kind::Dir => return Ok(()),
        };
        let (mut header, mut records) = self.header(entry, entry_type);
        match entry.kind {
            Kind::Symlink => link(&mut header, &mut records, &entry.target),
            Kind::CharDevice | Kind::BlockDevice => {
                let io = |e| Error::io("write", path)(e);
                header
                    .set_device_major(rustix::fs::major(entry.rdev))
                    .map_err(io)?;
                header
                    .set_device_minor(rustix::fs::minor(entry.rdev))
                    .map_err(io)?;
            }
            _ => {}
        }
        self.append(header, records, path, io::empty(), 0)
    }

    fn file(&mut self, path: &[u8], entry: &Entry, content: Content) -> Result<()> {
        let (mut header, mut records) = self.header(entry, EntryType::Regular);
        if content == Content::Theirs && entry.nlink > 1 {
            let inode = (entry.layer, entry.dev, entry.ino);
            if let Some(first) = self.first_names.get(&inode) {
                header.set_entry_type(EntryType::Link);
                link(&mut header, &mut records, first);
                return self.append(header, records, path, io::empty(), 0);
            }
            self.first_names.insert(inode, path.to_vec());
        }
        match content {
            Content::Theirs => {
                let file = self.theirs.content(path, entry)?;
                self.append(header, records, path, file, entry.size)
            }
            Content::Ours => {
                let file = self.ours.content(path, entry)?;
                self.append(header, records, path, file, entry.size)
            }
            Content::Merged => {
                let text = self.merge.merged(path, self.sides)?;
                self.append(header, records, path, text.as_slice(), text.len() as u64)
            }
            Content::Nothing => Ok(()),
        }
    }

    fn header(&self, entry: &Entry, entry_type: EntryType) -> (Header, Records) {
        let shifted = |id: u32, offset: u32| u64::from(id.checked_sub(offset).unwrap_or(id));
        let mut header = Header::new_ustar();
        let mut records = Records::default();
        header.set_entry_type(entry_type);
        header.set_mode(entry.mode);
        header.set_uid(shifted(entry.uid, self.options.uid_offset));
        header.set_gid(shifted(entry.gid, self.options.gid_offset));
        header.set_mtime(u64::try_from(entry.mtime.sec).unwrap_or(0));
        if entry.mtime.nsec != 0 || entry.mtime.sec < 0 {
            records.push(b"mtime", decimal(entry.mtime).as_bytes());
        }
        for (name, value) in &entry.xattrs {
            records.push(&[b"SCHILY.xattr.", name.as_slice()].concat(), value);
        }
        (header, records)
    }

    fn records(&mut self, records: &Records, entry_type: EntryType) -> Result<()> {
        let mut before = Header::new_ustar();
        before.set_entry_type(entry_type);
        before.set_mode(0o644);
        before.set_size(records.0.len() as u64);
        before.as_old_mut().name[..9].copy_from_slice(b"PaxHeader");
        before.set_cksum();
        self.tar
            .append(&before, records.0.as_slice())
            .map_err(Error::Output)
    }

    /// Writes one entry with the records before it.
    fn append(
        &mut self,
        mut header: Header,
        mut records: Records,
        path: &[u8],
        content: impl Read,
        size: u64,
    ) -> Result<()> {
        let at = path.strip_suffix(b"/").unwrap_or(path);
        let at = if at == b"." { b"" } else { at };
        records.push(b"DURABLE.was", was(self.ours.lookup(at)?).as_bytes());
        if fits(path) {
            header.as_old_mut().name[..path.len()].copy_from_slice(path);
        } else {
            records.push(b"path", path);
        }
        self.records(&records, EntryType::XHeader)?;
        header.set_size(size);
        header.set_cksum();
        let mut content = Counted {
            from: content.take(size),
            len: 0,
            failed: None,
        };
        let appended = self.tar.append(&header, &mut content);
        if let Some(source) = content.failed {
            return Err(Error::io("read", path)(source));
        }
        appended.map_err(Error::Output)?;
        if content.len != size {
            return Err(Error::Unexpected {
                path: path.to_vec(),
                expected: "as long as it was when compared",
            });
        }
        Ok(())
    }
}

/// What is expected at a path by whoever applies the stream.
fn was(entry: Option<Entry>) -> String {
    let Some(entry) = entry else {
        return "absent".to_owned();
    };
    let letter = match entry.kind {
        // Its time tells of what is in it, and that is told for itself.
        Kind::Dir => return "d".to_owned(),
        Kind::File => 'f',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharDevice => 'c',
        Kind::BlockDevice => 'b',
    };
    let (mode, size, time) = (entry.mode, entry.size, entry.mtime);
    format!("{letter} {mode:o} {size} {}.{:09}", time.sec, time.nsec)
}

/// Whether a name can stand in a header as it is.
fn fits(name: &[u8]) -> bool {
    name.len() <= 100 && name.is_ascii()
}

fn link(header: &mut Header, records: &mut Records, target: &[u8]) {
    if fits(target) {
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    } else {
        records.push(b"linkpath", target);
    }
}

/// Seconds with a fraction. Before 1970 the fraction counts away from zero, as the decimal number does.
fn decimal(time: crate::Time) -> String {
    if time.sec >= 0 || time.nsec == 0 {
        return format!("{}.{:09}", time.sec, time.nsec);
    }
    format!("-{}.{:09}", -(time.sec + 1), 1_000_000_000 - time.nsec)
}

/// The records of a pax header, each led by its own length.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while rest + len.to_string().len() != len {
            len = rest + len.to_string().len();
        }
        self.0.extend(format!("{len} ").into_bytes());
        self.0.extend([key, b"=", value, b"\n"].concat());
    }
}

/// Counts what is read, and keeps a failure apart from those of the output.
struct Counted<R> {
    from: R,
    len: u64,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.from.read(buffer) {
            Ok(len) => {
                self.len += len as u64;
                Ok(len)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let kind = e.kind();
                self.failed = Some(e);
                Err(kind.into())
            }
        }
    }
}
