//! The network of a sandbox: its loopback, and where it has doors, the sockets at which everything ends that wants to leave.
//!
//! A local default route makes every address one of this machine's (AnyIP), so the kernel brings a connection to whoever
//! listens on the wildcard at its port, and the accepted socket's own address is the one that was asked for. There is no
//! device but the loopback: what has no listener is refused at once, and no packet has a way out.
//!
//! The ports of doors are taken, on the loopback as well: a server inside that wants one is told `EADDRINUSE`. At every other
//! port servers inside work as ever; one on the wildcard is reached from inside under any address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use protocol::control::{Door, DoorKind, MAX_DOORS, MORE_DOORS};
use protocol::paths;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt,
};

use super::cover;
use super::place::Root;
use crate::{Error, Network, sys};

/// Connections that wait for a daemon which is away; the kernel's own limit in a new namespace is higher.
const BACKLOG: i32 = 1024;
/// Address families, in the one byte that a route has for it.
const INET: u8 = 2;
const INET6: u8 = 10;
/// The loopback's number, in every network namespace.
const LOOPBACK: u32 = 1;
/// Addresses that nobody uses (the dummy address of RFC 7600, the discard prefix of RFC 6666). Without one beside 127.0.0.1 and
/// ::1 the C library takes the machine for one without network, and `getaddrinfo` with `AI_ADDRCONFIG` finds no name.
const PRESENT: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const PRESENT_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 8);
/// The port at which names are asked for.
const DNS: u16 = 53;
/// The name of our `resolv.conf` among our files.
const RESOLVER: &str = "resolv.conf";
/// A daemon that comes back answers what was asked meanwhile, so patience helps.
const RESOLVER_TEXT: &str = "# Names are answered by the sandbox's gateway.\nnameserver 127.0.0.1\noptions timeout:5 attempts:3\n";

/// The sockets at which what leaves a sandbox ends. Nobody here accepts from them.
#[derive(Debug)]
pub struct Doors {
    /// Each with what it is; none of them blocks.
    pub sockets: Vec<(Door, OwnedFd)>,
    /// Asks the kernel about sockets of this namespace (`sock_diag`), which nobody inside may; none where it cannot be asked.
    pub diag: Option<OwnedFd>,
}

/// What a launcher makes before it knows which sandbox it is for.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) model: TcpListener,
    pub(super) doors: Option<Doors>,
}

impl Net {
    /// Makes it in this network namespace, which is new.
    pub(super) fn make(network: Network) -> Result<Self, Error> {
        let failed = |e: io::Error| Error::step("set up the network", e);
        loopback().map_err(failed)?;
        let model = TcpListener::bind((Ipv4Addr::LOCALHOST, paths::MODEL_PORT));
        Ok(Self {
            model: model.map_err(failed)?,
            doors: match network {
                Network::Loopback => None,
                Network::Doors => Some(Doors::open().map_err(failed)?),
            },
        })
    }

    /// Adds the doors that `ports` names; there are none to add to where a sandbox has none.
    pub(super) fn complete(&mut self, ports: Option<&[u16]>) -> Result<(), Error> {
        match (&mut self.doors, ports) {
            (Some(doors), Some(ports)) => doors.add(ports),
            (None, None) => Ok(()),
            // A launcher is only taken for what it was made for.
            _ => Err(Error::step(
                "match the network to the sandbox",
                io::ErrorKind::InvalidData,
            )),
        }
    }
}

impl Doors {
    fn open() -> io::Result<Self> {
        let routes = netlink_socket(None)?;
        local_default(routes.as_fd(), INET)?;
        add_address(routes.as_fd(), INET, &PRESENT.octets())?;
        // A kernel without IPv6, or told to do without: then there is no way for it, not even to here.
        let _none: io::Result<()> = local_default(routes.as_fd(), INET6)
            .and_then(|()| add_address(routes.as_fd(), INET6, &PRESENT_V6.octets()));
        let mut sockets = Vec::with_capacity(paths::DOOR_PORTS.len() + 2);
        for port in paths::DOOR_PORTS {
            sockets.push((tcp(port), listen(port)?));
        }
        let kind = DoorKind::Udp;
        sockets.push((Door { kind, port: DNS }, datagrams(DNS)?));
        let (kind, port) = (DoorKind::Proxy, paths::PROXY_PORT);
        let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        sockets.push((Door { kind, port }, patient(proxy)?));
        Ok(Self {
            sockets,
            diag: netlink_socket(Some(netlink::SOCK_DIAG)).ok(),
        })
    }

    fn add(&mut self, ports: &[u16]) -> Result<(), Error> {
        for &port in ports {
            if !self.sockets.iter().any(|(door, _)| *door == tcp(port)) {
                let listener = listen(port)
                    .map_err(|e| Error::step(format!("open the door at port {port}"), e))?;
                self.sockets.push((tcp(port), listener));
            }
        }
        Ok(())
    }
}

fn tcp(port: u16) -> Door {
    let kind = DoorKind::Tcp;
    Door { kind, port }
}

/// Whether there can be doors at these ports.
pub(super) fn check(ports: &[u16]) -> Result<(), Error> {
    let refused = |what| Error::Unsupported {
        what,
        remedy: "name other ports in the sandbox's policy".to_owned(),
    };
    if let Some(port) = ports.iter().find(|port| paths::NO_DOOR.contains(port)) {
        return Err(refused(format!("there can be no door at port {port}")));
    }
    if ports.len() > MORE_DOORS {
        return Err(refused(format!(
            "{} ports are more than a sandbox can have doors ({MAX_DOORS})",
            ports.len()
        )));
    }
    Ok(())
}

