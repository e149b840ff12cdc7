//! Tells what changes below a directory, by inotify, until the daemon is gone.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::files::{Change, Happened, Kind, Name, Problem, Say, Why};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::see::{self, name_of, problem};
use super::serve::{Channel, Stop, names};

/// How long the second half of a rename may take; without it the thing has left.
const HALF: Duration = Duration::from_millis(20);
/// Between two looks: what one file goes through meanwhile is told once.
const GATHER: Duration = Duration::from_millis(20);

struct Watch {
    inotify: OwnedFd,
    root: PathBuf,
    /// The one name of interest, where something else than a directory is watched.
    only: Option<OsString>,
    recursive: bool,
    /// The watched directories, from the root.
    dirs: HashMap<i32, PathBuf>,
    top: i32,
    half: Option<Half>,
    /// Told when their directory was found; the kernel may tell them as well.
    fresh: HashSet<PathBuf>,
    /// The last event of each path since the last look.
    batch: HashMap<PathBuf, Happened>,
}

/// The first half of a rename.
struct Half {
    cookie: u32,
    path: PathBuf,
    directory: bool,
}

/// An event, out of the kernel's buffer.
struct Seen {
    wd: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<OsString>,
}

/// Watches until the daemon is gone, or what is watched.
pub(super) fn serve(channel: &mut Channel, path: &Path, recursive: bool) -> Result<(), Stop> {
    let failed = |errno| problem("watch", path, errno);
    let fd = see::open(path, OFlags::PATH).map_err(failed)?;
    let entry = see::of(&rustix::fs::fstat(&fd).map_err(failed)?, Name(Vec::new()));
    drop(fd);
    let (root, only) = if entry.kind == Kind::Directory {
        (path.to_owned(), None)
    } else {
        // Files are replaced by renames: the directory sees that, a watch on the file would not.
        let full = std::fs::canonicalize(path).map_err(|e| problem("watch", path, e))?;
        let name = full.file_name().map(OsStr::to_owned);
        let dir = full.parent().unwrap_or(Path::new("/")).to_owned();
        (dir, name)
    };
    let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(failed)?;
    let mut watch = Watch {
        inotify,
        root,
        recursive: recursive && only.is_none(),
        only,
        dirs: HashMap::new(),
        top: -1,
        half: None,
        fresh: HashSet::new(),
        batch: HashMap::new(),
    };
    watch.add(PathBuf::new(), None)?;
    watch.top = watch.dirs.keys().copied().min().unwrap_or(-1);
    channel.say(&Say::Entry(entry))?;
    channel.flush()?;
    watch.run(channel)
}

