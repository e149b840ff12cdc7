//! `durable __box files`: serves one connection of the daemon with the rights of the user that it runs as.
//!
//! Whatever it opens, it opens from inside the sandbox: a path that is swapped meanwhile leads somewhere else in the
//! sandbox, and nowhere else.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use protocol::files::{self, Ask, CHUNK, Entry, Kind, Name, Problem, Say, Why};
use rustix::fs::{CWD, Dir, OFlags};
use rustix::io::Errno;

use super::see::{self, name_of, path_of, problem, unfit};
use super::{tar_out, watch};

/// The most that is read of a file which says that it is empty, as those of /proc do.
const MAX_UNMEASURED: u64 = 4 << 20;
/// What is gathered before it is sent.
const BUFFER: usize = 64 << 10;

/// Why an answer ended early.
pub(super) enum Stop {
    /// The daemon is gone, or speaks another language.
    Gone(io::Error),
    /// It must be told.
    Told(Problem),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Told(problem)
    }
}

/// The way to the daemon.
pub(super) struct Channel {
    socket: UnixStream,
    input: BytesMut,
    out: BytesMut,
}

impl Channel {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket: socket.into(),
            input: BytesMut::new(),
            out: BytesMut::new(),
        }
    }

    fn hear(&mut self) -> io::Result<Option<Ask>> {
        loop {
            match files::decode(&mut self.input).map_err(io::Error::other)? {
                Some(frame) => return frame.message().map(Some).map_err(io::Error::other),
                None => {
                    let mut buffer = [0; 4096];
                    let length = self.socket.read(&mut buffer)?;
                    if length == 0 {
                        return Ok(None);
                    }
                    self.input.extend_from_slice(&buffer[..length]);
                }
            }
        }
    }

    /// Gathers a message; [`Self::flush`] sends it.
    pub(super) fn say(&mut self, say: &Say) -> io::Result<()> {
        files::encode(say, &mut self.out).map_err(io::Error::other)?;
        if self.out.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out
            .extend_from_slice(&files::bytes_header(bytes.len()));
        self.flush()?;
        self.socket.write_all(bytes)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let out = self.out.split();
        self.socket.write_all(&out)
    }

    pub(super) fn socket(&self) -> impl AsFd {
        &self.socket
    }
}

/// Serves until the daemon has what it wants.
pub(super) fn main() -> io::Result<()> {
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let mut channel = Channel::new(socket);
    let Some(ask) = channel.hear()? else {
        return Ok(());
    };
    let last = match answer(&mut channel, ask) {
        Ok(()) => Say::Done,
        Err(Stop::Told(problem)) => Say::Failed(problem),
        Err(Stop::Gone(error)) => return Err(error),
    };
    channel.say(&last)?;
    channel.flush()
}

fn answer(channel: &mut Channel, ask: Ask) -> Result<(), Stop> {
    match ask {
        Ask::Stat { path, follow } => {
            let entry = stat(&path_of(&path), follow)?;
            channel.say(&Say::Entry(entry))?;
            Ok(())
        }
        Ask::List { path, recursive } => list(channel, &path_of(&path), recursive),
        Ask::Read { path } => read(channel, &path_of(&path)),
        Ask::Pack { path } => pack(channel, &path_of(&path)),
        Ask::Watch { path, recursive } => watch::serve(channel, &path_of(&path), recursive),
        Ask::Send { .. } => Err(Stop::Gone(io::ErrorKind::InvalidData.into())),
    }
}

fn stat(path: &Path, follow: bool) -> Result<Entry, Problem> {
    let failed = |errno| problem("read", path, errno);
    let none = Name(Vec::new());
    if !follow {
        return see::at(CWD, path, none).map_err(failed);
    }
    let fd = see::open(path, OFlags::PATH).map_err(failed)?;
    Ok(see::of(&rustix::fs::fstat(&fd).map_err(failed)?, none))
}

