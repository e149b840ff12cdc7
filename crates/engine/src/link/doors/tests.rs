//! Against a real supervisor in a real sandbox. Needs root.

use std::collections::BTreeMap;
use std::path::PathBuf;

use isolation::container::Container;
use isolation::{Level as _, Running, StartSpec};
use protocol::control::DoorKind;
use protocol::table::RunSpec;
use protocol::{Head, Image, Limits, Role, SandboxId, Seq, paths};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::*;
use crate::link::{self, Link};

/// A sandbox with doors, gone on drop.
struct World {
    level: Container,
    running: Running,
    state: PathBuf,
    _home: tempfile::TempDir,
}

impl World {
    /// `None`, said out loud, where no sandbox can be had.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: sandboxes in tests need root");
            return None;
        }
        let home = tempfile::Builder::new()
            .prefix("engine-")
            .tempdir()
            .unwrap();
        let at = |name: &str| home.path().join(name);
        for dir in ["upper", "work", "state"] {
            std::fs::create_dir(at(dir)).unwrap();
        }
        let tests = std::env::current_exe().unwrap();
        let binary = tests
            .ancestors()
            .nth(2)
            .unwrap()
            .join("examples/supervisor");
        assert!(
            binary.exists(),
            "{} is missing: `cargo build -p durable-engine --examples`",
            binary.display()
        );
        let level = Container::new(home.path()).unwrap();
        let running = level.start(&StartSpec {
            sandbox: SandboxId(u64::from(std::process::id()) * 16 + 15),
            hostname: "ada".to_owned(),
            image: Image::Host,
            binary,
            exe_args: vec![],
            harness_dir: None,
            upper: at("upper"),
            work: at("work"),
            state: at("state"),
            limits: Limits::default(),
            doors: Some(vec![5433]),
            ca: None,
        });
        Some(Self {
            level,
            running: running.unwrap(),
            state: at("state"),
            _home: home,
        })
    }

    /// A daemon that begins.
    async fn daemon(&self, epoch: u64) -> Daemon {
        let (link, _, frames) = link::open(&self.state, Epoch(epoch)).await.unwrap();
        Daemon { link, frames }
    }

    /// The listener at a port, as that daemon gets it.
    async fn listener(&self, epoch: u64, port: u16) -> TcpListener {
        let all = doors(&self.state, Epoch(epoch)).await.unwrap();
        let found = all.into_iter().find(|(door, _)| door.port == port);
        into_listener(found.unwrap().1)
    }

    async fn owner(&self, epoch: u64, accepted: &TcpStream) -> Option<OpId> {
        let (client, server) = (accepted.peer_addr(), accepted.local_addr());
        owner(&self.state, Epoch(epoch), client.unwrap(), server.unwrap())
            .await
            .unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.level.kill(&self.running).unwrap();
    }
}

fn into_listener(socket: OwnedFd) -> TcpListener {
    TcpListener::from_std(socket.into()).unwrap()
}

/// Where a client wanted to go.
fn wanted(accepted: &TcpStream) -> String {
    let address = accepted.local_addr().unwrap();
    format!("{}:{}", address.ip().to_canonical(), address.port())
}

struct Daemon {
    link: Link,
    frames: mpsc::Receiver<FromSupervisor>,
}

impl Daemon {
    fn start(&self, op: &str, script: &str) {
        let hash = [0; 32];
        let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        self.link.send(ToSupervisor::Start {
            op: op.parse().unwrap(),
            attempt: 1,
            run: RunSpec {
                argv: ["bash", "-c", script].map(str::to_owned).to_vec(),
                cwd: "/".to_owned(),
                env: BTreeMap::from([path]),
                user: None,
                timeout_ms: None,
                tty: None,
                stdin: false,
                role: Role::Command,
            },
            witness: Head { seq: Seq(1), hash },
        });
    }