impl Watch {
    /// Watches a directory and those below it; tells what is in it to `channel`, where it came up meanwhile.
    fn add(&mut self, dir: PathBuf, mut channel: Option<&mut Channel>) -> Result<(), Stop> {
        let mut left = vec![dir];
        while let Some(below) = left.pop() {
            let here = self.root.join(&below);
            let is_root = below.as_os_str().is_empty();
            let mut mask = WatchFlags::CREATE
                | WatchFlags::MODIFY
                | WatchFlags::ATTRIB
                | WatchFlags::DELETE
                | WatchFlags::MOVE
                | WatchFlags::DELETE_SELF
                | WatchFlags::MOVE_SELF
                | WatchFlags::EXCL_UNLINK
                | WatchFlags::ONLYDIR;
            if !is_root {
                mask |= WatchFlags::DONT_FOLLOW;
            }
            match inotify::add_watch(&self.inotify, &here, mask) {
                Ok(wd) => {
                    self.dirs.insert(wd, below.clone());
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !is_root => continue,
                Err(Errno::ACCESS) if channel.is_some() => continue,
                Err(Errno::NOSPC) => {
                    return Err(Problem {
                        why: Why::Full,
                        words: format!(
                            "cannot watch {}: the machine's limit of watches is reached (sysctl fs.inotify.max_user_watches)",
                            crate::words::quoted(&name_of(&here).escaped())
                        ),
                    }
                    .into());
                }
                Err(errno) => return Err(problem("watch", &here, errno).into()),
            }
            if !self.recursive {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let listed = see::open(&here, flags).and_then(|dir| names(&dir).map(|n| (dir, n)));
            let (dir, names) = match listed {
                Ok(listed) => listed,
                Err(_) if !is_root => continue,
                Err(errno) => return Err(problem("list", &here, errno).into()),
            };
            for name in names {
                let name = PathBuf::from(OsString::from_vec(name));
                let full = below.join(&name);
                let Ok(entry) = see::at(&dir, &name, name_of(&full)) else {
                    continue;
                };
                let directory = entry.kind == Kind::Directory;
                if let Some(channel) = channel.as_deref_mut() {
                    self.fresh.insert(full.clone());
                    tell(channel, Happened::Create, &full, None, directory)?;
                }
                if directory {
                    left.push(full);
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, channel: &mut Channel) -> Result<(), Stop> {
        loop {
            if self.wait(channel)? {
                let mut buffer = [const { MaybeUninit::uninit() }; 32 << 10];
                while let Some(seen) = self.next(&mut buffer)? {
                    for seen in seen {
                        if self.take(channel, &seen)? {
                            tell(channel, Happened::Gone, Path::new(""), None, true)?;
                            return Ok(());
                        }
                    }
                }
            } else if let Some(half) = self.half.take() {
                self.left(channel, half)?;
            }
            self.fresh.clear();
            self.batch.clear();
            channel.flush()?;
            std::thread::sleep(GATHER);
        }
    }

    /// Waits for events; `false` where the time for the second half of a rename is over.
    fn wait(&self, channel: &Channel) -> Result<bool, Stop> {
        let timeout = match &self.half {
            Some(_) => Some(Timespec::try_from(HALF).map_err(io::Error::other)?),
            None => None,
        };
        let socket = channel.socket();
        let mut polled = [
            PollFd::new(&self.inotify, PollFlags::IN),
            PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP),
        ];
        let ready =
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, timeout.as_ref()));
        ready.map_err(io::Error::from)?;
        // The daemon has nothing more to say but its end.
        if !polled[1].revents().is_empty() {
            return Err(Stop::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(!polled[0].revents().is_empty())
    }

    /// Takes what one read of the kernel's queue gives; none where it is empty.
    fn next(&self, buffer: &mut [MaybeUninit<u8>]) -> Result<Option<Vec<Seen>>, Stop> {
        let mut reader = Reader::new(&self.inotify, buffer);
        let mut seen = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name();
                    seen.push(Seen {
                        wd: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: name.map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    });
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(Stop::Gone(errno.into())),
            }
            if reader.is_buffer_empty() {
                return Ok(Some(seen));
            }
        }
    }

    /// Tells one event; returns whether it was the last.
    fn take(&mut self, channel: &mut Channel, seen: &Seen) -> Result<bool, Stop> {
        let flags = seen.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.half = None;
            tell(channel, Happened::Overflow, Path::new(""), None, true)?;
            return Ok(false);
        }
        let is_self = flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF);
        if seen.wd == self.top && (is_self || flags.contains(ReadFlags::UNMOUNT)) {
            return Ok(true);
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.dirs.remove(&seen.wd);
            return Ok(false);
        }
        let Some(dir) = self.dirs.get(&seen.wd) else {
            return Ok(false);
        };
        let Some(name) = &seen.name else {
            // About the directory itself: its own directory tells, except for the topmost.
            if seen.wd == self.top && self.only.is_none() && flags.contains(ReadFlags::ATTRIB) {
                tell(channel, Happened::Attributes, Path::new(""), None, true)?;
            }
            return Ok(false);
        };
        let path = dir.join(name);
        let directory = flags.contains(ReadFlags::ISDIR);
        if flags.contains(ReadFlags::MOVED_TO) {
            self.moved_to(channel, seen.cookie, path, directory)?;
            return Ok(false);
        }
        // Its second half stands right behind it, or there is none.
        if let Some(half) = self.half.take() {
            self.left(channel, half)?;
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.half = Some(Half {
                cookie: seen.cookie,
                path,
                directory,
            });
        } else if flags.contains(ReadFlags::CREATE) {
            if !self.fresh.contains(&path) {
                self.tell(channel, Happened::Create, &path, None, directory)?;
                if directory && self.recursive {
                    self.add(path, Some(channel))?;
                }
            }
        } else if flags.contains(ReadFlags::DELETE) {
            self.fresh.remove(&path);
            self.tell(channel, Happened::Delete, &path, None, directory)?;
        } else if flags.contains(ReadFlags::MODIFY) {
            self.tell(channel, Happened::Modify, &path, None, directory)?;
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.tell(channel, Happened::Attributes, &path, None, directory)?;
        }
        Ok(false)
    }

