//! The sockets at which what leaves the sandbox ends.
//!
//! They are kept here, and nothing is accepted from them here: a daemon asks for them. A connection that comes while no daemon
//! is there waits in the kernel, and the next daemon accepts it.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use protocol::Epoch;
use protocol::control::{Door, DoorKind, FromSupervisor, MAX_DOORS, Unopened};
use rustix::io::Errno;
use tokio::net::UnixStream;

use crate::core::Core;
use crate::request;

/// Connections that wait for a daemon which is away.
const BACKLOG: i32 = 1024;

/// All of them; none in a sandbox that was started without.
pub(crate) struct Doors(RefCell<Option<Vec<(Door, OwnedFd)>>>);

impl Doors {
    pub(crate) fn new(sockets: Option<Vec<(Door, OwnedFd)>>) -> Self {
        Self(RefCell::new(sockets))
    }

    /// Opens those that are not open yet; returns what could not be opened.
    fn open(&self, ports: &[u16]) -> Vec<Unopened> {
        let mut sockets = self.0.borrow_mut();
        let mut unopened = Vec::new();
        for &port in ports {
            let opened = match &mut *sockets {
                Some(sockets) => open(sockets, port),
                None => Err("the sandbox was started without doors".to_owned()),
            };
            if let Err(problem) = opened {
                unopened.push(Unopened { port, problem });
            }
        }
        unopened
    }
}

fn open(sockets: &mut Vec<(Door, OwnedFd)>, port: u16) -> Result<(), String> {
    let kind = DoorKind::Tcp;
    let door = Door { kind, port };
    if sockets.iter().any(|(known, _)| *known == door) {
        return Ok(());
    }
    if port == 0 {
        return Err("0 is no port".to_owned());
    }
    if sockets.len() >= MAX_DOORS {
        return Err(format!("a sandbox has at most {MAX_DOORS} doors"));
    }
    let listener = listen(port).map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::ADDRINUSE) => "a process inside has this port".to_owned(),
        _ => e.to_string(),
    })?;
    sockets.push((door, listener));
    Ok(())
}

/// Listens on the wildcard of both families, or of IPv4 where there is no other. We may, since PID 1 keeps the right to low ports.
fn listen(port: u16) -> io::Result<OwnedFd> {
    let bind = |address: IpAddr| TcpListener::bind((address, port));
    let listener = match bind(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
            bind(Ipv4Addr::UNSPECIFIED.into())
        }
        bound => bound,
    }?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Answers `ToSupervisor::Doors`.
pub(crate) fn hand_out(core: &Core, stream: UnixStream, epoch: Epoch) -> io::Result<()> {
    give(core, stream, epoch, Vec::new, |_| true)
}

/// Answers `ToSupervisor::Listen`.
pub(crate) fn listen_at(
    core: &Core,
    stream: UnixStream,
    epoch: Epoch,
    ports: &[u16],
) -> io::Result<()> {
    let open = || core.doors.open(ports);
    give(core, stream, epoch, open, |door| {
        door.kind == DoorKind::Tcp && ports.contains(&door.port)
    })
}

fn give(
    core: &Core,
    stream: UnixStream,
    epoch: Epoch,
    prepare: impl FnOnce() -> Vec<Unopened>,
    wanted: impl Fn(&Door) -> bool,
) -> io::Result<()> {
    let Some(stream) = request::admit(core, stream, epoch)? else {
        return Ok(());
    };
    let unopened = prepare();
    let sockets = core.doors.0.borrow();
    let all = sockets.iter().flatten().filter(|(door, _)| wanted(door));
    let (doors, fds): (Vec<Door>, Vec<BorrowedFd<'_>>) =
        all.map(|(door, fd)| (*door, fd.as_fd())).unzip();
    request::say_with(&stream, &FromSupervisor::Doors { doors, unopened }, &fds)
}
