//! Model traffic finds its way to the daemon, also to one that comes later.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use protocol::paths::state::GATEWAY;

use crate::world::World;

fn connect(world: &World) -> TcpStream {
    let port = std::fs::read_to_string(world.path("model.port")).unwrap();
    let client = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    client
}

/// Answers one connection with what it said, backwards.
fn gateway(listener: &UnixListener) {
    let (mut socket, _) = listener.accept().unwrap();
    let mut said = Vec::new();
    socket.read_to_end(&mut said).unwrap();
    said.reverse();
    socket.write_all(&said).unwrap();
}

#[test]
fn bytes_go_both_ways_and_half_closes_too() {
    let world = World::new();
    let listener = UnixListener::bind(world.path("state").join(GATEWAY)).unwrap();
    let mut client = connect(&world);
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    gateway(&listener);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"tseuqer");
}

#[test]
fn a_request_is_held_until_a_daemon_comes() {
    let world = World::new();
    let mut client = connect(&world);
    client.write_all(b"early").unwrap();
    // A socket of a daemon that has gone is as good as none.
    let path = world.path("state").join(GATEWAY);
    drop(UnixListener::bind(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let _daemon = world.daemon(1);
    let (mut socket, _) = listener.accept().unwrap();
    let mut said = [0; 5];
    socket.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"early");
    socket.write_all(b"answer").unwrap();
    drop(socket);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"answer");
}

#[test]
fn a_client_that_does_not_wait_is_let_go() {
    let world = World::new();
    // The descriptor by which it said that it serves is closed a moment later.
    let _daemon = world.daemon(1);
    let before = world.open_files();
    if before == 0 {
        return;
    }
    let clients: Vec<TcpStream> = (0..10).map(|_| connect(&world)).collect();
    world.until("all are held", || world.open_files() >= before + 10);
    drop(clients);
    world.until("all are let go", || world.open_files() <= before);
}
