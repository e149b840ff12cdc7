//! One file, whole: read to stdout, or replaced by stdin in one step.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Error, failed, stale};

const NEW_MODE: u32 = 0o644;

pub(super) fn read(path: &Path, out: &mut impl Write) -> Result<(), Error> {
    let mut file = File::open(path).map_err(failed("open", path))?;
    let meta = file.metadata().map_err(failed("read", path))?;
    if meta.is_dir() {
        return Err(failed("read", path)(io::ErrorKind::IsADirectory.into()));
    }
    let mut buffer = vec![0; 256 << 10];
    loop {
        let length = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed("read", path)(error)),
        };
        out.write_all(&buffer[..length])
            .map_err(|e| Error::Stream("write the output", e))?;
    }
    out.flush()
        .map_err(|e| Error::Stream("write the output", e))
}

/// Replaces `path`: whoever reads it meanwhile sees all of the old or all of the new. A link is followed to what it names.
pub(super) fn write(path: &Path, mode: Option<u32>, input: &mut impl Read) -> Result<(), Error> {
    let path = &target(path);
    if path.is_dir() {
        return Err(failed("write", path)(io::ErrorKind::IsADirectory.into()));
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    fs::create_dir_all(dir).map_err(failed("create directory", dir))?;
    let old = fs::metadata(path).map(|meta| meta.permissions().mode() & 0o7777);
    let mode = mode.unwrap_or_else(|| old.unwrap_or(NEW_MODE));
    let dir_file = File::open(dir).map_err(failed("open directory", dir))?;
    stale::remove(&dir_file);
    let temporary = Temporary::new(path)?;
    temporary.fill(mode, input)?;
    fs::rename(&temporary.path, path).map_err(failed("replace", path))?;
    dir_file.sync_all().map_err(failed("sync directory", dir))
}

fn target(path: &Path) -> PathBuf {
    if path.is_symlink() {
        fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    } else {
        path.to_owned()
    }
}

/// A file beside the one to be replaced; gone again unless it was renamed.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn new(path: &Path) -> Result<Self, Error> {
        let name = stale::beside(path.file_name().unwrap_or_default().as_bytes());
        let path = path.with_file_name(OsString::from_vec(name));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("create", &path))?;
        Ok(Self { path, file })
    }

    fn fill(&self, mode: u32, input: &mut impl Read) -> Result<(), Error> {
        let mut file = &self.file;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let length = match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::Stream("read the input", error)),
            };
            file.write_all(&buffer[..length])
                .map_err(failed("write", &self.path))?;
        }
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(failed("set the mode of", &self.path))?;
        file.sync_all().map_err(failed("sync", &self.path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _gone: io::Result<()> = fs::remove_file(&self.path);
    }
}