    fn moved_to(
        &mut self,
        channel: &mut Channel,
        cookie: u32,
        path: PathBuf,
        directory: bool,
    ) -> Result<(), Stop> {
        match self.half.take() {
            Some(half) if half.cookie == cookie => {
                for dir in self.dirs.values_mut() {
                    if let Ok(below) = dir.strip_prefix(&half.path) {
                        *dir = path.join(below).components().collect();
                    }
                }
                self.tell(
                    channel,
                    Happened::Rename,
                    &path,
                    Some(&half.path),
                    directory,
                )?;
                // It was renamed before it could be watched under its first name.
                if directory && self.recursive && !self.dirs.values().any(|dir| *dir == path) {
                    self.add(path, Some(channel))?;
                }
                Ok(())
            }
            other => {
                if let Some(half) = other {
                    self.left(channel, half)?;
                }
                self.tell(channel, Happened::Create, &path, None, directory)?;
                if directory && self.recursive {
                    self.add(path, Some(channel))?;
                }
                Ok(())
            }
        }
    }

    /// Tells of what was moved out of what is watched.
    fn left(&mut self, channel: &mut Channel, half: Half) -> Result<(), Stop> {
        let gone: Vec<i32> = self
            .dirs
            .iter()
            .filter(|(_, dir)| half.directory && dir.starts_with(&half.path))
            .map(|(wd, _)| *wd)
            .collect();
        for wd in gone {
            self.dirs.remove(&wd);
            // It may be gone with its directory.
            let _removed: Result<(), Errno> = inotify::remove_watch(&self.inotify, wd);
        }
        self.tell(channel, Happened::Delete, &half.path, None, half.directory)
    }

    /// Tells it unless it was just told, or is of another file than the one that is watched.
    fn tell(
        &mut self,
        channel: &mut Channel,
        event: Happened,
        path: &Path,
        from: Option<&Path>,
        directory: bool,
    ) -> Result<(), Stop> {
        if let Some(only) = &self.only {
            let is = |path: &Path| path.as_os_str() == only;
            return match (is(path), from.is_some_and(is)) {
                // Renamed away, or in: of one name that is the end, or the beginning.
                (false, true) => tell(channel, Happened::Delete, Path::new(""), None, directory),
                (true, _) if event == Happened::Rename => {
                    tell(channel, Happened::Create, Path::new(""), None, directory)
                }
                (true, _) => tell(channel, event, Path::new(""), None, directory),
                (false, false) => Ok(()),
            };
        }
        if let Some(from) = from {
            self.batch.remove(from);
        }
        let before = self.batch.insert(path.to_owned(), event);
        if before == Some(event) && matches!(event, Happened::Modify | Happened::Attributes) {
            return Ok(());
        }
        tell(channel, event, path, from, directory)
    }
}

fn tell(
    channel: &mut Channel,
    event: Happened,
    path: &Path,
    from: Option<&Path>,
    directory: bool,
) -> Result<(), Stop> {
    channel.say(&Say::Change(Change {
        event,
        name: name_of(path),
        from: from.map(name_of),
        directory,
    }))?;
    Ok(())
}
