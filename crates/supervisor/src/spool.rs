//! Where output goes: files in the state directory, all together within a quota.
//!
//! The daemon deletes files of old operations by itself, so the count kept here can be too high, never too low; when the
//! quota seems reached the directory is counted again before anybody is refused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use protocol::paths::{spool_file, state::SPOOL};
use protocol::{OpId, Stream, room};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

/// Why output could not be kept. The operation is ended for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// What is left is for others.
    #[error(
        "the disk has only {0} bytes left, which are kept for the journal; its output was cut there"
    )]
    Disk(u64),
    /// All operations together wrote as much as they may.
    #[error("the sandbox's output quota of {0} bytes is reached; its output was cut there")]
    Quota(u64),
    /// The disk refused.
    #[error("its output could not be kept and was cut: {0}")]
    Io(io::Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The disk is looked at once for so many bytes.
const CHECK_EVERY: u64 = 4 << 20;

/// The spool directory and what is used of its quota.
pub(crate) struct Spool {
    dir: OwnedFd,
    quota: u64,
    used: AtomicU64,
    /// Bytes that were reserved since the disk was last looked at.
    unchecked: AtomicU64,
    counting: Mutex<()>,
}

impl Spool {
    /// Opens or creates the directory in `state` and counts what is there.
    pub(crate) fn open(state: impl AsFd, quota: u64) -> io::Result<Self> {
        match rustix::fs::mkdirat(&state, SPOOL, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&state, SPOOL, flags, Mode::empty())?;
        let spool = Self {
            dir,
            quota,
            used: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
            counting: Mutex::new(()),
        };
        spool.count()?;
        Ok(spool)
    }

    /// Returns the directory, for making names in it durable.
    pub(crate) fn dir(&self) -> io::Result<OwnedFd> {
        self.dir.try_clone()
    }

    /// Opens a finished or growing stream for reading; `None` if nothing was ever written.
    pub(crate) fn read(
        &self,
        op: &OpId,
        attempt: u32,
        stream: Stream,
    ) -> io::Result<Option<OwnedFd>> {
        let name = name(op, attempt, stream);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns how long a stream is on disk; 0 if nothing was ever written.
    pub(crate) fn length(&self, op: &OpId, attempt: u32, stream: Stream) -> u64 {
        rustix::fs::statat(
            &self.dir,
            name(op, attempt, stream),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Takes up to `wanted` bytes of the quota. What is not used must be given back.
    fn reserve(&self, wanted: u64) -> Result<u64, Error> {
        self.check_disk(wanted)?;
        match self.try_reserve(wanted) {
            0 => {
                self.count()?;
                match self.try_reserve(wanted) {
                    0 => Err(Error::Quota(self.quota)),
                    granted => Ok(granted),
                }
            }
            granted => Ok(granted),
        }
    }

    /// Refuses what would take the disk's last space, now and then: that is for the journal.
    fn check_disk(&self, wanted: u64) -> Result<(), Error> {
        let due = self.unchecked.fetch_add(wanted, Ordering::Relaxed) + wanted;
        if due < CHECK_EVERY {
            return Ok(());
        }
        let fs = rustix::fs::fstatvfs(&self.dir)?;
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        if free < room::beside_output(fs.f_blocks.saturating_mul(fs.f_frsize)) {
            return Err(Error::Disk(free));
        }
        self.unchecked.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn try_reserve(&self, wanted: u64) -> u64 {
        let mut granted = 0;
        let take = |used: u64| {
            granted = wanted.min(self.quota.saturating_sub(used));
            Some(used + granted)
        };
        let _updated: Result<u64, u64> =
            self.used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        granted
    }

    fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _updated: Result<u64, u64> =
            self.used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Counts the directory anew. What other streams write meanwhile may be counted or not; the next count has it.
    fn count(&self) -> Result<(), Errno> {
        let _one = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = 0u64;
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            match rustix::fs::statat(&self.dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => {
                    sum = sum.saturating_add(u64::try_from(stat.st_size).unwrap_or(0));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.used.store(sum, Ordering::Relaxed);
        Ok(())
    }
}

fn name(op: &OpId, attempt: u32, stream: Stream) -> String {
    let path = spool_file(op, attempt, stream);
    path.strip_prefix(SPOOL)
        .map_or(path.as_str(), |name| name.trim_start_matches('/'))
        .to_owned()
}

/// How far one stream has come; shared by who writes it and who reads it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    length: AtomicU64,
    file: OnceLock<Arc<OwnedFd>>,
}

impl Tail {
    /// Returns the length that can be read.
    pub(crate) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// Returns the file, once there is one.
    pub(crate) fn file(&self) -> Option<Arc<OwnedFd>> {
        self.file.get().cloned()
    }
}

/// One stream being written.
pub(crate) struct Sink {
    spool: Arc<Spool>,
    name: String,
    tail: Arc<Tail>,
    splices: bool,
}

/// What one step of a [`Sink`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Moved,
    /// There is nothing to read now.
    Empty,
    End,
}

/// The most one splice moves; the size of a pipe that was made as large as pipes become.
const MAX_STEP: u64 = 1 << 20;

impl Sink {
    /// Prepares a stream; its file is created with the first byte.
    pub(crate) fn new(spool: Arc<Spool>, op: &OpId, attempt: u32, stream: Stream) -> Self {
        Self {
            name: name(op, attempt, stream),
            spool,
            tail: Arc::new(Tail::default()),
            splices: true,
        }
    }

    /// Reads the long way from the start: a terminal is no pipe.
    pub(crate) fn is_terminal(&mut self) {
        self.splices = false;
    }

    /// Returns what readers of it look at.
    pub(crate) fn tail(&self) -> Arc<Tail> {
        Arc::clone(&self.tail)
    }

    /// Moves what `source` has now, at most `most` bytes and in one piece, to the end of the file.
    ///
    /// `source` does not block. The end of a terminal is the error that the kernel makes of it.
    pub(crate) fn step(&mut self, source: impl AsFd, most: u64) -> Result<Step, Error> {
        match self.tail.file() {
            // A pipe that has a file is emptied without passing through our memory.
            Some(file) if self.splices => self.splice(source, &file, most),
            _ => self.copy(source, most),
        }
    }

    /// Moves what is in `source` at this moment, and no more than fits into a pipe or terminal: a background process
    /// that goes on writing must not keep an operation from settling.
    pub(crate) fn drain(&mut self, source: impl AsFd) -> Result<(), Error> {
        // A terminal cannot say what is on its way; its buffers hold less than this.
        const TERMINAL: u64 = 128 << 10;
        let most = rustix::io::ioctl_fionread(&source)
            .unwrap_or(0)
            .max(TERMINAL);
        let end = self.tail.length() + most;
        while self.tail.length() < end {
            let left = end - self.tail.length();
            if self.step(&source, left)? != Step::Moved {
                break;
            }
        }
        Ok(())
    }

    fn splice(&mut self, source: impl AsFd, file: &OwnedFd, most: u64) -> Result<Step, Error> {
        use rustix::pipe::SpliceFlags;
        let Some(granted) = self.reserve(&source, most.min(MAX_STEP))? else {
            return self.without_quota(source);
        };
        let mut at = self.tail.length();
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let result = retry(|| {
            let length = usize::try_from(granted).unwrap_or(usize::MAX);
            rustix::pipe::splice(&source, None, file, Some(&mut at), length, flags)
        });
        let moved = result.unwrap_or(0) as u64;
        self.spool.give_back(granted - moved);
        match result {
            Ok(0) => Ok(Step::End),
            Ok(_) => Ok(self.moved(moved)),
            Err(Errno::AGAIN) => Ok(Step::Empty),
            // No pipe, or a file system that cannot: the long way always works.
            Err(Errno::INVAL | Errno::NOSYS) => {
                self.splices = false;
                self.copy(source, most)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn copy(&mut self, source: impl AsFd, most: u64) -> Result<Step, Error> {
        let mut buffer = [0; 16 << 10];
        let Some(granted) = self.reserve(&source, most.min(buffer.len() as u64))? else {
            return self.without_quota(source);
        };
        let room = &mut buffer[..usize::try_from(granted).unwrap_or(usize::MAX)];
        let result = retry(|| rustix::io::read(&source, &mut *room));
        let read = result.unwrap_or(0);
        self.spool.give_back(granted - read as u64);
        match result {
            // The last process has closed the terminal.
            Ok(0) | Err(Errno::IO) => Ok(Step::End),
            Ok(read) => {
                self.append(&room[..read])?;
                Ok(self.moved(read as u64))
            }
            Err(Errno::AGAIN) => Ok(Step::Empty),
            Err(errno) => Err(errno.into()),
        }
    }

    /// `None` if there is no quota left and, as far as can be seen, no need of it.
    fn reserve(&self, source: impl AsFd, wanted: u64) -> Result<Option<u64>, Error> {
        match self.spool.reserve(wanted) {
            Err(Error::Quota(_)) if rustix::io::ioctl_fionread(source) == Ok(0) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Without quota only the end may be read; any byte is one too many.
    fn without_quota(&self, source: impl AsFd) -> Result<Step, Error> {
        match retry(|| rustix::io::read(&source, &mut [0])) {
            Ok(0) | Err(Errno::IO) => Ok(Step::End),
            Ok(_) => Err(Error::Quota(self.spool.quota)),
            Err(Errno::AGAIN) => Ok(Step::Empty),
            Err(errno) => Err(errno.into()),
        }
    }

    fn append(&self, mut bytes: &[u8]) -> Result<(), Error> {
        let file = match self.tail.file() {
            Some(file) => file,
            None => self.create()?,
        };
        let mut at = self.tail.length();
        while !bytes.is_empty() {
            let written = retry(|| rustix::io::pwrite(&file, bytes, at))?;
            bytes = &bytes[written..];
            at += written as u64;
        }
        Ok(())
    }

    fn create(&self) -> Result<Arc<OwnedFd>, Error> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = Arc::new(rustix::fs::openat(
            &self.spool.dir,
            &self.name,
            flags,
            mode,
        )?);
        Ok(Arc::clone(self.tail.file.get_or_init(|| file)))
    }

    fn moved(&self, bytes: u64) -> Step {
        self.tail.length.fetch_add(bytes, Ordering::Release);
        Step::Moved
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::fs::CWD;
    use rustix::pipe::PipeFlags;

    fn spool(dir: &std::path::Path, quota: u64) -> Arc<Spool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let state = rustix::fs::openat(CWD, dir, flags, Mode::empty()).unwrap();
        Arc::new(Spool::open(state, quota).unwrap())
    }

    fn sink(spool: &Arc<Spool>, op: &str) -> Sink {
        Sink::new(Arc::clone(spool), &op.parse().unwrap(), 1, Stream::Stdout)
    }

    #[test]
    fn bytes_go_through_whole_and_a_silent_stream_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let spool = spool(dir.path(), 1 << 20);
        let mut sink = sink(&spool, "a");
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        assert_eq!(sink.step(&read, 100).unwrap(), Step::Empty);
        assert_eq!(
            std::fs::read_dir(dir.path().join("spool")).unwrap().count(),
            0
        );
        let mut sent: Vec<u8> = Vec::new();
        for round in 0..20u8 {
            let piece: Vec<u8> = (0..=u8::MAX)
                .cycle()
                .take(5000)
                .map(|n| n ^ round)
                .collect();
            rustix::io::write(&write, &piece).unwrap();
            sent.extend(&piece);
            while sink.step(&read, 3000).unwrap() == Step::Moved {}
        }
        drop(write);
        assert_eq!(sink.step(&read, 100).unwrap(), Step::End);
        assert_eq!(sink.tail().length(), 100_000);
        assert!(std::fs::read(dir.path().join("spool/a.1.stdout")).unwrap() == sent);
    }

    #[test]
    fn the_quota_is_of_all_together_and_counts_again_what_the_daemon_deleted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        std::fs::write(dir.path().join("spool/old.1.stdout"), [0; 600]).unwrap();
        let spool = spool(dir.path(), 1000);
        let mut sink = sink(&spool, "a");
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        rustix::io::write(&write, &[1; 500]).unwrap();
        assert_eq!(sink.step(&read, 500).unwrap(), Step::Moved);
        assert_eq!(sink.tail().length(), 400);
        assert!(matches!(sink.step(&read, 500), Err(Error::Quota(1000))));
        std::fs::remove_file(dir.path().join("spool/old.1.stdout")).unwrap();
        assert_eq!(sink.step(&read, 500).unwrap(), Step::Moved);
        assert_eq!(sink.tail().length(), 500);
    }

    #[test]
    fn a_full_spool_does_not_touch_who_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let spool = spool(dir.path(), 0);
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        assert_eq!(sink(&spool, "a").step(&read, 500).unwrap(), Step::Empty);
        drop(write);
        assert_eq!(sink(&spool, "a").step(&read, 500).unwrap(), Step::End);
    }

    #[test]
    fn draining_takes_what_is_there_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let spool = spool(dir.path(), 1 << 30);
        let mut sink = sink(&spool, "a");
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&read, OFlags::NONBLOCK).unwrap();
        let endless = std::thread::spawn(
            move || {
                while rustix::io::write(&write, &[7; 4096]).is_ok() {}
            },
        );
        sink.drain(&read).unwrap();
        assert!(sink.tail().length() <= 256 << 10);
        drop(read);
        endless.join().unwrap();
    }
}
