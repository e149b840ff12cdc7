//! Doors as a sandbox has them: a network namespace with nothing but loopback, where every address leads to us (adr/0004).
//!
//! The test runs itself again inside of such a namespace. The origin is at `[::1]`, beside the doors of IPv4.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::process::Command;

use egress::Doors;
use http::Version;
use protocol::DenyReason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Http, tls};
use crate::dns::query;
use crate::origin::{LOOK, Origin, rule};
use crate::world::{PATIENCE, World};

#[test]
fn any_address_leads_to_the_door_and_only_names_lead_on() {
    let inside = "ip link set lo up && ip route add local default dev lo && exec \"$0\" --exact doors::inside --ignored --nocapture";
    let ran = Command::new("unshare")
        .args(["--net", "--map-root-user", "bash", "-c", inside])
        .arg(std::env::current_exe().unwrap())
        .output();
    let output = match ran {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: unshare (util-linux) cannot be run: {error}");
            return;
        }
    };
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if error.contains("unshare failed") {
        println!("skipped: this user may not make network namespaces: {error}");
        return;
    }
    assert!(
        output.status.success() && out.contains("1 passed"),
        "{out}{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs inside of a network namespace, see above"]
async fn inside() {
    let origin = Origin::tls_at("[::1]:443", &["a.test", "b.test"]).await;
    let policy = rule("a", "a.test", &origin, LOOK) + &rule("b", "b.test", &origin, LOOK);
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    let doors = Doors {
        tcp: [53, 80, 443].map(listen).into(),
        proxy: Some(TcpListener::bind("127.0.0.1:8378").unwrap()),
        dns: Some(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)).unwrap()),
    };
    let world = World::with_doors(&policy.replace("127.0.0.1", "::1"), doors);
    for name in ["a.test", "b.test"] {
        world.leads.set(name, &["::1"]);
    }

    let given = lookup("8.8.8.8", "a.test").await;
    assert_eq!(lookup("192.0.2.53", "a.test").await, given);
    assert_eq!(over_tcp("1.1.1.1", "a.test").await, given);

    for (address, name, status) in [
        (given, "a.test", 200),
        // The address belongs to another name.
        (given, "b.test", 421),
        // Written into a program; only the name counts.
        (Ipv4Addr::new(203, 0, 113, 9), "a.test", 200),
        (Ipv4Addr::new(169, 254, 169, 254), "b.test", 200),
        (Ipv4Addr::new(203, 0, 113, 9), "c.test", 403),
    ] {
        let stream = tls(&world, (address, 443).into(), name, &["h2"])
            .await
            .unwrap();
        let answer = Http::over(stream, Version::HTTP_2)
            .await
            .get(name, 443, "/")
            .await;
        assert_eq!(answer.status, status, "{name} at {address}");
    }
    world.journal.denied(DenyReason::Mismatch).await;

    // The metadata service, asked as usual.
    let answer = crate::client::raw(
        TcpStream::connect("169.254.169.254:80").await.unwrap(),
        b"GET /latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let refused = TcpStream::connect("9.9.9.9:5432").await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    // A program that knows of nothing: its resolver asks whom it will, its connections go where they will.
    let ca = world.dir.path().join("ca/ca.pem");
    let curl = tokio::task::spawn_blocking(move || {
        let mut curl = Command::new("curl");
        curl.env_remove("https_proxy").args([
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--cacert",
        ]);
        curl.arg(ca).arg("https://a.test/").output().unwrap()
    });
    let curl = curl.await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&curl.stdout),
        "hello",
        "{}",
        String::from_utf8_lossy(&curl.stderr)
    );
    assert!(
        world
            .leads
            .asked()
            .iter()
            .all(|name| name == "a.test" || name == "b.test")
    );
}

fn address(answer: &[u8]) -> Ipv4Addr {
    let last: [u8; 4] = answer[answer.len() - 4..].try_into().unwrap();
    last.into()
}

async fn lookup(resolver: &str, name: &str) -> Ipv4Addr {
    let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await.unwrap();
    socket.send_to(&query(name), (resolver, 53)).await.unwrap();
    let mut answer = [0; 512];
    let (length, from) = tokio::time::timeout(PATIENCE, socket.recv_from(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(from.ip(), resolver.parse::<IpAddr>().unwrap());
    address(&answer[..length])
}

async fn over_tcp(resolver: &str, name: &str) -> Ipv4Addr {
    let mut stream = TcpStream::connect((resolver, 53)).await.unwrap();
    let query = query(name);
    stream
        .write_u16(u16::try_from(query.len()).unwrap())
        .await
        .unwrap();
    stream.write_all(&query).await.unwrap();
    let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut answer).await.unwrap();
    address(&answer)
}
