//! The number of a TCP socket, from its addresses: asked of the kernel over netlink, or where that cannot be, read in `/proc/net`.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::tree::Proc;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const TCP: u8 = 6;
/// Sockets that nobody has open: waiting out its time, and, found in the place of one that has gone, a listener.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

/// Returns the number of the socket that is bound to `own` and connected to `peer`; `None` where there is none any more.
pub(super) fn of_socket(
    diag: Option<&Mutex<OwnedFd>>,
    proc: &Proc,
    own: SocketAddr,
    peer: SocketAddr,
) -> Option<u64> {
    let (own, peer) = (canonical(own), canonical(peer));
    if own.is_ipv4() != peer.is_ipv4() {
        return None;
    }
    let asked = diag.map(|diag| {
        let diag = diag.lock().unwrap_or_else(PoisonError::into_inner);
        ask(&diag, own, peer)
    });
    match asked {
        Some(Ok(found)) => found,
        Some(Err(_)) | None => look_up(proc, own, peer),
    }
}

/// The kernel keeps an address of IPv4 in one way, however a socket shows it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn ask(netlink: &OwnedFd, own: SocketAddr, peer: SocketAddr) -> io::Result<Option<u64>> {
    let request = request(own, peer);
    rustix::net::send(netlink, &request, SendFlags::empty())?;
    let mut answer = [0; 4096];
    // The kernel has answered before `send` returns.
    let (length, _) = rustix::net::recv(netlink, &mut answer, RecvFlags::DONTWAIT)?;
    understand(&answer[..length], &request)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`, as in <linux/inet_diag.h>.
fn request(own: SocketAddr, peer: SocketAddr) -> [u8; 72] {
    const REQUEST: u16 = 1;
    const INET: u8 = 2;
    const INET6: u8 = 10;
    let mut message = [0; 72];
    message[0..4].copy_from_slice(&72_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    message[16] = if own.is_ipv4() { INET } else { INET6 };
    message[17] = TCP;
    // Whatever state it is in.
    message[20..24].fill(0xff);
    message[24..26].copy_from_slice(&own.port().to_be_bytes());
    message[26..28].copy_from_slice(&peer.port().to_be_bytes());
    put(&mut message[28..44], own.ip());
    put(&mut message[44..60], peer.ip());
    // Any interface, and a cookie that stands for any.
    message[64..72].fill(0xff);
    message
}

fn put(to: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => to[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => to.copy_from_slice(&address.octets()),
    }
}

/// Reads `struct inet_diag_msg`, or `struct nlmsgerr`.
fn understand(answer: &[u8], request: &[u8; 72]) -> io::Result<Option<u64>> {
    let strange = || io::Error::from(io::ErrorKind::InvalidData);
    let word = |at: usize| -> io::Result<u32> {
        let bytes = answer.get(at..at + 4).ok_or_else(strange)?;
        Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = answer.get(4..6).ok_or_else(strange)?;
    match u16::from_ne_bytes([kind[0], kind[1]]) {
        NLMSG_ERROR => {
            let code = word(16)?.cast_signed();
            let error = io::Error::from_raw_os_error(code.saturating_neg());
            match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(None),
                _ => Err(error),
            }
        }
        SOCK_DIAG_BY_FAMILY => {
            let inode = word(84)?;
            // The ports, where both structures have them. Addresses of IPv4 may be told in the other family's form.
            let is_it = answer.get(20..24) == request.get(24..28);
            let is_open = !matches!(answer[17], TIME_WAIT | LISTEN);
            Ok((is_it && is_open && inode != 0).then_some(u64::from(inode)))
        }
        _ => Err(strange()),
    }
}

fn look_up(proc: &Proc, own: SocketAddr, peer: SocketAddr) -> Option<u64> {
    ["self/net/tcp", "self/net/tcp6"]
        .into_iter()
        .find_map(|table| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(proc.dir(), table, flags, Mode::empty()).ok()?;
            let lines = BufReader::new(File::from(file)).lines();
            lines
                .map_while(Result::ok)
                .find_map(|line| in_line(&line, own, peer))
        })
}

/// `sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …`
fn in_line(line: &str, own: SocketAddr, peer: SocketAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let is = |field: Option<&str>, wanted| field.and_then(address) == Some(wanted);
    if !is(fields.nth(1), own) || !is(fields.next(), peer) {
        return None;
    }
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(5)?.parse().ok()?;
    (!matches!(state, TIME_WAIT | LISTEN) && inode != 0).then_some(inode)
}

/// Words of 32 bits in the machine's order, which hold the address in the network's, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = [0; 16];
    let words = address.len() / 8;
    for (nth, to) in bytes.chunks_exact_mut(4).enumerate().take(words) {
        let word = u32::from_str_radix(address.get(nth * 8..nth * 8 + 8)?, 16).ok()?;
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let ip = match words {
        1 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        4 => Ipv6Addr::from(bytes).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};

    use super::*;

    fn diag() -> Mutex<OwnedFd> {
        let protocol = Some(netlink::SOCK_DIAG);
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, protocol);
        Mutex::new(socket.unwrap())
    }

    #[test]
    fn the_kernel_and_the_table_tell_the_same_of_either_family() {
        let (diag, proc) = (diag(), Proc::open().unwrap());
        // A client of IPv4 may hold a socket of the other family, and so may the server.
        for (at, to) in [
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[::]", "127.0.0.1"),
            ("127.0.0.1", "[::ffff:127.0.0.1]"),
        ] {
            let Ok(listener) = TcpListener::bind(format!("{at}:0")) else {
                assert_ne!(at, "127.0.0.1");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(format!("{to}:{port}")).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let server = accepted.local_addr().unwrap();
            let inode = rustix::fs::fstat(&client).unwrap().st_ino;
            let asked = of_socket(Some(&diag), &proc, peer, server);
            assert_eq!(asked, Some(inode), "{at} {to}");
            let read = of_socket(None, &proc, peer, server);
            assert_eq!(read, Some(inode), "{at} {to}");
            let other = rustix::fs::fstat(&accepted).unwrap().st_ino;
            assert_eq!(of_socket(Some(&diag), &proc, server, peer), Some(other));
            // Its port is a listener's, which must not be taken for it.
            drop((client, accepted));
            let nobody = SocketAddr::new(server.ip(), 1);
            for way in [Some(&diag), None] {
                assert_eq!(of_socket(way, &proc, server, nobody), None, "{at} {to}");
            }
        }
    }

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line = "   3: 0100007F:1F90 04030201:01BB 01 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0";
        let own = "127.0.0.1:8080".parse().unwrap();
        let peer = "1.2.3.4:443".parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(in_line(line, own, peer), Some(12345));
        }
        assert_eq!(in_line(line, peer, own), None);
        assert_eq!(in_line("  sl  local_address rem_address", own, peer), None);
    }
}
