//! A store that is a directory: an object is a file, written beside its place as `NAME#NUMBER`, synced, and put there in one
//! step, so that nobody sees half of one.
//!
//! What a power cut may leave is the caller's to say, because each sync waits for the disk: an object's content is always
//! on disk before its name shows; the name is when its directory was [synced](Directory::sync). Names that were put there
//! by another process count too: syncing a directory syncs whatever it shows.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::backend::Listed;

/// Numbers that are tried for a name beside an object's.
const TRIES: usize = 16;

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    top: PathBuf,
}

/// An object beside its place; removed if it does not get there.
#[derive(Debug)]
pub(crate) struct Staged {
    beside: PathBuf,
    at: PathBuf,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone already where it was renamed. What stays goes with a collection.
        let _gone = fs::remove_file(&self.beside);
    }
}

impl Directory {
    /// Takes the directory at a path, which is made where there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self {
            top: path.canonicalize()?,
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    /// Reads an object; `None` if there is none.
    pub(crate) fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        found(fs::read(self.at(name)))
    }

    /// Reads a part of one; fewer bytes if it ends before.
    pub(crate) fn get_range(&self, name: &str, from: u64, len: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = found(File::open(self.at(name)))? else {
            return Ok(None);
        };
        let there = file.metadata()?.len().saturating_sub(from).min(len);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, from)?;
        Ok(Some(bytes))
    }

    /// Writes an object beside its place, durably.
    pub(crate) fn stage(&self, name: &str, bytes: &[u8]) -> io::Result<Staged> {
        let (mut file, staged) = self.beside(self.at(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(staged)
    }

    fn beside(&self, at: PathBuf) -> io::Result<(File, Staged)> {
        let mut taken = None;
        for _ in 0..TRIES {
            let mut beside = at.clone().into_os_string();
            beside.push(format!("#{}", rand::random::<u32>()));
            let beside = PathBuf::from(beside);
            match File::create_new(&beside) {
                Ok(file) => return Ok((file, Staged { beside, at })),
                Err(why) if why.kind() == ErrorKind::NotFound => self.make_room_for(&at)?,
                Err(why) if why.kind() == ErrorKind::AlreadyExists => taken = Some(why),
                Err(why) => return Err(why),
            }
        }
        Err(taken.unwrap_or_else(|| ErrorKind::NotFound.into()))
    }

    /// Makes the directories that an object goes into, durably.
    fn make_room_for(&self, at: &Path) -> io::Result<()> {
        let Some(dir) = at.parent() else {
            return Ok(());
        };
        // A store that was removed is not half made again.
        self.top.metadata()?;
        fs::create_dir_all(dir)?;
        let above = dir.ancestors().skip(1);
        above
            .take_while(|dir| dir.starts_with(&self.top))
            .try_for_each(|dir| File::open(dir)?.sync_all())
    }

    /// Makes durable which names a directory shows. One that is not there shows none.
    pub(crate) fn sync(&self, dir: &str) -> io::Result<()> {
        match found(File::open(self.at(dir)))? {
            Some(dir) => dir.sync_all(),
            None => Ok(()),
        }
    }

    /// Lists the objects of a directory.
    pub(crate) fn list(&self, dir: &str) -> io::Result<Vec<Listed>> {
        let mut all = Vec::new();
        for name in self.names(dir)? {
            // Gone since it was listed.
            let Some(meta) = found(fs::metadata(self.at(dir).join(&name)))? else {
                continue;
            };
            all.push(Listed {
                size: meta.len(),
                modified: meta.modified()?,
                name,
            });
        }
        Ok(all)
    }

    /// Lists their names only, which asks for nothing of each.
    pub(crate) fn names(&self, dir: &str) -> io::Result<Vec<String>> {
        self.entries(dir, |entry| {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            !is_dir && !is_staged(&entry.file_name())
        })
    }

    /// Lists the names of the directories in a directory.
    pub(crate) fn dirs(&self, dir: &str) -> io::Result<Vec<String>> {
        self.entries(dir, |entry| entry.path().is_dir())
    }

    fn entries(
        &self,
        dir: &str,
        wanted: impl Fn(&fs::DirEntry) -> bool,
    ) -> io::Result<Vec<String>> {
        let Some(entries) = found(fs::read_dir(self.at(dir)))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            if wanted(&entry) {
                // All of ours are plain letters.
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Removes an object; it is well if it is gone.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        found(fs::remove_file(self.at(name))).map(drop)
    }

    /// Removes what killed writers left beside objects, as far as `is_old` says that nobody writes to it.
    pub(crate) fn clear_staged(&self, is_old: impl Fn(&fs::Metadata) -> bool) -> io::Result<()> {
        let mut left = vec![self.top.clone()];
        while let Some(dir) = left.pop() {
            // Gone: a collection beside this one, or a ref that was removed.
            for entry in found(fs::read_dir(&dir))?.into_iter().flatten() {
                let entry = entry?;
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    left.push(entry.path());
                } else if is_staged(&entry.file_name()) && is_old(&meta) {
                    found(fs::remove_file(entry.path()))?;
                }
            }
        }
        Ok(())
    }
}

impl Staged {
    /// Puts it in its place, over what is there.
    pub(crate) fn put(self) -> io::Result<()> {
        fs::rename(&self.beside, &self.at)
    }

    /// Puts it in its place if nothing is there; false if something is.
    pub(crate) fn create(self) -> io::Result<bool> {
        match fs::hard_link(&self.beside, &self.at) {
            Ok(()) => Ok(true),
            Err(why) if why.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(why) => Err(why),
        }
    }
}

/// `None` for what is not there.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(there) => Ok(Some(there)),
        Err(gone) if gone.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(why),
    }
}

fn is_staged(name: &std::ffi::OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.rsplit_once('#'));
    number.is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
