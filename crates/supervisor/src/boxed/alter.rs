//! Changes of files by the daemon: each in one step, and on disk before it is told.
//!
//! A helper like the others: an operation with a user's rights. Its answer, for the daemon, is one line of JSON on stdout.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::files::{Alter, Entry, Kind, Name, Problem, Put, Say, Why};
use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::see::{self, path_of, problem, unfit};
use super::stale;
use crate::sys::EndSignals;

const NEW_MODE: u32 = 0o644;
const NEW_DIRECTORY_MODE: u32 = 0o755;
/// As many as the kernel follows.
const MAX_LINKS: usize = 40;
/// How long another conditional write may hold the directory.
const TURN: Duration = Duration::from_secs(10);
/// There is no event for it.
const TURN_AGAIN: Duration = Duration::from_millis(5);

/// Does what the argument says and answers on stdout; returns whether it was done.
pub(super) fn main(what: &Alter) -> io::Result<bool> {
    let done = match what {
        Alter::Put(put) => put_file(put, &mut io::stdin().lock()),
        Alter::Mkdir {
            path,
            mode,
            parents,
        } => mkdir(&path_of(path), mode.unwrap_or(NEW_DIRECTORY_MODE), *parents),
        Alter::Remove { path, recursive } => remove(&path_of(path), *recursive),
        Alter::Rename { from, to, replace } => rename(&path_of(from), &path_of(to), *replace),
    };
    let is_done = done.is_ok();
    let say = done.map_or_else(Say::Failed, Say::Entry);
    let mut line = serde_json::to_vec(&say).map_err(io::Error::other)?;
    line.push(b'\n');
    io::stdout().lock().write_all(&line)?;
    Ok(is_done)
}

/// A name in a directory that is held open: nobody can swap the way to it any more.
struct Slot {
    dir: OwnedFd,
    name: PathBuf,
    /// For people.
    full: PathBuf,
}

impl Slot {
    fn of(verb: &'static str, path: &Path) -> Result<Self, Problem> {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => PathBuf::from(name),
            _ => return Err(unfit(path, "is no name that can be changed")),
        };
        let parent = path.parent().unwrap_or(Path::new("/"));
        let dir = see::open(parent, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|errno| problem(verb, path, errno))?;
        Ok(Self {
            dir,
            name,
            full: path.to_owned(),
        })
    }

    fn entry(&self) -> Result<Option<Entry>, Errno> {
        match see::at(&self.dir, &self.name, Name(Vec::new())) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the directory's own change durable.
    fn sync(&self) -> Result<(), Problem> {
        rustix::fs::fsync(&self.dir).map_err(|errno| problem("sync", &self.full, errno))
    }
}

pub(super) fn put_file(put: &Put, input: &mut impl Read) -> Result<Entry, Problem> {
    let path = followed(&path_of(&put.path))?;
    if put.parents
        && let Some(above) = path.parent()
    {
        fs::create_dir_all(above).map_err(|e| problem("create directory", above, e))?;
    }
    let slot = Slot::of("write", &path)?;
    let failed = |errno| problem("write", &path, errno);
    let old = slot.entry().map_err(failed)?;
    fits(put, old.as_ref(), &path)?;
    let temporary = Temporary::new(&slot)?;
    temporary.fill(input, &path)?;
    temporary.dress(put, old.as_ref(), &path)?;
    rustix::fs::fsync(&temporary.file).map_err(failed)?;
    let must_be_new = put.if_none_match.as_ref().is_some_and(Vec::is_empty);
    let conditional = put.if_match.is_some() || put.if_none_match.is_some();
    if conditional {
        // Another such write to this directory waits meanwhile. Who does not ask is not held up.
        turn(&slot)?;
        fits(put, slot.entry().map_err(failed)?.as_ref(), &path)?;
    }
    let flags = if must_be_new {
        RenameFlags::NOREPLACE
    } else {
        RenameFlags::empty()
    };
    let named = rustix::fs::renameat_with(
        &slot.dir,
        &temporary.hold.name,
        &slot.dir,
        &slot.name,
        flags,
    );
    match named {
        Err(Errno::EXIST) if must_be_new => return Err(unmet(&path, "it is there already")),
        other => other.map_err(failed)?,
    }
    slot.sync()?;
    let stat = rustix::fs::fstat(&temporary.file).map_err(failed)?;
    Ok(see::of(&stat, Name(Vec::new())))
}

