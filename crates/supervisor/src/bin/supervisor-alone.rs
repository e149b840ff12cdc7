//! A supervisor without a sandbox around it, for tests and measurements. It confines nothing.
//!
//! `supervise DIR [LIMITS] [doors]` serves in `DIR`: state in `DIR/state`, shims at `DIR/shim.sock`, model traffic at the port in
//! `DIR/model.port`; writes one byte to stdout when it does. With `doors` it has one of each kind, on the loopback at ports
//! that it tells a daemon. `shell ARGS…` and `box ARGS…` are what the names say.

use std::error::Error;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use protocol::control::{Door, DoorKind};
use protocol::paths::state::CONTROL;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
use supervisor::{Doors, Handles};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let verb = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    let code = match verb.to_str() {
        Some("supervise") => match handles(&args) {
            Ok(handles) => supervisor::run(handles),
            Err(error) => fail(&error.to_string()),
        },
        Some("shell") => supervisor::shell_main(args, &|_| None),
        Some("box") => supervisor::box_main(args),
        _ => fail("usage: supervise DIR [LIMITS] [doors] | shell ARGS… | box ARGS…"),
    };
    std::process::exit(code);
}

#[expect(clippy::print_stderr, reason = "a program of its own")]
fn fail(error: &str) -> i32 {
    eprintln!("{error}");
    2
}

fn handles(args: &[OsString]) -> Result<Handles, Box<dyn Error>> {
    let dir = PathBuf::from(args.first().ok_or("no directory is named")?);
    let limits = match args.get(1) {
        Some(limits) => serde_json::from_str(limits.to_str().ok_or("the limits are no text")?)?,
        None => protocol::Limits::default(),
    };
    let state = dir.join("state");
    std::fs::create_dir_all(&state)?;
    let listen = |path: PathBuf| {
        // Left by a supervisor that was killed.
        let _gone: std::io::Result<()> = std::fs::remove_file(&path);
        UnixListener::bind(path)
    };
    let model = TcpListener::bind("127.0.0.1:0")?;
    std::fs::write(
        dir.join("model.port"),
        model.local_addr()?.port().to_string(),
    )?;
    let has_doors = args.get(2).is_some_and(|word| word == "doors");
    Ok(Handles {
        control: listen(state.join(CONTROL))?,
        shim: listen(dir.join("shim.sock"))?,
        state: OwnedFd::from(std::fs::File::open(&state)?),
        model: Some(model),
        ready: Some(std::io::stdout().as_fd().try_clone_to_owned()?),
        doors: if has_doors { Some(doors()?) } else { None },
        has_ca: has_doors,
        limits,
    })
}

fn doors() -> Result<Doors, Box<dyn Error>> {
    let (tcp, proxy) = (
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    );
    let udp = UdpSocket::bind("127.0.0.1:0")?;
    let door = |kind, address: SocketAddr| Door {
        kind,
        port: address.port(),
    };
    let sockets = vec![
        (door(DoorKind::Tcp, tcp.local_addr()?), tcp.into()),
        (door(DoorKind::Udp, udp.local_addr()?), udp.into()),
        (door(DoorKind::Proxy, proxy.local_addr()?), proxy.into()),
    ];
    let diag = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    Ok(Doors {
        sockets,
        diag: diag.ok(),
    })
}
