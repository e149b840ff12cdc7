//! A tree as a tar stream: links as links, nothing held in memory.
//!
//! Pipes, sockets and devices are nothing without what made them and stay out. What is swapped while it is packed is taken
//! as it is found, or refused: no link is followed, and no pipe is waited for.

use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use tar::{Builder, EntryType, Header};

use super::{Error, failed};

/// The pax record that ends an archive which is not whole, with the reason.
pub(crate) const ERROR: &str = "DURABLE.error";
/// The pax record that tells how many special files were left out.
pub(crate) const SKIPPED: &str = "DURABLE.skipped";

/// Writes `path` under its own last name; the root and paths that end in `.` or `..` under `.`.
pub(super) fn write(path: &Path, out: impl Write) -> Result<(), Error> {
    write_as(path, &own_name(path), out).map(drop)
}

fn own_name(path: &Path) -> PathBuf {
    path.file_name().map_or(PathBuf::from("."), PathBuf::from)
}

/// Writes `path` as `name`; returns how many special files were left out.
pub(super) fn write_as(path: &Path, name: &Path, out: impl Write) -> Result<u64, Error> {
    let mut builder = Builder::new(out);
    let skipped = pack(&mut builder, path, name.to_owned())?;
    finish(builder)?;
    Ok(skipped)
}

/// Writes as [`write`] does. What was left out and what went wrong stands in a record at the archive's end that other
/// programs pass over; after one that tells of a failure comes a block which none takes for a whole archive's end.
pub(super) fn write_marked(path: &Path, out: impl Write) -> Result<(), Error> {
    let mut builder = Builder::new(out);
    match pack(&mut builder, path, own_name(path)) {
        Ok(0) => {}
        Ok(skipped) => mark(&mut builder, SKIPPED, &skipped.to_string())?,
        Err(error) => {
            let mut words = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                words = format!("{words}: {cause}");
            }
            mark(&mut builder, ERROR, &words)?;
            let no_header = [b'!'; 512];
            let written = builder.get_mut().write_all(&no_header);
            written.map_err(|e| Error::Stream("write the archive", e))?;
        }
    }
    finish(builder)
}

fn finish(builder: Builder<impl Write>) -> Result<(), Error> {
    let broken = |e| Error::Stream("write the archive", e);
    builder
        .into_inner()
        .map_err(broken)?
        .flush()
        .map_err(broken)
}

/// Writes a global pax header: an entry of no file.
fn mark(builder: &mut Builder<impl Write>, key: &str, value: &str) -> Result<(), Error> {
    let rest = format!(" {key}={value}\n");
    // The length counts itself.
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    let record = format!("{length}{rest}");
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::XGlobalHeader);
    header.set_size(record.len() as u64);
    header.set_mode(0o644);
    let marked = header.set_path("durable").and_then(|()| {
        header.set_cksum();
        builder.append(&header, record.as_bytes())
    });
    marked.map_err(|e| Error::Stream("write the archive", e))
}

fn pack(builder: &mut Builder<impl Write>, path: &Path, name: PathBuf) -> Result<u64, Error> {
    let mut damage = None;
    let mut skipped = 0;
    // Not by recursion: a tree may be deeper than a stack.
    let mut left = vec![(path.to_owned(), name)];
    while let Some((path, name)) = left.pop() {
        let meta = fs::symlink_metadata(&path).map_err(failed("read", &path))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            put(builder, &meta, EntryType::Directory, &name, 0, io::empty())?;
            for entry in fs::read_dir(&path).map_err(failed("list", &path))? {
                let entry = entry.map_err(failed("list", &path))?;
                left.push((entry.path(), name.join(entry.file_name())));
            }
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(failed("read link", &path))?;
            let mut header = header(&meta, EntryType::Symlink, 0);
            builder
                .append_link(&mut header, &name, &target)
                .map_err(failed("pack", &path))?;
        } else if kind.is_file() {
            damage = damage.or(put_file(builder, &path, &name)?);
        } else {
            skipped += 1;
        }
    }
    damage.map_or(Ok(skipped), Err)
}

fn header(meta: &Metadata, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_metadata(meta);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    header
}

fn put(
    builder: &mut Builder<impl Write>,
    meta: &Metadata,
    kind: EntryType,
    name: &Path,
    size: u64,
    data: impl Read,
) -> Result<(), Error> {
    let mut header = header(meta, kind, size);
    builder
        .append_data(&mut header, name, data)
        .map_err(failed("pack", name))
}

/// Packs a file with the size it has now; returns what is wrong with what was packed.
fn put_file(
    builder: &mut Builder<impl Write>,
    path: &Path,
    name: &Path,
) -> Result<Option<Error>, Error> {
    let file = open(path).map_err(failed("open", path))?;
    let meta = file.metadata().map_err(failed("read", path))?;
    if !meta.is_file() {
        return Err(Error::Changed(path.to_owned()));
    }
    let mut exact = Exact {
        file,
        left: meta.len(),
        damage: None,
    };
    put(
        builder,
        &meta,
        EntryType::Regular,
        name,
        meta.len(),
        &mut exact,
    )?;
    Ok(exact.damage.map(|damage| match damage {
        Damage::Short => Error::Changed(path.to_owned()),
        Damage::Unreadable(error) => failed("read", path)(error),
    }))
}

/// What was a file a moment ago may be a pipe or a link by now.
fn open(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let fd = rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?;
    Ok(fd.into())
}

enum Damage {
    Short,
    Unreadable(io::Error),
}

/// Gives exactly as many bytes as the header promised, or everything behind it in the archive would be garbage.
struct Exact {
    file: File,
    left: u64,
    damage: Option<Damage>,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..most];
        let mut length = 0;
        if self.damage.is_none() && most > 0 {
            match self.file.read(buffer) {
                Ok(0) => self.damage = Some(Damage::Short),
                Ok(read) => length = read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
                Err(error) => self.damage = Some(Damage::Unreadable(error)),
            }
        }
        if length == 0 {
            buffer.fill(0);
            length = most;
        }
        self.left -= length as u64;
        Ok(length)
    }
}
