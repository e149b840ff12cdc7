//! What a helper that is told to end takes away first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Error;
use crate::sys::EndSignals;

/// How often a directory that is being filled is tried again, and after what time.
const TRIES: u32 = 100;
const AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) enum Left {
    /// Nothing yet, or nothing any more.
    Nothing,
    /// A file or directory of ours that nobody else needs.
    Unfinished(PathBuf),
    /// All is done: what comes now comes too late to end anything.
    Done,
}

/// Signals that end this process wait for whoever holds [`Ending::lock`].
pub(super) struct Ending(Arc<Mutex<Left>>);

impl Ending {
    pub(super) fn watch() -> Result<Self, Error> {
        let signals = EndSignals::block().map_err(|e| Error::Stream("wait for signals", e))?;
        let left = Arc::new(Mutex::new(Left::Nothing));
        let seen = Arc::clone(&left);
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        // Without the thread a signal is only late: the end of the input ends the process as well.
        let _thread = thread.spawn(move || {
            let signal = signals.wait();
            let left = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match &*left {
                Left::Done => return,
                Left::Unfinished(path) => remove(path),
                Left::Nothing => {}
            }
            crate::sys::exit_now(128 + signal);
        });
        Ok(Self(left))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a file, or a directory that may still be filled meanwhile.
pub(super) fn remove(path: &Path) {
    for _ in 0..TRIES {
        let removed = match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                std::thread::sleep(AGAIN);
            }
            _ => return,
        }
    }
}