fn list(channel: &mut Channel, path: &Path, recursive: bool) -> Result<(), Stop> {
    let entry = stat(path, true)?;
    if entry.kind != Kind::Directory {
        channel.say(&Say::Entry(stat(path, false)?))?;
        return Ok(());
    }
    // Not by recursion: a tree may be deeper than a stack. A directory's entries stand together, before what is below.
    let mut left = VecDeque::from([PathBuf::new()]);
    // What cannot be seen is told at the end; the rest is listed.
    let mut unseen = Unseen::default();
    while let Some(below) = left.pop_front() {
        let here = path.join(&below);
        let opened = see::open(&here, OFlags::RDONLY | OFlags::DIRECTORY);
        let listed = opened.and_then(|dir| names(&dir).map(|names| (dir, names)));
        let (dir, names) = match listed {
            Ok(listed) => listed,
            Err(errno) if below == Path::new("") => {
                return Err(problem("list", &here, errno).into());
            }
            Err(errno) => {
                unseen.add("list", &here, errno);
                continue;
            }
        };
        let mut deeper = Vec::new();
        for name in names {
            let name = PathBuf::from(OsString::from_vec(name));
            let full = below.join(&name);
            let entry = match see::at(&dir, &name, name_of(&full)) {
                Ok(entry) => entry,
                Err(errno) => {
                    unseen.add("read", &here.join(&name), errno);
                    continue;
                }
            };
            channel.say(&Say::Entry(entry.clone()))?;
            if recursive && entry.kind == Kind::Directory {
                deeper.push(full);
            }
        }
        for full in deeper.into_iter().rev() {
            left.push_front(full);
        }
    }
    unseen.told()
}

/// What a listing has to leave out.
#[derive(Default)]
struct Unseen {
    first: Option<Problem>,
    more: u64,
}

impl Unseen {
    fn add(&mut self, verb: &str, path: &Path, errno: Errno) {
        match errno {
            // It was removed, or became something else, or its process ended, since it was seen.
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => {}
            _ if self.first.is_some() => self.more += 1,
            errno => self.first = Some(problem(verb, path, errno)),
        }
    }

    fn told(self) -> Result<(), Stop> {
        let Some(mut first) = self.first else {
            return Ok(());
        };
        if self.more > 0 {
            first.words = format!("{} (and {} more like it)", first.words, self.more);
        }
        Err(first.into())
    }
}

/// The names in a directory, sorted.
pub(super) fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// What is read: a file, or the content of one that does not know its size.
enum Content {
    File(File),
    Held(Vec<u8>),
}

fn read(channel: &mut Channel, path: &Path) -> Result<(), Stop> {
    let failed = |error: io::Error| problem("read", path, error);
    let fd = see::open(path, OFlags::RDONLY).map_err(|errno| problem("read", path, errno))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| problem("read", path, errno))?;
    let mut entry = see::of(&stat, Name(Vec::new()));
    if entry.kind != Kind::File {
        return Err(unfit(
            path,
            &format!("is a {}, no regular file", entry.kind.word()),
        )
        .into());
    }
    let file = File::from(fd);
    let content = if entry.size == 0 {
        let mut held = Vec::new();
        (&file)
            .take(MAX_UNMEASURED)
            .read_to_end(&mut held)
            .map_err(failed)?;
        entry.size = held.len() as u64;
        Content::Held(held)
    } else {
        Content::File(file)
    };
    channel.say(&Say::Entry(entry))?;
    channel.flush()?;
    let Some(Ask::Send { offset, length }) = channel.hear()? else {
        return Err(Stop::Gone(io::ErrorKind::UnexpectedEof.into()));
    };
    let end = offset.saturating_add(length);
    let mut at = offset;
    let mut buffer = vec![0; CHUNK];
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
        let got = match &content {
            Content::File(file) => match file.read_at(&mut buffer[..want], at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(failed)?,
            },
            Content::Held(held) => {
                let rest = held.get(usize::try_from(at).unwrap_or(usize::MAX)..);
                let rest = rest.unwrap_or_default();
                let got = want.min(rest.len());
                buffer[..got].copy_from_slice(&rest[..got]);
                got
            }
        };
        if got == 0 {
            return Err(Problem {
                why: Why::Other,
                words: format!(
                    "{} became shorter while it was read",
                    crate::words::quoted(&name_of(path).escaped())
                ),
            }
            .into());
        }
        channel.send(&buffer[..got])?;
        at += got as u64;
    }
    Ok(())
}

fn pack(channel: &mut Channel, path: &Path) -> Result<(), Stop> {
    let entry = stat(path, false)?;
    channel.say(&Say::Entry(entry))?;
    let mut out = BufWriter::with_capacity(CHUNK, Pieces(channel));
    // What goes wrong stands in the archive itself.
    tar_out::write_marked(path, &mut out).map_err(io::Error::other)?;
    out.flush()?;
    Ok(())
}

/// A writer whose bytes become frames.
struct Pieces<'a>(&'a mut Channel);

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let take = &bytes[..bytes.len().min(CHUNK)];
        self.0.send(take)?;
        Ok(take.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
