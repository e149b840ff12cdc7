//! Reading an operation's output from the supervisor's spool, as far as it is known to reach.
//!
//! The daemon reads the files itself; the supervisor only says how long they are. A file that is missing is an empty stream.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use protocol::{OpId, Stream};

/// One stream of one run, opened when its first byte is wanted.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<File>,
}

impl Reader {
    /// Names the stream; opens nothing yet.
    #[must_use]
    pub fn new(state_dir: &Path, op: &OpId, attempt: u32, stream: Stream) -> Self {
        Self {
            path: state_dir.join(protocol::paths::spool_file(op, attempt, stream)),
            file: None,
        }
    }

    /// Reads at most `max` bytes at `offset`; fewer where the file ends before.
    ///
    /// # Errors
    /// What the file system says; a missing file is no error.
    pub fn read(&mut self, offset: u64, max: usize) -> io::Result<Vec<u8>> {
        let Some(file) = self.file()? else {
            return Ok(Vec::new());
        };
        let mut out = vec![0; max];
        let mut filled = 0;
        while filled < max {
            match file.read_at(&mut out[filled..], offset + filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        out.truncate(filled);
        Ok(out)
    }

    /// Returns the open file, where there is one.
    ///
    /// # Errors
    /// What the file system says; a missing file is no error.
    pub fn file(&mut self) -> io::Result<Option<&File>> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.file.as_ref())
    }
}

/// Returns the length of one stream's file, 0 where there is none.
#[must_use]
pub fn length(state_dir: &Path, op: &OpId, attempt: u32, stream: Stream) -> u64 {
    let path = state_dir.join(protocol::paths::spool_file(op, attempt, stream));
    std::fs::metadata(path).map_or(0, |m| m.len())
}
