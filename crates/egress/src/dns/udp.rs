//! The door's UDP socket. It is bound to the wildcard, and every answer must come from the address that was asked.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::sync::Arc;

use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::{Answerer, MAX_QUERY, answer_dns};

/// Answers until the socket fails.
pub(crate) async fn serve_udp(
    socket: std::net::UdpSocket,
    answerer: Arc<Answerer>,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    ask_for_destination(&socket)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut buffer = vec![0; MAX_QUERY];
    loop {
        let received = socket
            .async_io(Interest::READABLE, || {
                receive(socket.as_raw_fd(), &mut buffer)
            })
            .await;
        let Ok((length, Some(from), asked)) = received else {
            // An error that an earlier answer met (nobody listens there any more) is no reason to stop.
            if let Err(error) = received {
                tracing::debug!(%error, "a DNS query could not be received");
                if error.kind() == io::ErrorKind::InvalidInput {
                    return Err(error);
                }
            }
            continue;
        };
        let Some(answer) = answer_dns(&answerer, &buffer[..length]) else {
            continue;
        };
        let sent = send(socket.as_raw_fd(), &answer, from, asked);
        // A full buffer drops it, as a network would; the program asks again.
        if let Err(error) = sent {
            tracing::debug!(%error, "a DNS answer was not sent");
        }
    }
}

/// A socket of one family does not know the other's option.
fn ask_for_destination(socket: &std::net::UdpSocket) -> io::Result<()> {
    let v4 = setsockopt(&socket.as_fd(), sockopt::Ipv4PacketInfo, &true);
    let v6 = setsockopt(&socket.as_fd(), sockopt::Ipv6RecvPacketInfo, &true);
    match (v4, v6) {
        (Err(error), Err(_)) => Err(error.into()),
        _one_is_enough => Ok(()),
    }
}

type Received = (usize, Option<SocketAddr>, Option<IpAddr>);

fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut space = nix::cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
    let mut slices = [IoSliceMut::new(buffer)];
    let message =
        recvmsg::<SockaddrStorage>(socket, &mut slices, Some(&mut space), MsgFlags::empty())?;
    let mut asked = None;
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                let address = Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes());
                asked = Some(IpAddr::V4(address));
            }
            ControlMessageOwned::Ipv6PacketInfo(info) if asked.is_none() => {
                asked = Some(IpAddr::V6(Ipv6Addr::from(info.ipi6_addr.s6_addr)));
            }
            _ => {}
        }
    }
    let from = message.address.as_ref().and_then(|address| {
        let v4 = address
            .as_sockaddr_in()
            .map(|v4| SocketAddr::V4((*v4).into()));
        v4.or_else(|| {
            address
                .as_sockaddr_in6()
                .map(|v6| SocketAddr::V6((*v6).into()))
        })
    });
    Ok((message.bytes, from, asked))
}

fn send(socket: RawFd, answer: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
    let slices = [IoSlice::new(answer)];
    let to = SockaddrStorage::from(to);
    let flags = MsgFlags::MSG_DONTWAIT;
    match from.map(|ip| ip.to_canonical()) {
        Some(IpAddr::V4(ip)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            sendmsg(
                socket,
                &slices,
                &[ControlMessage::Ipv4PacketInfo(&info)],
                flags,
                Some(&to),
            )?;
        }
        Some(IpAddr::V6(ip)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: 0,
            };
            sendmsg(
                socket,
                &slices,
                &[ControlMessage::Ipv6PacketInfo(&info)],
                flags,
                Some(&to),
            )?;
        }
        None => {
            sendmsg(socket, &slices, &[], flags, Some(&to))?;
        }
    }
    Ok(())
}