/// Follows links at the end of a path to where a file is, or would be.
fn followed(path: &Path) -> Result<PathBuf, Problem> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match rustix::fs::readlinkat(CWD, &path, Vec::new()) {
            Ok(target) => {
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                path = path.parent().unwrap_or(Path::new("/")).join(target);
            }
            // No link, or nothing at all.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(path),
            Err(errno) => return Err(problem("write", &path, errno)),
        }
    }
    Err(problem("write", &path, Errno::LOOP))
}

fn fits(put: &Put, old: Option<&Entry>, path: &Path) -> Result<(), Problem> {
    if let Some(old) = old
        && old.kind != Kind::File
    {
        let words = format!("is a {}, no regular file", old.kind.word());
        return Err(unfit(path, &words));
    }
    let is_one = |tags: &[String]| {
        old.is_some_and(|old| tags.is_empty() || tags.iter().any(|tag| *tag == old.tag()))
    };
    match (&put.if_match, &put.if_none_match) {
        (Some(wanted), _) if !is_one(wanted) => Err(match old {
            Some(_) => unmet(path, "it has changed"),
            None => unmet(path, "it is not there"),
        }),
        (_, Some(refused)) if is_one(refused) => Err(unmet(path, "it is there already")),
        _ => Ok(()),
    }
}

fn unmet(path: &Path, words: &str) -> Problem {
    let path = crate::words::quoted(&see::name_of(path).escaped());
    Problem {
        why: Why::Precondition,
        words: format!("{path} is not as the request wants it: {words}"),
    }
}

/// Takes the directory's lock, which the end of this process gives back.
fn turn(slot: &Slot) -> Result<(), Problem> {
    let until = Instant::now() + TURN;
    loop {
        match rustix::fs::flock(&slot.dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < until => {
                std::thread::sleep(TURN_AGAIN);
            }
            Err(errno) => return Err(problem("lock the directory of", &slot.full, errno)),
        }
    }
}

/// A file beside the one to be replaced; gone again unless it was renamed, also when this process is told to end.
struct Temporary {
    hold: Arc<Hold>,
    file: File,
}

struct Hold {
    dir: OwnedFd,
    name: PathBuf,
}

impl Hold {
    fn remove(&self) {
        // After the rename there is nothing to remove.
        let _gone: Result<(), Errno> =
            rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
    }
}

impl Temporary {
    fn new(slot: &Slot) -> Result<Self, Problem> {
        let failed = |errno| problem("write beside", &slot.full, errno);
        let dir = rustix::io::fcntl_dupfd_cloexec(&slot.dir, 3).map_err(failed)?;
        // Before the file is there: a signal then finds it, or finds none.
        let signals = EndSignals::block().map_err(|e| problem("write", &slot.full, e))?;
        stale::remove(&dir);
        let named = stale::beside(slot.name.as_os_str().as_bytes());
        let name = PathBuf::from(OsString::from_vec(named));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let create = || {
            rustix::fs::openat(
                &dir,
                &name,
                flags | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o600),
            )
        };
        let file = match create() {
            Err(Errno::EXIST) => {
                // Left by one that was killed: the numbers of processes come again.
                let _gone: Result<(), Errno> = rustix::fs::unlinkat(&dir, &name, AtFlags::empty());
                create()
            }
            other => other,
        };
        let file = File::from(file.map_err(failed)?);
        let hold = Arc::new(Hold { dir, name });
        let seen = Arc::clone(&hold);
        let ending = std::thread::Builder::new().stack_size(64 << 10);
        // Without the thread a signal is only late: the end of the input ends the process as well.
        let _thread = ending.spawn(move || {
            let signal = signals.wait();
            seen.remove();
            crate::sys::exit_now(128 + signal);
        });
        Ok(Self { hold, file })
    }

    fn fill(&self, input: &mut impl Read, path: &Path) -> Result<(), Problem> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let length = match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(problem("read the input for", path, error)),
            };
            (&self.file)
                .write_all(&buffer[..length])
                .map_err(|e| problem("write", path, e))?;
        }
    }

    fn dress(&self, put: &Put, old: Option<&Entry>, path: &Path) -> Result<(), Problem> {
        let own = |(uid, gid)| {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::fchown(&self.file, Some(uid), Some(gid))
        };
        match (put.owner, old) {
            (Some(owner), _) => own(owner).map_err(|e| problem("set the owner of", path, e))?,
            // Who may write and not give away leaves it as its own, as an editor does.
            (None, Some(old)) => own((old.uid, old.gid)).or_else(|errno| match errno {
                Errno::PERM | Errno::INVAL => Ok(()),
                other => Err(problem("set the owner of", path, other)),
            })?,
            (None, None) => {}
        }
        let mode = put.mode.or(old.map(|old| old.mode)).unwrap_or(NEW_MODE);
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))
            .map_err(|e| problem("set the mode of", path, e))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.hold.remove();
    }
}

