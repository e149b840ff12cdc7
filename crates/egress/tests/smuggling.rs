//! Bytes that two readers could take for different requests (the table of the facts, 4.4).

use http::Version;
use protocol::DenyReason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Http, raw, tls};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::{World, door};

#[tokio::test(flavor = "multi_thread")]
async fn odd_requests_are_refused_before_anybody_parses_them() {
    let origin = Origin::plain().await;
    let world = World::new(&rule("r", "a.test", &origin, ""), &[origin.port]);
    let host = format!("Host: a.test:{}\r\n", origin.port);
    for request in [
        format!(
            "POST / HTTP/1.1\r\n{host}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ),
        format!(
            "POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"
        ),
        format!("POST / HTTP/1.1\r\n{host}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
        format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: gzip\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}{host}\r\n"),
        format!("GET / HTTP/1.1\r\n{host}Host: evil.test\r\n\r\n"),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\n{host}X: a\r\n folded\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}X : a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}X: a\0b\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{host}X: a\rb\r\n\r\n"),
        format!("GET / HTTP/1.1\n{}\n", host.replace('\r', "")),
        format!("GET /a b HTTP/1.1\r\n{host}\r\n"),
    ] {
        let stream = TcpStream::connect(door(origin.port)).await.unwrap();
        let answer = raw(stream, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer}");
        assert!(answer.contains("x-durable-deny: protocol\r\n"), "{answer}");
        assert!(answer.contains("\"type\":\"egress_denied\""), "{answer}");
    }
    world.journal.denied(DenyReason::Protocol).await;
    assert!(origin.seen().is_empty() && origin.connections() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_inside_of_tls_and_for_a_second_request() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let stream = tls(&world, door(origin.port), "a.test", &["http/1.1"])
        .await
        .unwrap();
    let port = origin.port;
    let requests = format!(
        "POST /sink HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    );
    let smuggled = format!(
        "POST / HTTP/1.1\r\nHost: a.test:{port}\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let mut http = Http::over(
        tls(&world, door(port), "a.test", &["http/1.1"])
            .await
            .unwrap(),
        Version::HTTP_11,
    )
    .await;
    let first = http
        .ask("POST", "a.test", port, "/sink", &[], text("abc"))
        .await;
    assert_eq!(first.status(), 200);
    let answer = raw(stream, format!("{requests}{smuggled}").as_bytes()).await;
    assert!(answer.contains("HTTP/1.1 400 "), "{answer}");
    assert!(
        origin.seen().iter().all(|seen| seen.uri == "/sink"),
        "{:?}",
        origin.seen()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_chunk_is_the_clients_fault_and_told_once() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let port = origin.port;
    for bad in ["zz\r\n", "3\r\nabcd\r\n", "3;\n\r\n"] {
        let stream = tls(&world, door(port), "a.test", &["http/1.1"])
            .await
            .unwrap();
        let request = format!(
            "POST /sink HTTP/1.1\r\nHost: a.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n{bad}"
        );
        let answer = raw(stream, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{bad:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
        assert!(answer.contains("the chunked body is malformed"), "{answer}");
    }
    world.journal.denied(DenyReason::Protocol).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_offered_to_be_switched_to_is_not_passed_on() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let port = origin.port;
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let headers = [
        ("upgrade", "h2c"),
        ("connection", "upgrade, http2-settings"),
        ("http2-settings", "AAMAAABkAAQ"),
    ];
    for _ in 0..2 {
        let answer = http
            .ask("GET", "a.test", port, "/", &headers, text(""))
            .await;
        assert_eq!(answer.status(), 200);
        drop(crate::client::Answer::of(answer).await);
    }
    for seen in origin.seen() {
        assert!(
            seen.header("upgrade").is_none() && seen.header("http2-settings").is_none(),
            "{seen:?}"
        );
    }
    let stream = tls(&world, door(port), "a.test", &["http/1.1"])
        .await
        .unwrap();
    let inner = format!(
        "CONNECT a.test:{port} HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\r\n"
    );
    let answer = raw(stream, inner.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_cannot_change_the_protocol_by_itself() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nsmuggled";
            stream.write_all(answer).await.unwrap();
        }
    });
    let policy = format!(
        "[[rule]]\nname = \"r\"\naction = \"allow\"\nhosts = [\"a.test\"]\nports = [{port}]\naddresses = [\"127.0.0.1\"]\nplain = true\n"
    );
    let _world = World::new(&policy, &[port]);
    let stream = TcpStream::connect(door(port)).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a.test:{port}\r\nUpgrade: h2c\r\nConnection: upgrade, close\r\n\r\n"
    );
    let answer = raw(stream, request.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && !answer.contains("smuggled"),
        "{answer}"
    );
}
