//! A terminal for an operation, from the sandbox's own devpts.

use std::io;
use std::os::fd::OwnedFd;

use protocol::TtySize;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Winsize};

use crate::sys::spawn::Identity;

/// Both ends of a new terminal.
pub(crate) struct Terminal {
    /// Ours.
    pub(crate) master: OwnedFd,
    /// The operation's.
    pub(crate) slave: OwnedFd,
}

/// Opens a terminal of `size` that belongs to `owner`.
pub(crate) fn open(size: TtySize, owner: Option<&Identity>) -> io::Result<Terminal> {
    let master = open_master()?;
    rustix::pty::unlockpt(&master)?;
    // By the master, not by path: the path is the sandbox's.
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    rustix::termios::tcsetwinsize(&master, winsize(size))?;
    let mut modes = rustix::termios::tcgetattr(&slave)?;
    modes.input_modes |= InputModes::IUTF8;
    rustix::termios::tcsetattr(&slave, OptionalActions::Now, &modes)?;
    if let Some(owner) = owner.filter(|owner| !owner.uid.is_root()) {
        rustix::fs::fchown(&slave, Some(owner.uid), Some(owner.gid))?;
        rustix::fs::fchmod(&slave, Mode::RUSR | Mode::WUSR | Mode::WGRP)?;
    }
    Ok(Terminal { master, slave })
}

fn open_master() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut failed = io::ErrorKind::NotFound.into();
    for path in [c"/dev/ptmx", c"/dev/pts/ptmx"] {
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            Ok(fd) if is_device(&fd, 5, 2) => return Ok(fd),
            Ok(_) => {}
            Err(errno) => failed = errno.into(),
        }
    }
    Err(failed)
}

/// Whether `fd` is this character device.
pub(crate) fn is_device(fd: &OwnedFd, major: u32, minor: u32) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && rustix::fs::major(stat.st_rdev) == major
            && rustix::fs::minor(stat.st_rdev) == minor
    })
}

/// Gives the terminal a new size; its foreground programs get SIGWINCH.
pub(crate) fn resize(master: &OwnedFd, size: TtySize) -> io::Result<()> {
    Ok(rustix::termios::tcsetwinsize(master, winsize(size))?)
}

fn winsize(size: TtySize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Returns what has to be typed for the program to read end of file, after input that ended with `last`.
pub(crate) fn end_of_file(master: &OwnedFd, last: Option<u8>) -> Vec<u8> {
    let Ok(modes) = rustix::termios::tcgetattr(master) else {
        return vec![4];
    };
    let code = modes.special_codes[SpecialCodeIndex::VEOF];
    // In the middle of a line the first one only hands the line over.
    let mid_line = last.is_some_and(|byte| byte != b'\n' && byte != b'\r');
    if mid_line && modes.local_modes.contains(LocalModes::ICANON) {
        vec![code, code]
    } else {
        vec![code]
    }
}
