//! Who sees every packet of the fake internet that goes where nobody is.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType};

use crate::Res;

const EVERY_PROTOCOL: u16 = 3;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The number of its protocol.
    pub protocol: u8,
    /// Where from.
    pub from: (IpAddr, u16),
    /// Where to.
    pub to: (IpAddr, u16),
    /// All of it.
    pub bytes: Vec<u8>,
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            TCP => "tcp".to_owned(),
            UDP => "udp".to_owned(),
            other => format!("protocol {other}"),
        };
        let (from, to) = (self.from, self.to);
        write!(
            f,
            "{protocol} {}:{} -> {}:{} {:?}",
            from.0,
            from.1,
            to.0,
            to.1,
            String::from_utf8_lossy(&self.bytes)
        )
    }
}

#[derive(Default)]
struct Log {
    seen: Vec<Packet>,
    expected: BTreeSet<(IpAddr, u16)>,
}

/// Keeps every packet that is neither to nor from a server that is expected.
#[derive(Clone)]
pub struct Canary(Arc<Mutex<Log>>);

impl Canary {
    /// Listens on every device of the calling thread's network namespace.
    ///
    /// # Errors
    /// We may not.
    pub(super) fn new() -> Res<Self> {
        let protocol = NonZeroU32::new(u32::from(EVERY_PROTOCOL.to_be())).map(Protocol::from_raw);
        let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, protocol)?;
        // A burst must not be lost: what is not seen would pass for what was not sent.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20)?;
        let canary = Self(Arc::default());
        let log = canary.clone();
        std::thread::spawn(move || listen(&socket, &log));
        Ok(canary)
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does not keep what goes to a server, or comes from it, from now on.
    pub fn expect(&self, server: (Ipv4Addr, u16)) {
        self.lock().expected.insert((server.0.into(), server.1));
    }

    /// Returns what it kept.
    #[must_use]
    pub fn seen(&self) -> Vec<Packet> {
        self.lock().seen.clone()
    }

    fn keep(&self, packet: Packet) {
        let mut log = self.lock();
        if !log.expected.contains(&packet.to) && !log.expected.contains(&packet.from) {
            log.seen.push(packet);
        }
    }
}

/// Reads for as long as the process lives.
fn listen(socket: &OwnedFd, canary: &Canary) {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) => {
                if let Some(packet) = parse(&buffer[..length]) {
                    canary.keep(packet);
                }
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NETDOWN) => {}
            Err(_) => return,
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Packet> {
    let (protocol, from, to, rest): (u8, IpAddr, IpAddr, &[u8]) = match bytes.first()? >> 4 {
        4 => {
            let head = usize::from(bytes[0] & 0xf) * 4;
            let address = |at: usize| {
                Some(Ipv4Addr::from(
                    <[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?,
                ))
            };
            let (from, to) = (address(12)?, address(16)?);
            (*bytes.get(9)?, from.into(), to.into(), bytes.get(head..)?)
        }
        6 => {
            let address = |at: usize| {
                Some(Ipv6Addr::from(
                    <[u8; 16]>::try_from(bytes.get(at..at + 16)?).ok()?,
                ))
            };
            let (from, to) = (address(8)?, address(24)?);
            (*bytes.get(6)?, from.into(), to.into(), bytes.get(40..)?)
        }
        _ => return None,
    };
    let port = |at: usize| match (protocol, rest.get(at..at + 2)) {
        (TCP | UDP, Some(bytes)) => u16::from_be_bytes([bytes[0], bytes[1]]),
        _ => 0,
    };
    Some(Packet {
        protocol,
        from: (from, port(0)),
        to: (to, port(2)),
        bytes: bytes.to_vec(),
    })
}
