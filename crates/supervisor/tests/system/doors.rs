//! The supervisor keeps the doors, and only the daemon that it obeys gets at them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use protocol::control::{Door, DoorKind, FromSupervisor, ToSupervisor};
use protocol::{Epoch, OpId};

use crate::world::{Daemon, World, exited, id, sh};

struct Doors {
    tcp: TcpListener,
    udp: UdpSocket,
    proxy: TcpListener,
}

/// Fetches all, as a daemon of that epoch.
fn doors(world: &World, epoch: u64) -> Doors {
    let epoch = Epoch(epoch);
    let (answer, fds) = world.ask(&ToSupervisor::Doors { epoch });
    let FromSupervisor::Doors { doors, unopened } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((fds.len(), unopened), (doors.len(), vec![]));
    let kinds: Vec<DoorKind> = doors.iter().map(|door| door.kind).collect();
    assert_eq!(kinds, [DoorKind::Tcp, DoorKind::Udp, DoorKind::Proxy]);
    let [tcp, udp, proxy] = <[_; 3]>::try_from(fds).unwrap();
    let found = Doors {
        tcp: tcp.into(),
        udp: udp.into(),
        proxy: proxy.into(),
    };
    let ports = [
        found.tcp.local_addr().unwrap().port(),
        found.udp.local_addr().unwrap().port(),
        found.proxy.local_addr().unwrap().port(),
    ];
    assert_eq!(
        doors.iter().map(|door| door.port).collect::<Vec<_>>(),
        ports
    );
    found
}

