//! What is asked of a supervisor on connections for one request each: its doors, and whose a connection is.
//!
//! All of it needs the epoch that the supervisor obeys, so that a daemon which was replaced gets at nothing.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::BytesMut;
use protocol::control::{self, Door, FromSupervisor, MAX_DOORS, ToSupervisor, Unopened};
use protocol::{Epoch, OpId};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

use super::{Error, connect, encode, unreachable};

/// Doors with their sockets, and what could not be opened.
#[derive(Debug)]
pub(crate) struct Doors {
    /// None of the sockets blocks.
    pub(crate) open: Vec<(Door, OwnedFd)>,
    pub(crate) unopened: Vec<Unopened>,
}

/// Returns all doors of a sandbox; none where it was started without.
///
/// # Errors
/// [`Error`].
pub(crate) async fn doors(state: &Path, epoch: Epoch) -> Result<Vec<(Door, OwnedFd)>, Error> {
    let answer = ask(state, epoch, &ToSupervisor::Doors { epoch }).await?;
    understand(answer).map(|doors| doors.open)
}

/// Has doors for TCP opened at `ports`, those that are open already among them, and returns them.
///
/// # Errors
/// [`Error`]. A port that cannot be had is none.
pub(crate) async fn listen(state: &Path, epoch: Epoch, ports: &[u16]) -> Result<Doors, Error> {
    let ports = ports.to_vec();
    let answer = ask(state, epoch, &ToSupervisor::Listen { epoch, ports }).await?;
    understand(answer)
}

/// Returns the operation whose process holds the client's end of a connection that was accepted from a door; `None` where
/// nobody is found any more, or nobody of an operation.
///
/// # Errors
/// [`Error`].
pub(crate) async fn owner(
    state: &Path,
    epoch: Epoch,
    client: SocketAddr,
    server: SocketAddr,
) -> Result<Option<OpId>, Error> {
    let request = ToSupervisor::Owner {
        epoch,
        client,
        server,
    };
    match ask(state, epoch, &request).await?.0 {
        FromSupervisor::Owner { op } => Ok(op),
        other => Err(unexpected(&other)),
    }
}

type Answer = (FromSupervisor, Vec<OwnedFd>);

fn understand((answer, sockets): Answer) -> Result<Doors, Error> {
    match answer {
        FromSupervisor::Doors { doors, unopened } if doors.len() == sockets.len() => Ok(Doors {
            open: doors.into_iter().zip(sockets).collect(),
            unopened,
        }),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &FromSupervisor) -> Error {
    Error::Protocol(format!("{answer:?} is no answer to this"))
}

async fn ask(state: &Path, epoch: Epoch, request: &ToSupervisor) -> Result<Answer, Error> {
    let gone = |error| unreachable(state, error);
    let mut socket = connect(state, protocol::paths::state::CONTROL)
        .await
        .map_err(gone)?;
    let mut out = BytesMut::new();
    encode(request, &mut out)?;
    socket.write_all(&out).await.map_err(gone)?;
    let (mut input, mut fds) = (BytesMut::new(), Vec::new());
    loop {
        match control::decode(&mut input) {
            Ok(Some(FromSupervisor::Refused { highest })) => {
                let ours = epoch;
                return Err(Error::Fenced { highest, ours });
            }
            Ok(Some(answer)) => return Ok((answer, fds)),
            Ok(None) => {}
            Err(error) => return Err(Error::Protocol(error.to_string())),
        }
        socket.readable().await.map_err(gone)?;
        let receive = || receive(&socket, &mut input, &mut fds);
        match socket.try_io(Interest::READABLE, receive) {
            // An older supervisor knows no such request.
            Ok(0) => return Err(gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(gone(error)),
        }
    }
}

fn receive(socket: &UnixStream, input: &mut BytesMut, fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut bytes = [0; 8 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DOORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = part {
            fds.extend(came);
        }
    }
    input.extend_from_slice(&bytes[..got.bytes]);
    Ok(got.bytes)
}

#[cfg(test)]
mod tests;
