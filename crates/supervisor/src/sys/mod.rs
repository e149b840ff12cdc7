//! The few calls that have no safe form: each wrapper here is safe to call, and says why its inside is.

#![expect(
    unsafe_code,
    reason = "the only module of this crate that may; the crate root denies it elsewhere"
)]

pub(crate) mod spawn;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Blocks SIGCHLD for good and returns a descriptor that becomes readable when a child changed state.
pub(crate) fn child_events() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is read; the descriptor that comes back is ours alone.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes what a descriptor of [`child_events`] has to say, so that it becomes readable again only by a new child.
pub(crate) fn take_child_events(fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0u8; 1024];
    match rustix::io::read(fd, &mut buffer) {
        Ok(_) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Sends a signal by number, real-time ones included. A negative `pid` is a process group.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    if unsafe { libc::kill(pid, signal) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Starts writing a file's dirty pages to disk without waiting for them.
pub(crate) fn start_writeback(file: impl AsFd) {
    // SAFETY: no memory is passed. A failure only means that the later fdatasync has more to do.
    unsafe {
        libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
    }
}

/// Keeps the C library from one heap per thread: threads here allocate next to nothing.
pub(crate) fn one_heap() {
    // SAFETY: called before any other thread exists; no memory is passed.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Ends this process at once, without running anything registered for its end.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: no memory is passed, and nothing comes after.
    unsafe { libc::_exit(code) }
}

/// Lets the event loop watch a descriptor.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is one open descriptor until it is dropped, and nobody outside can replace it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Makes SIGTERM, SIGINT and SIGHUP wait for [`EndSignals::wait`] instead of ending the process.
pub(crate) struct EndSignals(libc::sigset_t);

impl EndSignals {
    /// Blocks them in this thread and in those that it starts later.
    pub(crate) fn block() -> io::Result<Self> {
        // SAFETY: the set is initialised by sigemptyset before it is read.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(set))
        }
    }

    /// Blocks the thread until one of them comes; returns its number.
    pub(crate) fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: both pointers are valid for the call. It fails only for an invalid set, which this is not.
        while unsafe { libc::sigwait(&raw const self.0, &raw mut signal) } != 0 {}
        signal
    }
}