fn owner(world: &World, accepted: &TcpStream) -> Option<OpId> {
    let ask = ToSupervisor::Owner {
        epoch: Epoch(1),
        client: accepted.peer_addr().unwrap(),
        server: accepted.local_addr().unwrap(),
    };
    match world.ask(&ask).0 {
        FromSupervisor::Owner { op } => op,
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_daemon_that_is_obeyed_gets_them() {
    let world = World::with_doors();
    let _first = world.daemon(1);
    doors(&world, 1);
    let _second = world.daemon(2);
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    for epoch in [1, 3].map(Epoch) {
        for request in [
            ToSupervisor::Doors { epoch },
            ToSupervisor::Listen {
                epoch,
                ports: vec![9],
            },
            ToSupervisor::Owner {
                epoch,
                client: address,
                server: address,
            },
        ] {
            let (answer, fds) = world.ask(&request);
            let highest = Epoch(2);
            assert_eq!(answer, FromSupervisor::Refused { highest });
            assert!(fds.is_empty());
        }
    }
    doors(&world, 2);
}

#[test]
fn what_arrives_while_no_daemon_is_there_waits_for_the_next() {
    let world = World::with_doors();
    let before = world.daemon(1);
    let held = doors(&world, 1);
    let [tcp, proxy] = [&held.tcp, &held.proxy].map(|l| l.local_addr().unwrap());
    let udp = held.udp.local_addr().unwrap();
    // As a killed daemon's are.
    drop((held, before));
    let mut clients = [tcp, proxy].map(|at| TcpStream::connect(at).unwrap());
    for client in &mut clients {
        client.write_all(b"early").unwrap();
    }
    let asking = UdpSocket::bind("127.0.0.1:0").unwrap();
    asking.send_to(b"who", udp).unwrap();
    let _after = world.daemon(2);
    let held = doors(&world, 2);
    for listener in [&held.tcp, &held.proxy] {
        let (mut accepted, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        accepted.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"early");
    }
    let mut said = [0; 9];
    let (length, from) = held.udp.recv_from(&mut said).unwrap();
    assert_eq!(&said[..length], b"who");
    assert_eq!(from, asking.local_addr().unwrap());
}

#[test]
fn further_doors_open_while_it_runs_and_a_taken_port_is_told() {
    let world = World::with_doors();
    let _daemon = world.daemon(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_port = taken.local_addr().unwrap().port();
    // Free a moment ago.
    let free = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let port = free.unwrap().local_addr().unwrap().port();
    let listen = |ports: &[u16]| {
        let (epoch, ports) = (Epoch(1), ports.to_vec());
        let (answer, fds) = world.ask(&ToSupervisor::Listen { epoch, ports });
        match answer {
            FromSupervisor::Doors { doors, unopened } => (doors, unopened, fds),
            other => panic!("{other:?}"),
        }
    };
    let kind = DoorKind::Tcp;
    let (doors, unopened, mut fds) = listen(&[port, taken_port, 0]);
    assert_eq!(doors, [Door { kind, port }]);
    let ports: Vec<u16> = unopened.iter().map(|u| u.port).collect();
    assert_eq!(ports, [taken_port, 0]);
    assert!(
        unopened[0].problem.contains("has this port"),
        "{unopened:?}"
    );
    let listener = TcpListener::from(fds.remove(0));
    let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    listener.set_nonblocking(false).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(accepted.local_addr().unwrap().port(), port);
    drop((taken, accepted));
    // The same again is the same door; what was taken is to be had now.
    let (doors, unopened, _) = listen(&[taken_port, port]);
    assert_eq!(unopened, []);
    assert_eq!(doors, [port, taken_port].map(|port| Door { kind, port }));
    let (answer, fds) = world.ask(&ToSupervisor::Doors { epoch: Epoch(1) });
    assert!(matches!(answer, FromSupervisor::Doors { doors, .. } if doors.len() == 5));
    assert_eq!(fds.len(), 5);
}

#[test]
fn a_sandbox_without_doors_says_so() {
    let world = World::new();
    let mut daemon = world.daemon(1);
    let (answer, fds) = world.ask(&ToSupervisor::Doors { epoch: Epoch(1) });
    let none = FromSupervisor::Doors {
        doors: vec![],
        unopened: vec![],
    };
    assert_eq!((answer, fds.len()), (none, 0));
    let (epoch, ports) = (Epoch(1), vec![9]);
    let (answer, _) = world.ask(&ToSupervisor::Listen { epoch, ports });
    let FromSupervisor::Doors { unopened, .. } = answer else {
        panic!("{answer:?}");
    };
    assert!(
        unopened[0].problem.contains("without doors"),
        "{unopened:?}"
    );
    daemon.run("a", sh("echo ${SSL_CERT_FILE-unset}"));
    assert_eq!(world.stdout("a"), "unset\n");
}

/// Starts an operation that connects, and accepts the connection.
fn connected(daemon: &mut Daemon, doors: &Doors, op: &str, script: &str) -> TcpStream {
    doors.tcp.set_nonblocking(false).unwrap();
    let port = doors.tcp.local_addr().unwrap().port();
    daemon.start(op, sh(&script.replace("PORT", &port.to_string())));
    doors.tcp.accept().unwrap().0
}

#[test]
fn the_operation_behind_a_connection_is_found() {
    let world = World::with_doors();
    let mut daemon = world.daemon(1);
    let doors = doors(&world, 1);
    const CONNECT: &str = "exec 3<>/dev/tcp/127.0.0.1/PORT; read -r -u 3 _";
    // The main process, a child of it, one that left its session, and one that has nobody left and only its environment.
    for (op, script) in [
        ("main", CONNECT.to_owned()),
        ("child", format!("({CONNECT}) & wait")),
        ("left", format!("setsid --wait bash -c '{CONNECT}' & wait")),
        ("lost", format!("(setsid bash -c '{CONNECT}' &)")),
    ] {
        let mut accepted = connected(&mut daemon, &doors, op, &script);
        if op == "lost" {
            assert_eq!(exited(&daemon.settled(op)), 0);
        }
        assert_eq!(owner(&world, &accepted), Some(id(op)));
        accepted.write_all(b"go\n").unwrap();
        if op != "lost" {
            assert_eq!(exited(&daemon.settled(op)), 0);
        }
        // Its end closed the connection.
        let mut rest = Vec::new();
        accepted.read_to_end(&mut rest).unwrap();
        assert_eq!(owner(&world, &accepted), None, "{op}");
    }
    // One that is of the operation by its session is not of another because it says so.
    let script = format!("DURABLE_OP=main bash -c '{CONNECT}'");
    let accepted = connected(&mut daemon, &doors, "liar", &script);
    assert_eq!(owner(&world, &accepted), Some(id("liar")));
    drop(accepted);
    let _mine = TcpStream::connect(doors.tcp.local_addr().unwrap()).unwrap();
    let (accepted, _) = doors.tcp.accept().unwrap();
    assert_eq!(owner(&world, &accepted), None, "it is not of the sandbox");
}

#[test]
fn operations_are_told_whom_to_trust_unless_they_say_themselves() {
    let world = World::with_doors();
    let mut daemon = world.daemon(1);
    let mut run = sh("echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS $PIP_CERT ${HTTPS_PROXY-unset}");
    run.env.insert("PIP_CERT".to_owned(), "/mine".to_owned());
    assert_eq!(exited(&daemon.run("a", run)), 0);
    let (bundle, own) = (protocol::paths::CA_BUNDLE, protocol::paths::CA_CERT);
    assert_eq!(world.stdout("a"), format!("{bundle} {own} /mine unset\n"));
}
