//! Files that are there whole or not at all, also after a crash, and private from their first moment.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// How the name of a file begins that was not finished.
const UNFINISHED: &str = ".unfinished-";

/// Whether a file that is there already is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Replace,
    Keep,
}

/// Makes a directory that its owner alone can use, and those above it.
pub(crate) fn directory(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    dir.parent().map_or(Ok(()), sync)
}

/// Writes a file. On return it is on disk under its name; after a crash in the middle what was there before still is.
///
/// Call it under the directory's lock: what others have not finished is thrown away.
pub(crate) fn write(path: &Path, bytes: &[u8], existing: Existing) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    sweep(dir)?;
    let unfinished: PathBuf = dir.join(format!("{UNFINISHED}{}", name.to_string_lossy()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match existing {
            Existing::Replace => fs::rename(&unfinished, path),
            Existing::Keep => fs::hard_link(&unfinished, path),
        }
    })();
    if written.is_err() || existing == Existing::Keep {
        // What stays is swept by the next one.
        let _left = fs::remove_file(&unfinished);
    }
    written?;
    sync(dir)
}

/// Removes a file. On return it is gone from the disk.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    path.parent().map_or(Ok(()), sync)
}

fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
