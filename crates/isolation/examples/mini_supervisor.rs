//! The smallest PID 1 that a sandbox can have: runs commands that it is sent and answers with their output.
//!
//! A request is one line of JSON, `{"argv": [...], "uid": 0}`; the answer is one, `{"code", "signal", "out", "err"}`.
//! Whoever comes to a door is told where to: a line with the address that was asked for, and a datagram from there with it.
//! With the single argument `refuse` it enters and ends without serving. As `ls PATH` and `cat PATH` it is the one program
//! in an image that has no other.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a program, not a library; the sizes of two small structures"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use protocol::control::DoorKind;
use serde_json::{Value, json};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ls", path] => return list(path),
        ["cat", path] => {
            return print!(
                "{}",
                std::fs::read_to_string(path).unwrap_or_else(|e| e.to_string())
            );
        }
        _ => {}
    }
    let Ok(entered) = isolation::container::enter() else {
        std::process::exit(1)
    };
    if args == ["refuse"] {
        eprintln!("not today");
        return;
    }
    let mut ready = std::fs::File::from(entered.ready);
    // Nobody may be waiting any more; the sandbox is there all the same.
    let _told = ready.write_all(b"1");
    drop(ready);
    let _kept = (entered.state, entered.model, entered.shim);
    for (door, socket) in entered.doors.into_iter().flat_map(|doors| doors.sockets) {
        std::thread::spawn(move || match door.kind {
            DoorKind::Udp => answer(&socket.into()),
            DoorKind::Tcp | DoorKind::Proxy => tell(&socket.into()),
        });
    }
    for connection in entered.control.incoming().flatten() {
        std::thread::spawn(move || serve(connection));
    }
}

fn tell(listener: &TcpListener) {
    // They come as they are for an event loop.
    let _blocks = listener.set_nonblocking(false);
    for mut connection in listener.incoming().flatten() {
        if let Ok(address) = connection.local_addr() {
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            let _told = writeln!(connection, "{address}");
        }
    }
}

fn answer(socket: &UdpSocket) {
    let _blocks = socket.set_nonblocking(false);
    while let Ok(asked) = datagram::receive(socket) {
        let text = Ipv6Addr::from(asked.to.ipi6_addr.s6_addr).to_canonical();
        let _told = datagram::send(socket, &asked, text.to_string().as_bytes());
    }
}

/// Datagrams with the address that they were sent to, which the standard library does not tell.
mod datagram {
    use std::io;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    pub(super) struct Asked {
        from: libc::sockaddr_in6,
        pub(super) to: libc::in6_pktinfo,
    }

    #[repr(C, align(8))]
    struct Control([u8; 256]);

    pub(super) fn receive(socket: &UdpSocket) -> io::Result<Asked> {
        let (mut bytes, mut control) = ([0_u8; 512], Control([0; 256]));
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all of these are plain data for which zeros are valid; what the kernel writes to lives over the call, and
        // control messages are walked by the C library's own rules, as far as the kernel says that they go.
        unsafe {
            let mut from: libc::sockaddr_in6 = std::mem::zeroed();
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = (&raw mut from).cast();
            message.msg_namelen = size_of_val(&from) as libc::socklen_t;
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len();
            if libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut next = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(header) = next.as_ref() {
                if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                {
                    let to = libc::CMSG_DATA(next).cast::<libc::in6_pktinfo>();
                    let to = to.read_unaligned();
                    return Ok(Asked { from, to });
                }
                next = libc::CMSG_NXTHDR(&raw const message, next);
            }
        }
        Err(io::Error::other("the kernel does not tell where to"))
    }

    pub(super) fn send(socket: &UdpSocket, asked: &Asked, text: &[u8]) -> io::Result<()> {
        let mut control = Control([0; 256]);
        let mut part = libc::iovec {
            iov_base: text.as_ptr().cast_mut().cast(),
            iov_len: text.len(),
        };
        let info = libc::in6_pktinfo {
            ipi6_addr: asked.to.ipi6_addr,
            ipi6_ifindex: 0,
        };
        let mut to = asked.from;
        // SAFETY: as above; `control` has room for one message of this size.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = (&raw mut to).cast();
            message.msg_namelen = size_of_val(&to) as libc::socklen_t;
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of_val(&info) as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::IPPROTO_IPV6;
            (*header).cmsg_type = libc::IPV6_PKTINFO;
            (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&info) as u32) as usize;
            libc::CMSG_DATA(header)
                .cast::<libc::in6_pktinfo>()
                .write_unaligned(info);
            if libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

fn list(path: &str) {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort();
    for name in names {
        println!("{}", name.to_string_lossy());
    }
}

fn serve(connection: UnixStream) {
    let Ok(reader) = connection.try_clone() else {
        return;
    };
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let answer = serde_json::from_str::<Value>(&line)
            .map_or_else(|e| json!({"err": e.to_string()}), |r| run(&r));
        if writeln!(&connection, "{answer}").is_err() {
            return;
        }
    }
}

fn run(request: &Value) -> Value {
    let argv: Vec<&str> = request["argv"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let Some((program, args)) = argv.split_first() else {
        return json!({"err": "no program"});
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    if let Some(uid) = request["uid"].as_u64().and_then(|u| u32::try_from(u).ok()) {
        command.uid(uid).gid(uid);
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return json!({"err": error.to_string()}),
    };
    // Where memory runs out the operation goes first. After its exec, since before it is as undumpable as we are.
    let _best_effort = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
    match child.wait_with_output() {
        Ok(done) => json!({
            "code": done.status.code(),
            "signal": done.status.signal(),
            "out": String::from_utf8_lossy(&done.stdout),
            "err": String::from_utf8_lossy(&done.stderr),
        }),
        Err(error) => json!({"err": error.to_string()}),
    }
}
