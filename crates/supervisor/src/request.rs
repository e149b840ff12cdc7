//! Connections of the daemon's that are for one request each, beside the one that gives orders.

use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream as BlockingStream;

use bytes::BytesMut;
use protocol::Epoch;
use protocol::control::{FromSupervisor, MAX_DOORS, encode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::net::UnixStream;

use crate::core::Core;

/// Makes a connection ready for its answer. `None` if the epoch is not the one that is obeyed; that has been said then.
pub(crate) fn admit(
    core: &Core,
    stream: UnixStream,
    epoch: Epoch,
) -> io::Result<Option<BlockingStream>> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let highest = core.epoch.get();
    if epoch != highest {
        say(&stream, &FromSupervisor::Refused { highest })?;
        return Ok(None);
    }
    Ok(Some(stream))
}

/// One small frame into an empty socket: it does not block.
pub(crate) fn say(mut stream: &BlockingStream, message: &FromSupervisor) -> io::Result<()> {
    let mut out = BytesMut::new();
    encode(message, &mut out).map_err(io::Error::other)?;
    stream.write_all(&out)
}

/// The same with descriptors beside it, at most [`MAX_DOORS`].
pub(crate) fn say_with(
    mut stream: &BlockingStream,
    message: &FromSupervisor,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if fds.is_empty() {
        return say(stream, message);
    }
    let mut out = BytesMut::new();
    encode(message, &mut out).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DOORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    let parts = [IoSlice::new(&out)];
    let sent = rustix::net::sendmsg(stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    // The descriptors went with the first byte.
    stream.write_all(&out[sent..])
}
