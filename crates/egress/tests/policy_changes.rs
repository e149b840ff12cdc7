//! A policy that becomes another while things are on their way.

use http::Version;
use http_body_util::BodyExt as _;
use protocol::Event;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::client::{Answer, Http, tls_over};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::{PATIENCE, World, door};

#[tokio::test(flavor = "multi_thread")]
async fn a_tighter_policy_ends_what_it_does_not_allow() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let origin = Origin::tls(&["a.test"], true).await;
        let policy = rule("r", "a.test", &origin, LOOK);
        let world = World::new(&policy, &[origin.port]);
        let events = origin.events();
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let mut body = http
            .ask("GET", "a.test", origin.port, "/events", &[], text(""))
            .await
            .into_body();
        events.send("data: 1\n\n").unwrap();
        assert!(
            timeout(PATIENCE, body.frame())
                .await
                .unwrap()
                .unwrap()
                .is_ok()
        );
        // The same rule goes on.
        world.set_policy(&policy);
        events.send("data: 2\n\n").unwrap();
        assert!(
            timeout(PATIENCE, body.frame())
                .await
                .unwrap()
                .unwrap()
                .is_ok()
        );
        world.set_policy("");
        let ended = timeout(PATIENCE, body.frame()).await.unwrap();
        assert!(ended.is_none_or(|frame| frame.is_err()));
        let error = world
            .journal
            .wait(|event| match event {
                Event::EffectSettled { error, .. } => error.clone(),
                _ => None,
            })
            .await;
        assert!(error.contains("policy"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_kept_is_judged_by_the_policy_of_each_request() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.status, 200);
    world.set_policy("");
    assert_eq!(http.get("a.test", origin.port, "/").await.status, 403);
    world.set_policy(&rule("again", "a.test", &origin, LOOK));
    assert_eq!(http.get("a.test", origin.port, "/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_end_with_their_rule() {
    let origin = Origin::tls(&["a.test"], true).await;
    let policy = rule("r", "a.test", &origin, "").replace("\"allow\"", "\"passthrough\"");
    let policy = policy[..policy.find("roots").unwrap()].to_owned();
    let world = World::new(&policy, &[origin.port]);
    let stream = tokio::net::TcpStream::connect(door(origin.port))
        .await
        .unwrap();
    let mut stream = tls_over(&origin.roots, stream, "a.test", &["http/1.1"])
        .await
        .unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", origin.port);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut some = [0; 15];
    stream.read_exact(&mut some).await.unwrap();
    assert_eq!(&some, b"HTTP/1.1 200 OK");
    world.set_policy("");
    let mut rest = Vec::new();
    // With or without goodbye: it ends.
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .unwrap(),
    );
    let error = world
        .journal
        .wait(|event| match event {
            Event::EffectSettled { error, .. } => error.clone(),
            _ => None,
        })
        .await;
    assert!(error.contains("policy"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_for_a_person_is_judged_again() {
    let origin = Origin::tls(&["a.test"], true).await;
    let asking = rule("careful", "a.test", &origin, "").replace("\"allow\"", "\"ask\"");
    let world = World::new(&asking, &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let sent = http.ask("GET", "a.test", origin.port, "/", &[], text(""));
    let answered = async {
        let (_, answer) = world.asked().await;
        world.set_policy("");
        answer.send(egress::Approval::Allowed(None)).unwrap();
    };
    let (answer, ()) = tokio::join!(sent, answered);
    assert_eq!(Answer::of(answer).await.status, 403);
    assert!(origin.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_refused_can_be_used_once_the_policy_allows_it() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let origin = Origin::tls(&["a.test"], true).await;
        let world = World::new("", &[origin.port]);
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        assert_eq!(http.get("a.test", origin.port, "/").await.status, 403);
        world.set_policy(&rule("r", "a.test", &origin, LOOK));
        assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    }
}