    /// Waits until an operation has written something.
    async fn output(&mut self, wanted: &str) {
        loop {
            match self.frames.recv().await.unwrap() {
                FromSupervisor::Output { op, stdout, .. }
                    if op.to_string() == wanted && stdout.0 > 0 =>
                {
                    return;
                }
                FromSupervisor::Settled { op, settlement, .. } => {
                    panic!("{op} settled: {settlement:?}")
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn a_daemon_gets_the_doors_and_knows_where_a_client_wants_to_go_and_whose_it_is() {
    let Some(world) = World::new() else { return };
    let daemon = world.daemon(1).await;
    let all = doors(&world.state, Epoch(1)).await.unwrap();
    let mut kinds: Vec<_> = all
        .iter()
        .map(|(door, _)| (format!("{:?}", door.kind), door.port))
        .collect();
    kinds.sort();
    let proxy = ("Proxy".to_owned(), paths::PROXY_PORT);
    let tcp = [53, 80, 443, 5433].map(|port| ("Tcp".to_owned(), port));
    let udp = ("Udp".to_owned(), 53);
    assert_eq!(kinds, [vec![proxy], tcp.to_vec(), vec![udp]].concat());
    for (op, host, port) in [
        ("name", "1.2.3.4", 443),
        ("metadata", "169.254.169.254", 80),
        ("further", "10.0.0.1", 5433),
    ] {
        let listener = world.listener(1, port).await;
        daemon.start(op, &format!("exec 3<>/dev/tcp/{host}/{port}; cat <&3"));
        let (accepted, _) = listener.accept().await.unwrap();
        assert_eq!(wanted(&accepted), format!("{host}:{port}"));
        assert_eq!(world.owner(1, &accepted).await, Some(op.parse().unwrap()));
    }
}

#[tokio::test]
async fn a_connection_waits_for_the_next_daemon_and_the_one_before_gets_nothing() {
    let Some(world) = World::new() else { return };
    let mut daemon = world.daemon(1).await;
    let held = world.listener(1, 443).await;
    daemon.start(
        "early",
        "exec 3<>/dev/tcp/1.2.3.4/443; echo hello >&3; echo on; cat <&3",
    );
    // The kernel has made the connection, and nobody has accepted it.
    daemon.output("early").await;
    drop((daemon, held));
    let _next = world.daemon(2).await;
    let refused = doors(&world.state, Epoch(1)).await.err().unwrap();
    let highest = Epoch(2);
    assert!(matches!(refused, Error::Fenced { highest: h, .. } if h == highest));
    let listener = world.listener(2, 443).await;
    let (mut accepted, _) = listener.accept().await.unwrap();
    let mut said = [0; 6];
    accepted.read_exact(&mut said).await.unwrap();
    assert_eq!(
        (&said, wanted(&accepted).as_str()),
        (b"hello\n", "1.2.3.4:443")
    );
    assert_eq!(
        world.owner(2, &accepted).await,
        Some("early".parse().unwrap())
    );
}

#[tokio::test]
async fn a_policy_that_changed_gets_its_ports_and_is_told_what_cannot_be() {
    let Some(world) = World::new() else { return };
    let daemon = world.daemon(1).await;
    let ports = [5432, 22, 5433, paths::MODEL_PORT];
    let doors = listen(&world.state, Epoch(1), &ports).await.unwrap();
    let kind = DoorKind::Tcp;
    let mut open: Vec<Door> = doors.open.iter().map(|(door, _)| *door).collect();
    open.sort_by_key(|door| door.port);
    assert_eq!(open, [22, 5432, 5433].map(|port| Door { kind, port }));
    assert_eq!(doors.unopened.len(), 1);
    assert_eq!(doors.unopened[0].port, paths::MODEL_PORT);
    let mut sockets = doors.open.into_iter();
    let (_, socket) = sockets.find(|(door, _)| door.port == 22).unwrap();
    let listener = into_listener(socket);
    daemon.start("ssh", "exec 3<>/dev/tcp/140.82.112.3/22; cat <&3");
    let (accepted, _) = listener.accept().await.unwrap();
    assert_eq!(wanted(&accepted), "140.82.112.3:22");
    assert_eq!(
        world.owner(1, &accepted).await,
        Some("ssh".parse().unwrap())
    );
}
