//! Effects, counted where no part of the system under test can reach: a FIFO that commands in a sandbox write lines to.
//!
//! The FIFO lies in the harness directory, which every sandbox mounts read-only: writing to a FIFO writes no file system.
//! A line shorter than a page arrives whole or not at all, and whether it arrives depends on no daemon, supervisor or
//! network. Gates are FIFOs the other way: a command that reads one waits until the test lets it go on.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};

use crate::{Res, trouble};

/// Where the directory is in every sandbox.
const INSIDE: &str = "/opt/durable/harness/.test";
const NAME: &str = "effects";

/// The counter of one world.
pub struct Effects {
    dir: PathBuf,
    shared: Arc<(Mutex<Vec<String>>, Condvar)>,
    writer: Mutex<File>,
}

fn lock(lines: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fifo(path: &Path) -> Res<()> {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?;
    // Whatever the umask says: other users of the sandbox write to it too.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(())
}

/// Opens for reading and writing: neither end then waits for the other, and there is no end of file.
fn open(path: &Path) -> Res<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nonblocking)
        .open(path)?;
    rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::empty())?;
    Ok(file)
}

impl Effects {
    /// Makes the counter below a harness directory.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn new(harness_dir: &Path) -> Res<Self> {
        let dir = harness_dir.join(".test");
        std::fs::create_dir_all(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
        let path = dir.join(NAME);
        fifo(&path)?;
        let reader = open(&path)?;
        let writer = Mutex::new(reader.try_clone()?);
        let shared = Arc::<(Mutex<Vec<String>>, Condvar)>::default();
        let ours = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines() {
                let (Ok(line), Some(shared)) = (line, ours.upgrade()) else {
                    return;
                };
                lock(&shared.0).push(line);
                shared.1.notify_all();
            }
        });
        Ok(Self {
            dir,
            shared,
            writer,
        })
    }

    /// Where commands in a sandbox find the FIFO.
    #[must_use]
    pub fn inside(&self) -> String {
        format!("{INSIDE}/{NAME}")
    }

    /// The directory on the host, for files that sandboxes are to see.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a file of [`Self::dir`] is in every sandbox.
    #[must_use]
    pub fn inside_file(&self, name: &str) -> String {
        format!("{INSIDE}/{name}")
    }

    /// Returns every line that begins with `prefix`. What was written before the call is among them.
    ///
    /// # Errors
    /// The counter does not read any more.
    pub fn lines(&self, prefix: &str) -> Res<Vec<String>> {
        // Our own line comes after all that is in the FIFO.
        let mark = format!("mark {:p} {:?}", self, Instant::now());
        {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(format!("{mark}\n").as_bytes())?;
        }
        if !self.wait(&mark, 1, Duration::from_secs(30)) {
            return Err(trouble("the counter of effects does not read"));
        }
        let lines = lock(&self.shared.0);
        let found = lines.iter().filter(|line| line.starts_with(prefix));
        Ok(found.cloned().collect())
    }

    /// Waits until so many lines are exactly `line`.
    #[must_use]
    pub fn wait(&self, line: &str, times: usize, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut lines = lock(&self.shared.0);
        while lines.iter().filter(|l| *l == line).count() < times {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.1.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Forgets what was counted.
    pub fn clear(&self) {
        lock(&self.shared.0).clear();
    }

    /// Makes a gate that is shut.
    ///
    /// # Errors
    /// The file system refuses, or the name was used before.
    pub fn gate(&self, name: &str) -> Res<Gate> {
        let path = self.dir.join(name);
        fifo(&path)?;
        Ok(Gate {
            path,
            inside: format!("{INSIDE}/{name}"),
            open: Mutex::new(None),
        })
    }
}

impl Drop for Effects {
    fn drop(&mut self) {
        // Wakes the reader, which finds nobody left to tell.
        let shared = std::mem::take(&mut self.shared);
        drop(shared);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _woken = writer.write_all(b"end\n");
    }
}

/// Holds a command at `read -r go < GATE` until it is opened.
pub struct Gate {
    path: PathBuf,
    inside: String,
    open: Mutex<Option<File>>,
}

impl Gate {
    /// Where commands find it.
    #[must_use]
    pub fn inside(&self) -> &str {
        &self.inside
    }

    /// Lets whoever waits or comes go on, as long as the gate lives.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn open(&self) -> Res<()> {
        let mut slot = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let mut file = open(&self.path)?;
            // A command that runs twice must be counted, not held.
            file.write_all(&b"go\n".repeat(64))?;
            *slot = Some(file);
        }
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The directory goes with the world.
        let _removed = std::fs::remove_file(&self.path);
    }
}
