//! WebSockets, as bytes: what is inside is their own business.

use http::{Request, Version};
use hyper_util::rt::TokioIo;
use protocol::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{Http, raw};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::{World, door};

fn upgrade(port: u16) -> Request<crate::origin::Body> {
    Request::builder()
        .uri("/ws")
        .header("host", format!("a.test:{port}"))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("sec-websocket-version", "13")
        .body(text(""))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_echoes_byte_by_byte_and_is_an_effect() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let answer = http.send(upgrade(origin.port)).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["upgrade"], "websocket");
    let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    for piece in [&b"\x81\x03abc"[..], b"\x81\x03def"] {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, piece);
    }
    stream.shutdown().await.unwrap();
    let (begun, settled) = {
        let begun = world
            .journal
            .wait(|event| match event {
                Event::EffectBegun { request, class, .. } => Some((request.clone(), *class)),
                _ => None,
            })
            .await;
        let settled = world
            .journal
            .wait(|event| match event {
                Event::EffectSettled {
                    status,
                    sent: Some(sent),
                    received: Some(received),
                    ..
                } => Some((*status, sent.bytes, received.bytes)),
                _ => None,
            })
            .await;
        (begun, settled)
    };
    assert_eq!(
        (begun.0.protocol.as_str(), begun.1),
        ("wss", protocol::EffectKind::Write)
    );
    assert_eq!(settled, (Some(101), 10, 10));
    assert_eq!(
        origin.seen()[0].header("sec-websocket-key"),
        Some("dGhlIHNhbXBsZSBub25jZQ==")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_names_methods_allows_no_websocket() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "methods = [\"GET\"]"),
        &[origin.port],
    );
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let answer = http.send(upgrade(origin.port)).await.unwrap();
    assert_eq!(answer.status(), 403);
    // The connection is one for HTTP still.
    drop(crate::client::Answer::of(answer).await);
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    assert!(origin.seen().iter().all(|seen| seen.uri != "/ws"));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_behind_a_refused_upgrade_are_requests_and_nothing_else() {
    let origin = Origin::plain().await;
    let _world = World::new(
        &rule("r", "a.test", &origin, "websocket = false"),
        &[origin.port],
    );
    let host = format!("Host: a.test:{}\r\n", origin.port);
    let stream = tokio::net::TcpStream::connect(door(origin.port))
        .await
        .unwrap();
    let bytes = format!(
        "GET /ws HTTP/1.1\r\n{host}Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nGET / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"
    );
    let answer = raw(stream, bytes.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 403 ") && answer.contains("HTTP/1.1 400 "),
        "{answer}"
    );
    assert!(origin.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_a_websocket_echoes_is_scrubbed() {
    let origin = Origin::tls(&["a.test"], true).await;
    let policy = format!(
        "[[secret]]\nname = \"token\"\nfrom = \"env:TOKEN\"\n{}",
        rule(
            "r",
            "a.test",
            &origin,
            "inject = [{ secret = \"token\", bearer = true }]"
        )
    );
    let world = World::new(&policy, &[origin.port]);
    world.secrets.set("token", "tok-0123456789abcdef");
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let mut request = upgrade(origin.port);
    request.headers_mut().insert(
        "sec-websocket-extensions",
        "permessage-deflate".parse().unwrap(),
    );
    let answer = http.send(request).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert!(
        origin.seen()[0]
            .header("sec-websocket-extensions")
            .is_none()
    );
    let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
    stream
        .write_all(b"\x81\x14tok-0123456789abcdef")
        .await
        .unwrap();
    let mut back = [0; 22];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"\x81\x14********************");
}