/// Has names asked for at the door, whatever the image says; one that says nothing means the same.
pub(super) fn place_resolver(root: &Root, ours: BorrowedFd<'_>) -> Result<(), Error> {
    let Some(point) = root.existing(Path::new("/etc/resolv.conf"))? else {
        return Ok(());
    };
    cover::write(ours, RESOLVER, RESOLVER_TEXT.as_bytes())
        .map_err(|e| Error::step("write resolv.conf", e))?;
    cover::attach(point.as_fd(), ours, RESOLVER)
}

fn loopback() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sys::loopback_up(socket.as_fd())
}

/// Listens on the wildcard of both families: a new network namespace begins with `bindv6only` off.
fn listen(port: u16) -> io::Result<OwnedFd> {
    both(|address| TcpListener::bind((address, port))).and_then(patient)
}

fn patient(listener: TcpListener) -> io::Result<OwnedFd> {
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

/// Takes datagrams for any address, tells which, and lets them be answered from there.
fn datagrams(port: u16) -> io::Result<OwnedFd> {
    let socket = both(|address| UdpSocket::bind((address, port)))?;
    socket.set_nonblocking(true)?;
    let is_v6 = socket.local_addr()?.is_ipv6();
    sys::tell_destinations(socket.as_fd(), is_v6)?;
    // Every address is ours here, but the kernel takes none of IPv6 for the source of a datagram without this.
    if is_v6 {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    Ok(socket.into())
}

/// Binds the wildcard of both families, or of IPv4 where there is no other.
fn both<T>(bind: impl Fn(IpAddr) -> io::Result<T>) -> io::Result<T> {
    match bind(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if is_without_v6(&error) => bind(Ipv4Addr::UNSPECIFIED.into()),
        bound => bound,
    }
}

fn is_without_v6(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
    )
}

/// A netlink socket; without a protocol, for routes.
fn netlink_socket(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        protocol,
    )?)
}

/// Makes every address of a family one of this machine's: `ip route add local default dev lo`.
fn local_default(netlink: BorrowedFd<'_>, family: u8) -> io::Result<()> {
    const RTM_NEWROUTE: u16 = 24;
    const RT_TABLE_LOCAL: u8 = 255;
    const RTPROT_BOOT: u8 = 3;
    const RT_SCOPE_HOST: u8 = 254;
    const RTN_LOCAL: u8 = 2;
    const RTA_OIF: u16 = 4;
    // `struct rtmsg`: family, no prefix and no type of service, then these; no flags.
    let [table, protocol, scope, kind] = [RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL];
    let route = [family, 0, 0, 0, table, protocol, scope, kind, 0, 0, 0, 0];
    create(
        netlink,
        RTM_NEWROUTE,
        &route,
        RTA_OIF,
        &LOOPBACK.to_ne_bytes(),
    )
}

/// Gives the loopback one more address, a single one: `ip address add ADDRESS dev lo`.
fn add_address(netlink: BorrowedFd<'_>, family: u8, address: &[u8]) -> io::Result<()> {
    const RTM_NEWADDR: u16 = 20;
    const IFA_LOCAL: u16 = 2;
    // `struct ifaddrmsg`: family, all bits are of the prefix, no flags, a scope that is everywhere, and the interface.
    let bits = u8::try_from(address.len() * 8).map_err(io::Error::other)?;
    let [a, b, c, d] = LOOPBACK.to_ne_bytes();
    let head = [family, bits, 0, 0, a, b, c, d];
    create(netlink, RTM_NEWADDR, &head, IFA_LOCAL, address)
}

/// Has the kernel make something, described by a structure and one attribute.
fn create(
    netlink: BorrowedFd<'_>,
    kind: u16,
    head: &[u8],
    attribute: u16,
    value: &[u8],
) -> io::Result<()> {
    const REQUEST_ACK_EXCL_CREATE: u16 = 0x1 | 0x4 | 0x200 | 0x400;
    const HEADER: usize = 16;
    const ATTRIBUTE_HEADER: u16 = 4;
    let length = u16::try_from(value.len()).map_err(io::Error::other)? + ATTRIBUTE_HEADER;
    let mut message = vec![0; HEADER];
    message.extend_from_slice(head);
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&attribute.to_ne_bytes());
    message.extend_from_slice(value);
    // `struct nlmsghdr`; sequence number and port stay 0.
    let total = u32::try_from(message.len()).map_err(io::Error::other)?;
    message[0..4].copy_from_slice(&total.to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_ACK_EXCL_CREATE.to_ne_bytes());
    rustix::net::send(netlink, &message, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(netlink, &mut answer, RecvFlags::empty())?;
    acknowledged(&answer[..length])
}

/// Reads `struct nlmsgerr`, whose number is 0 or a negative error.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    const NLMSG_ERROR: u16 = 2;
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok());
    let code = answer.get(16..20).and_then(|b| b.try_into().ok());
    match (kind.map(u16::from_ne_bytes), code.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_ours_and_too_many_are_refused() {
        assert!(check(&[22, 80, 5432]).is_ok());
        for port in paths::NO_DOOR {
            assert!(check(&[22, port]).is_err(), "{port}");
        }
        let many: Vec<u16> = (1000..).take(MAX_DOORS - 4).collect();
        assert!(check(&many).is_err());
        assert!(check(&many[1..]).is_ok());
    }

    #[test]
    fn an_acknowledgement_is_told_from_a_refusal() {
        let mut answer = [0; 36];
        answer[4] = 2;
        assert!(acknowledged(&answer).is_ok());
        answer[16..20].copy_from_slice(&(-17_i32).to_ne_bytes());
        let refused = acknowledged(&answer).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(17));
        assert!(acknowledged(&answer[..8]).is_err());
    }
}
