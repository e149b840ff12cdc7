//! A tree as a tar stream: links as links, nothing held in memory.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use super::{Error, failed};

/// Writes `path` under its own last name; the root and paths that end in `.` or `..` under `.`.
pub(super) fn write(path: &Path, out: impl Write) -> Result<(), Error> {
    let name = path.file_name().map_or(PathBuf::from("."), PathBuf::from);
    let mut builder = Builder::new(out);
    let mut changed = None;
    // Not by recursion: a tree may be deeper than a stack.
    let mut left = vec![(path.to_owned(), name)];
    while let Some((path, name)) = left.pop() {
        let meta = fs::symlink_metadata(&path).map_err(failed("read", &path))?;
        let kind = meta.file_type();
        if kind.is_dir() {
            put(
                &mut builder,
                &meta,
                EntryType::Directory,
                &name,
                0,
                io::empty(),
            )?;
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
            changed = changed.or(put_file(&mut builder, &meta, &path, &name)?);
        } else if kind.is_fifo() {
            put(&mut builder, &meta, EntryType::Fifo, &name, 0, io::empty())?;
        }
        // Sockets and devices are nothing without what made them.
    }
    let mut out = builder
        .into_inner()
        .map_err(|e| Error::Stream("write the archive", e))?;
    out.flush()
        .map_err(|e| Error::Stream("write the archive", e))?;
    changed.map_or(Ok(()), |path| Err(Error::Changed(path)))
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

/// Packs a file with the size it has now; returns its path if it turned out shorter.
fn put_file(
    builder: &mut Builder<impl Write>,
    meta: &Metadata,
    path: &Path,
    name: &Path,
) -> Result<Option<PathBuf>, Error> {
    let file = File::open(path).map_err(failed("open", path))?;
    let mut exact = Exact {
        file,
        left: meta.len(),
        short: false,
    };
    put(
        builder,
        meta,
        EntryType::Regular,
        name,
        meta.len(),
        &mut exact,
    )?;
    Ok(exact.short.then(|| path.to_owned()))
}

/// Gives exactly as many bytes as the header promised, or everything behind it in the archive would be garbage.
struct Exact {
    file: File,
    left: u64,
    short: bool,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..most];
        let mut length = if self.short {
            0
        } else {
            self.file.read(buffer)?
        };
        if length == 0 && most > 0 {
            self.short = true;
            buffer.fill(0);
            length = most;
        }
        self.left -= length as u64;
        Ok(length)
    }
}
