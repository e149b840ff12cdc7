//! Names as resolvers ask for them.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use egress::Doors;

use crate::client::Http;
use crate::origin::{LOOK, Origin, rule};
use crate::world::{PATIENCE, World};
use http::Version;

/// A query for an address.
pub(crate) fn query(name: &str) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

fn ask(server: SocketAddr, name: &str) -> Ipv4Addr {
    let own = if server.is_ipv4() {
        "127.0.0.1:0"
    } else {
        "[::1]:0"
    };
    let socket = UdpSocket::bind(own).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send_to(&query(name), server).unwrap();
    let mut answer = [0; 512];
    let (length, from) = socket.recv_from(&mut answer).unwrap();
    assert_eq!(from, server, "it answers from the address that was asked");
    assert_eq!(answer[..2], [0x12, 0x34]);
    let address: [u8; 4] = answer[length - 4..length].try_into().unwrap();
    address.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_resolver_address_answers_and_from_itself() {
    let world = World::new("", &[]);
    let port = world.dns;
    let asked = tokio::task::spawn_blocking(move || {
        [[127, 0, 0, 1], [127, 8, 8, 8], [127, 1, 2, 3]].map(|ip| ask((ip, port).into(), "a.test"))
    });
    let [first, second, third] = asked.await.unwrap();
    assert!(first == second && second == third);
    assert!(
        first.octets()[..2] == [198, 18] || first.octets()[..2] == [198, 19],
        "{first}"
    );
    // Nothing was asked outside, and nothing is told of it.
    assert!(world.leads.asked().is_empty());
    assert!(world.journal.events().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_socket_answers_in_both_families() {
    let Ok(dns) = UdpSocket::bind("[::]:0") else {
        println!("skipped: this machine has no IPv6");
        return;
    };
    let port = dns.local_addr().unwrap().port();
    let doors = Doors {
        tcp: Vec::new(),
        proxy: Some(std::net::TcpListener::bind("127.0.0.1:0").unwrap()),
        dns: Some(dns),
    };
    let _world = World::with_doors("", doors);
    let asked = tokio::task::spawn_blocking(move || {
        let servers =
            ["127.8.8.8", "127.0.0.1", "::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        servers.map(|server| ask(server, "a.test"))
    });
    let [first, second, third] = asked.await.unwrap();
    assert!(first == second && second == third);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_by_name_is_resolved_once_after_it_is_allowed() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    assert!(
        world.leads.asked().is_empty(),
        "a handshake asks nothing outside"
    );
    for _ in 0..2 {
        assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    }
    assert_eq!(world.leads.asked(), ["a.test"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_survived() {
    let world = World::new("", &[]);
    let port = world.dns;
    let asked = tokio::task::spawn_blocking(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for length in [0, 1, 11, 12, 40, 600, 5000] {
            socket
                .send_to(&vec![0xc1; length], ("127.0.0.1", port))
                .unwrap();
        }
        ask(([127, 0, 0, 1], port).into(), "still.test")
    });
    assert_ne!(asked.await.unwrap(), Ipv4Addr::UNSPECIFIED);
}