fn mkdir(path: &Path, mode: u32, parents: bool) -> Result<Entry, Problem> {
    let failed = |errno| problem("create directory", path, errno);
    if parents {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).map_err(|e| problem("create directory", above, e))?;
        }
        if let Ok(fd) = see::open(path, OFlags::PATH | OFlags::DIRECTORY) {
            let stat = rustix::fs::fstat(&fd).map_err(failed)?;
            return Ok(see::of(&stat, Name(Vec::new())));
        }
    }
    let slot = Slot::of("create directory", path)?;
    rustix::fs::mkdirat(&slot.dir, &slot.name, Mode::from_raw_mode(0o700)).map_err(failed)?;
    // Past the mask, and only on what was made: a link in its place is not followed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let made = see::open_at(&slot.dir, &slot.name, flags).map_err(failed)?;
    rustix::fs::fchmod(&made, Mode::from_raw_mode(mode)).map_err(failed)?;
    rustix::fs::fsync(&made).map_err(failed)?;
    slot.sync()?;
    let stat = rustix::fs::fstat(&made).map_err(failed)?;
    Ok(see::of(&stat, Name(Vec::new())))
}

fn remove(path: &Path, recursive: bool) -> Result<Entry, Problem> {
    let slot = Slot::of("remove", path)?;
    let failed = |errno| problem("remove", path, errno);
    let entry = slot.entry().map_err(failed)?;
    let entry = entry.ok_or_else(|| failed(Errno::NOENT))?;
    if entry.kind != Kind::Directory {
        rustix::fs::unlinkat(&slot.dir, &slot.name, AtFlags::empty()).map_err(failed)?;
    } else if recursive {
        // The library holds each directory open and follows no link, so a swap on the way leads nowhere.
        fs::remove_dir_all(path).map_err(|e| problem("remove", path, e))?;
    } else {
        rustix::fs::unlinkat(&slot.dir, &slot.name, AtFlags::REMOVEDIR).map_err(failed)?;
    }
    slot.sync()?;
    Ok(entry)
}

fn rename(from: &Path, to: &Path, replace: bool) -> Result<Entry, Problem> {
    let (old, new) = (Slot::of("rename", from)?, Slot::of("rename to", to)?);
    let flags = if replace {
        RenameFlags::empty()
    } else {
        RenameFlags::NOREPLACE
    };
    let renamed = rustix::fs::renameat_with(&old.dir, &old.name, &new.dir, &new.name, flags);
    renamed.map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR => problem("rename to", to, errno),
        other => problem("rename", from, other),
    })?;
    new.sync()?;
    old.sync()?;
    let entry = new.entry().map_err(|errno| problem("read", to, errno))?;
    entry.ok_or_else(|| problem("read", to, Errno::NOENT))
}
