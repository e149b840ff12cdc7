//! What the daemon and the launcher say to each other over the launcher's standard input, a socket that keeps messages apart.
//!
//! ```text
//! daemon                                launcher                      PID 1
//!   Park{groups} ────────────────────────▶
//!   moves it into the groups
//!   Enter(network) ──────────────────────▶ new namespaces, forks ────▶ makes its network, waits
//!   ◀──────────────────────────────────────────────────────── hello (the kernel adds its host pid)
//!        … until a sandbox is to be started …
//!   maps the ids, makes the trees, records PID 1
//!   Start(plan) + log + trees ───────────────────────────────────────▶ builds its world
//!   ◀──────────────────────────────────────────────────────── ready
//! ```
//! Instead of hello and ready there may come a [`Failure`]. The end of the connection before `Start` ends the other side,
//! and the groups with it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use crate::{Error, Network};

/// The longest message; a plan is a few kilobytes.
const MAX_MESSAGE: usize = 128 << 10;
/// The most descriptors in a message; the kernel takes 253.
const MAX_FDS: usize = 200;
/// The first message of PID 1.
pub(super) const HELLO: &[u8] = b"h";

/// To the launcher, the last to PID 1.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToLauncher {
    /// These cgroups are yours; remove them if the daemon goes away, leaving first for the group named beside.
    Park { groups: Vec<(PathBuf, PathBuf)> },
    /// Make the namespaces. Only after the move into the cgroups, which the new processes are to be in.
    Enter { network: Network },
    /// Be a sandbox. With it come the log and the trees.
    Start(Box<Plan>),
}

/// A step that failed inside, in words.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) remedy: Option<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        Self {
            message,
            remedy: error.remedy().map(str::to_owned),
        }
    }
}

/// One received message.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    /// The sender's pid as this side sees it, where asked for.
    pub(super) pid: Option<i32>,
}

/// One end of the connection.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Makes both ends; the first learns the sender's pid with each message.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sockopt::set_socket_passcred(&ours, true)?;
        Ok((Self(ours), theirs))
    }

    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }

    pub(super) fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors"));
        }
        let parts = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.0, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub(super) fn send_json<T: Serialize>(&self, message: &T) -> io::Result<()> {
        self.send(&serde_json::to_vec(message)?, &[])
    }

    /// Waits for a message; `None` is the end of the connection.
    pub(super) fn receive(&self, timeout: Option<Duration>) -> io::Result<Option<Message>> {
        if let Some(timeout) = timeout {
            let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
            let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
            if rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&timeout)))? == 0
            {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        });
        let got = match got {
            Ok(got) if got.bytes > 0 => got,
            Ok(_) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        bytes.truncate(got.bytes);
        let mut message = Message {
            bytes,
            ..Message::default()
        };
        for part in ancillary.drain() {
            match part {
                RecvAncillaryMessage::ScmRights(fds) => message.fds.extend(fds),
                RecvAncillaryMessage::ScmCredentials(from) => {
                    message.pid = Some(from.pid.as_raw_nonzero().get());
                }
                _ => {}
            }
        }
        Ok(Some(message))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
