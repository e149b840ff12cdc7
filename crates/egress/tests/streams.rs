//! Bodies that are not collected: event streams, trailers, sizes beyond memory.

use bytes::Bytes;
use http::Version;
use http_body_util::BodyExt as _;
use protocol::{EffectKind, Event};
use tokio::time::timeout;

use crate::client::{Answer, Http};
use crate::origin::{LOOK, Origin, flood, rule, text};
use crate::world::{PATIENCE, World};

#[tokio::test(flavor = "multi_thread")]
async fn each_event_of_a_stream_arrives_before_the_next_is_sent() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let origin = Origin::tls(&["a.test"], true).await;
        let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
        let events = origin.events();
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let answer = http
            .ask("GET", "a.test", origin.port, "/events", &[], text(""))
            .await;
        let mut body = answer.into_body();
        for event in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
            events.send(event).unwrap();
            // The origin sends nothing more until this has come: nothing on the way waits for more.
            let frame = timeout(PATIENCE, body.frame())
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            assert_eq!(frame.into_data().unwrap(), event);
        }
        drop(events);
        assert!(body.collect().await.unwrap().to_bytes().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_injected_secret_does_not_hold_events_back() {
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
    let events = origin.events();
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http
        .ask("GET", "a.test", origin.port, "/events", &[], text(""))
        .await;
    let mut body = answer.into_body();
    for event in ["data: {\"token\":1}\n\n", "data: tok\n\n", "data: end\n\n"] {
        events.send(event).unwrap();
        let frame = timeout(PATIENCE, body.frame())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_pass_and_grpc_needs_http2() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let headers = [("content-type", "application/grpc"), ("te", "trailers")];
    let answer = http
        .ask(
            "POST",
            "a.test",
            origin.port,
            "/trailers",
            &headers,
            text("call"),
        )
        .await;
    let collected = answer.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), "message");
    let seen = &origin.seen()[0];
    assert_eq!(
        (seen.version, seen.header("te")),
        (Version::HTTP_2, Some("trailers"))
    );

    let old = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &old, LOOK), &[old.port]);
    let mut http = Http::open(&world, &old, "a.test", Version::HTTP_2).await;
    let answer = http
        .ask(
            "POST",
            "a.test",
            old.port,
            "/trailers",
            &headers,
            text("call"),
        )
        .await;
    // As gRPC says that: unavailable.
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["grpc-status"], "14");
    assert_eq!(answer.headers()["x-durable-deny"], "upstream");
    assert!(old.seen().is_empty());
    // Anything else is translated.
    assert_eq!(http.get("a.test", old.port, "/").await.text(), "hello");
    assert_eq!(old.seen()[0].version, Version::HTTP_11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_echoes_while_it_is_sent() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let origin = Origin::tls(&["a.test"], true).await;
        let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let (send, sent) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let frames = futures_util::stream::unfold(sent, |mut sent| async {
            let bytes = sent.recv().await?;
            Some((Ok(hyper::body::Frame::data(bytes)), sent))
        });
        let body = http_body_util::StreamBody::new(frames).boxed_unsync();
        let answer = http
            .ask("POST", "a.test", origin.port, "/echo", &[], body)
            .await;
        assert!(answer.headers().get("alt-svc").is_none());
        let mut back = answer.into_body();
        for piece in ["one", "two"] {
            send.send(Bytes::from(piece)).unwrap();
            let frame = timeout(PATIENCE, back.frame())
                .await
                .unwrap()
                .unwrap()
                .unwrap();
            assert_eq!(frame.into_data().unwrap(), piece);
        }
        drop(send);
        assert!(back.collect().await.unwrap().to_bytes().is_empty());
        let (sent, received) = world
            .journal
            .wait(|event| match event {
                Event::EffectSettled {
                    sent: Some(sent),
                    received: Some(received),
                    error: None,
                    ..
                } => Some((sent.clone(), received.clone())),
                _ => None,
            })
            .await;
        assert_eq!((sent.bytes, &sent), (6, &received));
        assert_eq!(
            sent.digest.unwrap(),
            blake3::hash(b"onetwo").to_hex().as_str()
        );
    }
}

/// Peak memory of this process, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_mebibytes_pass_each_way_in_little_memory() {
    const SIZE: usize = 300 << 20;
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let before = peak();
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let sent = http
            .ask("POST", "a.test", origin.port, "/sink", &[], flood(SIZE))
            .await;
        assert_eq!(Answer::of(sent).await.text(), SIZE.to_string());
        let answer = http
            .ask(
                "GET",
                "a.test",
                origin.port,
                &format!("/flood?{SIZE}"),
                &[],
                text(""),
            )
            .await;
        let mut body = answer.into_body();
        let mut received = 0;
        while let Some(frame) = body.frame().await {
            received += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        assert_eq!(received, SIZE);
    }
    // Client, gateway, origin and other tests are all in this process.
    assert!(
        peak() - before < 128,
        "{} MiB before, {} MiB after",
        before,
        peak()
    );
    let begun = world
        .journal
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::EffectBegun { class, .. } => Some(class),
            _ => None,
        });
    assert_eq!(
        begun.collect::<Vec<_>>(),
        [
            EffectKind::Write,
            EffectKind::Read,
            EffectKind::Write,
            EffectKind::Read
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_of_http2_are_one_header_in_http1() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let answer = http
        .ask("GET", "a.test", origin.port, "/", &cookies, text(""))
        .await;
    assert_eq!(answer.status(), 200);
    let seen = &origin.seen()[0];
    assert_eq!(
        seen.headers.get_all("cookie").iter().collect::<Vec<_>>(),
        ["a=1; b=2"]
    );
}

/// Memory of this process at this moment, in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_stay_open_side_by_side() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let before = resident();
    let mut open = Vec::new();
    for _ in 0..8 {
        let http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
        let Http::Two(sender) = http else {
            panic!("HTTP/2 was asked for")
        };
        let asked = (0..125).map(|_| {
            let mut http = Http::Two(sender.clone());
            let port = origin.port;
            tokio::spawn(async move {
                let mut body = http
                    .ask("GET", "a.test", port, "/quiet", &[], text(""))
                    .await
                    .into_body();
                let frame = timeout(PATIENCE, body.frame())
                    .await
                    .unwrap()
                    .unwrap()
                    .unwrap();
                assert_eq!(frame.into_data().unwrap(), "data: 1\n\n");
                body
            })
        });
        open.extend(asked.collect::<Vec<_>>());
    }
    let mut bodies = Vec::new();
    for asked in open {
        bodies.push(asked.await.unwrap());
    }
    assert_eq!(bodies.len(), 1000);
    // A hundred on each connection, and no crowd of connections for those who came at once.
    assert!(
        (10..=12).contains(&origin.connections()),
        "{}",
        origin.connections()
    );
    // Client, gateway and origin together.
    let taken = resident().saturating_sub(before);
    println!("a thousand open streams take {taken} MiB in client, gateway and origin");
    assert!(taken < 96, "{taken} MiB");
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
}
