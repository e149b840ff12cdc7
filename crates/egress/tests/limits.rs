//! What one sandbox can use up.

use http::Version;
use protocol::{DenyReason, Event};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{Answer, Http};
use crate::origin::{Origin, flood, rule, text};
use crate::world::{PATIENCE, World, door};

#[tokio::test(flavor = "multi_thread")]
async fn a_rules_budget_is_kept() {
    let origin = Origin::tls(&["a.test"], true).await;
    let limits = "limits = { upload = \"64KiB\", requests_per_minute = 4 }";
    let world = World::new(&rule("r", "a.test", &origin, limits), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let port = origin.port;
    let small = http
        .ask(
            "POST",
            "a.test",
            port,
            "/sink",
            &[],
            text("x".repeat(64 << 10)),
        )
        .await;
    assert_eq!(small.status(), 200);
    let large = http
        .ask(
            "POST",
            "a.test",
            port,
            "/sink",
            &[],
            text("x".repeat((64 << 10) + 1)),
        )
        .await;
    assert_eq!(large.status(), 413);
    // Nobody says how long it is.
    let endless = http
        .ask("POST", "a.test", port, "/sink", &[], flood(1 << 20))
        .await;
    let endless = Answer::of(endless).await;
    assert_eq!((endless.status, endless.denied_for()), (413, "budget"));
    assert_eq!(http.get("a.test", port, "/").await.status, 200);
    let answer = http.get("a.test", port, "/").await;
    assert_eq!((answer.status, answer.denied_for()), (429, "budget"));
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_have_a_size() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "paths = [\"/**\"]"),
        &[origin.port],
    );
    let port = origin.port;
    let long = "y".repeat(40 << 10);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let answer = http
        .ask("GET", "a.test", port, "/", &[("x-long", &long)], text(""))
        .await;
    assert_eq!(answer.status(), 200);
    drop(Answer::of(answer).await);
    let longer = "y".repeat(80 << 10);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let answer = http
        .ask("GET", "a.test", port, "/", &[("x-long", &longer)], text(""))
        .await;
    assert_eq!(answer.status(), 400);
    world.journal.denied(DenyReason::Protocol).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_say_nothing_do_not_keep_others_out() {
    let origin = Origin::plain().await;
    let _world = World::new(&rule("r", "a.test", &origin, ""), &[origin.port]);
    let mut held = Vec::new();
    for number in 0..1100 {
        let mut stream = TcpStream::connect(door(origin.port)).await.unwrap();
        if number % 2 == 0 {
            stream.write_all(b"GET / HT").await.unwrap();
        }
        held.push(stream);
    }
    // Those that are silent are closed after five seconds, and this one has its turn.
    let mut stream = TcpStream::connect(door(origin.port)).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a.test:{}\r\nConnection: close\r\n\r\n",
        origin.port
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_trickles_is_given_up() {
    let origin = Origin::plain().await;
    let _world = World::new(&rule("r", "a.test", &origin, ""), &[origin.port]);
    let mut stream = TcpStream::connect(door(origin.port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("10 seconds"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_refused_requests_makes_few_events() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new("", &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    for _ in 0..300 {
        assert_eq!(http.get("a.test", origin.port, "/").await.status, 403);
    }
    world.egress.close().await;
    let mut events = 0;
    let mut times = 0;
    for event in world.journal.events() {
        if let Event::EgressDenied { times: more, .. } = event {
            events += 1;
            times += more;
        }
    }
    assert_eq!(times, 300);
    assert!(events < 100, "{events} events");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_reset_at_once_harm_nobody_else() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "paths = [\"/**\"]"),
        &[origin.port],
    );
    let Http::Two(sender) = Http::open(&world, &origin, "a.test", Version::HTTP_2).await else {
        panic!("HTTP/2 was asked for")
    };
    for _ in 0..3000 {
        let mut one = Http::Two(sender.clone());
        let port = origin.port;
        let asked = tokio::spawn(async move {
            one.ask("GET", "a.test", port, "/quiet", &[], text(""))
                .await
        });
        tokio::task::yield_now().await;
        asked.abort();
    }
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_that_wait_for_an_upstream_hear_together_that_it_is_not_there() {
    let origin = Origin::tls(&["a.test"], true).await;
    let unknown = rule("r", "a.test", &origin, "paths = [\"/**\"]");
    let unknown = &unknown[..unknown.find("roots").unwrap()];
    let world = World::new(unknown, &[origin.port]);
    let Http::Two(sender) = Http::open(&world, &origin, "a.test", Version::HTTP_2).await else {
        panic!("HTTP/2 was asked for")
    };
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let mut one = Http::Two(sender.clone());
            let port = origin.port;
            tokio::spawn(async move { one.get("a.test", port, "/").await.status })
        })
        .collect();
    for asked in asked {
        assert_eq!(asked.await.unwrap(), 502);
    }
    assert!(origin.connections() < 50, "{}", origin.connections());
}

/// Cuts TLS records into records of one byte each.
fn in_single_bytes(mut records: &[u8]) -> Vec<u8> {
    let mut cut = Vec::new();
    while let [kind, major, minor, high, low, rest @ ..] = records {
        let (content, after) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        for byte in content {
            cut.extend_from_slice(&[*kind, *major, *minor, 0, 1, *byte]);
        }
        records = after;
    }
    cut
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_in_records_of_one_byte_is_understood() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "paths = [\"/**\"]"),
        &[origin.port],
    );
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let mut client =
        rustls::ClientConnection::new(config.into(), "a.test".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let mut stream = TcpStream::connect(door(origin.port)).await.unwrap();
    for byte in in_single_bytes(&hello) {
        stream.write_all(&[byte]).await.unwrap();
    }
    let mut answer = [0; 6];
    timeout(PATIENCE, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    // A handshake record, with a ServerHello in it.
    assert_eq!((answer[0], answer[5]), (22, 2));
    drop(world);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_never_ends_is_given_up() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "paths = [\"/**\"]"),
        &[origin.port],
    );
    let mut stream = TcpStream::connect(door(origin.port)).await.unwrap();
    // Says that 16 MiB of hello are to come.
    let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    endless.resize(endless.len() + (40 << 10), 3);
    // It may be closed before all of it is taken.
    drop(stream.write_all(&endless).await);
    let mut answer = Vec::new();
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .unwrap(),
    );
    let (request, _) = world.journal.denied(DenyReason::Protocol).await;
    assert_eq!(request.protocol, "tcp");
    assert_eq!(origin.connections(), 0);
}
