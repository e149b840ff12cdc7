//! The network: sockets that may not be made, and destinations that may not be reached.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, SocketType};

use super::Make::Run;
use super::{Attempt, Host, Result};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "make a raw socket",
        make: Run(|_| socket(2, 3, 1)),
    },
    Attempt {
        name: "send a ping (ICMP)",
        make: Run(|_| ping()),
    },
    Attempt {
        name: "make a packet socket",
        make: Run(|_| socket(17, 3, 0x300)),
    },
    Attempt {
        name: "make a vsock socket",
        make: Run(|_| socket(40, 1, 0)),
    },
    Attempt {
        name: "make a netlink socket to the packet filter",
        make: Run(|_| socket(16, 3, 12)),
    },
    Attempt {
        name: "make a socket of the kernel's ciphers (AF_ALG)",
        make: Run(|_| socket(38, 5, 0)),
    },
    Attempt {
        name: "make an XDP socket",
        make: Run(|_| socket(44, 3, 0)),
    },
    Attempt {
        name: "find a network card",
        make: Run(|_| cards()),
    },
    Attempt {
        name: "reach a port of the host's loopback",
        make: Run(host_port),
    },
    Attempt {
        name: "reach an abstract socket of the host",
        make: Run(abstract_socket),
    },
    Attempt {
        name: "connect to a port that no policy lists",
        make: Run(|_| unlisted()),
    },
    Attempt {
        name: "send a datagram out (UDP)",
        make: Run(|_| datagram()),
    },
    Attempt {
        name: "fetch a page without a policy",
        make: Run(|_| fetch(Ipv4Addr::new(1, 1, 1, 1), "example.com")),
    },
    Attempt {
        name: "ask the cloud's metadata service",
        make: Run(|_| fetch(Ipv4Addr::new(169, 254, 169, 254), "169.254.169.254")),
    },
    Attempt {
        name: "tell a name server something",
        make: Run(|_| name_server()),
    },
];

/// Longer than anything near takes to answer or refuse.
const PATIENCE: Duration = Duration::from_secs(5);

fn socket(family: u16, kind: u32, protocol: u32) -> Result {
    let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
    let made = rustix::net::socket(
        AddressFamily::from_raw(family),
        SocketType::from_raw(kind),
        protocol,
    );
    match made {
        Err(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::PROTONOSUPPORT) => {
            Result::held("this kernel has none")
        }
        made => Result::of(made, "it was made"),
    }
}

/// A ping without rights is a datagram, if the kernel lets anybody send one. Without a card it gets no further than here.
fn ping() -> Result {
    const ICMP: NonZeroU32 = NonZeroU32::MIN;
    let protocol = Some(Protocol::from_raw(ICMP));
    match rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, protocol) {
        Ok(_) => cards(),
        Err(error) => Result::held(error.to_string()),
    }
}

fn cards() -> Result {
    let Ok(table) = std::fs::read_to_string("/proc/net/dev") else {
        return Result::held("there is no network at all");
    };
    let names = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split(':').next());
    let names: Vec<&str> = names.map(str::trim).filter(|name| *name != "lo").collect();
    if names.is_empty() {
        Result::held("there is the loopback, and no other")
    } else {
        Result::open(format!("found {}", names.join(", ")))
    }
}

fn connect(to: (Ipv4Addr, u16)) -> io::Result<TcpStream> {
    let to = SocketAddr::new(IpAddr::V4(to.0), to.1);
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn host_port(host: &Host) -> Result {
    if host.port == 0 {
        return Result::untried("none is known");
    }
    Result::of(connect((Ipv4Addr::LOCALHOST, host.port)), "it was reached")
}

fn abstract_socket(host: &Host) -> Result {
    if host.socket.is_empty() {
        return Result::untried("none is known");
    }
    let address = UnixAddress::from_abstract_name(&host.socket);
    Result::of(
        address.and_then(|address| UnixStream::connect_addr(&address)),
        "it was reached",
    )
}

fn unlisted() -> Result {
    for port in [22, 25, 5432, 8443] {
        match connect((Ipv4Addr::new(1, 1, 1, 1), port)) {
            Ok(_) => return Result::open(format!("1.1.1.1:{port} was reached")),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Result::open(format!(
                    "what was sent to 1.1.1.1:{port} went somewhere, and nothing came back"
                ));
            }
            Err(_) => {}
        }
    }
    Result::held("refused at once")
}

fn datagram() -> Result {
    let sent = || -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect((Ipv4Addr::new(1, 1, 1, 1), 443))?;
        socket.send(b"durable doctor --probe")?;
        socket.recv(&mut [0; 64])?;
        Ok(())
    };
    match sent() {
        Ok(()) => Result::open("somebody answered"),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Result::open("it went somewhere, and nothing came back")
        }
        Err(error) => Result::held(error.to_string()),
    }
}

/// Asks for a page over plain HTTP: the gateway's own refusal is the only good answer beside none.
fn fetch(address: Ipv4Addr, name: &str) -> Result {
    let asked = || -> io::Result<String> {
        let mut stream = connect((address, 80))?;
        write!(
            stream,
            "GET /latest/meta-data/ HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = Vec::new();
        stream.take(64 << 10).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match asked() {
        Ok(answer) if answer.to_lowercase().contains("\r\nx-durable-deny: ") => {
            Result::held("the gateway refused it, and said why")
        }
        Ok(answer) => Result::open(format!(
            "somebody answered: {}",
            answer.lines().next().unwrap_or_default()
        )),
        Err(error)
            if error.kind() == io::ErrorKind::WouldBlock
                || error.kind() == io::ErrorKind::TimedOut =>
        {
            Result::open("it went somewhere, and nothing came back")
        }
        Err(error) => Result::held(error.to_string()),
    }
}

/// A question of a type that no name server inside has an answer for.
fn name_server() -> Result {
    const QUERY: &[u8] =
        b"\x07\x07\x01\0\0\x01\0\0\0\0\0\0\x0ddurable-probe\x07example\x03com\0\0\x10\0\x01";
    let asked = || -> io::Result<(u8, u8)> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect((Ipv4Addr::new(8, 8, 8, 8), 53))?;
        socket.send(QUERY)?;
        let mut answer = [0; 512];
        socket.recv(&mut answer)?;
        Ok((answer[3] & 15, answer[7]))
    };
    match asked() {
        // The name does not exist: a name server that knows the world would say so.
        Ok((0, 0)) => Result::held("answered inside, with nothing"),
        Ok((code, count)) => Result::open(format!(
            "a name server answered with code {code} and {count} records"
        )),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Result::open("it went somewhere, and nothing came back")
        }
        Err(error) => Result::held(error.to_string()),
    }
}
