//! What the journal says of what left.

use http::Version;
use protocol::{EffectKind, Event};
use std::sync::atomic::Ordering;

use crate::client::{Answer, Http};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_journaled_from_its_beginning_to_its_end() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http
        .ask(
            "POST",
            "a.test",
            origin.port,
            "/sink?x=1",
            &[],
            text("body"),
        )
        .await;
    assert_eq!(Answer::of(answer).await.text(), "4");
    let (begun, request) = world
        .journal
        .wait(|event| match event {
            Event::EffectBegun {
                effect,
                request,
                class: EffectKind::Write,
                rule,
                secrets,
                head: None,
            } if rule == "r" && secrets.is_empty() => Some((effect.clone(), request.clone())),
            _ => None,
        })
        .await;
    assert_eq!(request.op.unwrap().as_str(), "build-1");
    assert_eq!(
        (
            request.protocol.as_str(),
            request.host.as_str(),
            request.port
        ),
        ("https", "a.test", origin.port)
    );
    assert_eq!(
        (request.method.as_deref(), request.path.as_deref()),
        (Some("POST"), Some("/sink?x=1"))
    );
    let settled = world
        .journal
        .wait(|event| match event {
            Event::EffectSettled {
                effect,
                status,
                sent: Some(sent),
                received: Some(received),
                error,
                ..
            } if *effect == begun => Some((*status, sent.bytes, received.bytes, error.clone())),
            _ => None,
        })
        .await;
    assert_eq!(settled, (Some(200), 4, 1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_leaves_that_cannot_be_journaled() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    world.journal.broken.store(true, Ordering::SeqCst);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    for method in ["GET", "POST"] {
        let answer = http
            .ask(method, "a.test", origin.port, "/", &[], text(""))
            .await;
        assert_eq!(answer.status(), 503);
    }
    assert!(origin.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_broken_off_is_told_as_that() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let events = origin.events();
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http
        .ask("GET", "a.test", origin.port, "/events", &[], text(""))
        .await;
    events.send("data: 1\n\n").unwrap();
    drop(answer);
    let error = world
        .journal
        .wait(|event| match event {
            Event::EffectSettled { error, .. } => Some(error.clone()),
            _ => None,
        })
        .await;
    assert!(error.unwrap().contains("client went away"));
    world
        .egress
        .settle_broken(vec!["e1".parse().unwrap()])
        .await
        .unwrap();
    let lost = world
        .journal
        .wait(|event| match event {
            Event::EffectSettled { effect, error, .. } if effect.as_str() == "e1" => error.clone(),
            _ => None,
        })
        .await;
    assert!(lost.contains("may or may not"), "{lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_everything_and_journals_it() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let events = origin.events();
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http
        .ask("GET", "a.test", origin.port, "/events", &[], text(""))
        .await;
    events.send("data: 1\n\n").unwrap();
    world.egress.close().await;
    let settled = world
        .journal
        .events()
        .iter()
        .any(|event| matches!(event, Event::EffectSettled { error: Some(_), .. }));
    assert!(settled, "{:?}", world.journal.events());
    drop(answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_passed_on_is_an_effect_too() {
    let origin = Origin::tls(&["a.test"], true).await;
    let policy = rule("r", "a.test", &origin, "").replace("\"allow\"", "\"passthrough\"");
    let policy = &policy[..policy.find("roots").unwrap()];
    let world = World::new(policy, &[origin.port]);
    // The origin's own certificate is seen: nothing was opened.
    let stream = tokio::net::TcpStream::connect(crate::world::door(origin.port))
        .await
        .unwrap();
    let stream = crate::client::tls_over(&origin.roots, stream, "a.test", &["h2"])
        .await
        .unwrap();
    let mut http = Http::over(stream, Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    drop(http);
    let (request, sent) = {
        let request = world
            .journal
            .wait(|event| match event {
                Event::EffectBegun { request, .. } => Some(request.clone()),
                _ => None,
            })
            .await;
        let sent = world
            .journal
            .wait(|event| match event {
                Event::EffectSettled {
                    sent: Some(sent), ..
                } => Some(sent.bytes),
                _ => None,
            })
            .await;
        (request, sent)
    };
    assert_eq!((request.protocol.as_str(), request.method), ("tls", None));
    assert!(sent > 300, "{sent} bytes are no handshake and request");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_kept_for_the_next_request() {
    for (client, upstream) in [
        (Version::HTTP_11, false),
        (Version::HTTP_2, true),
        (Version::HTTP_2, false),
    ] {
        let origin = Origin::tls(&["a.test"], upstream).await;
        let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
        for _ in 0..3 {
            let mut http = Http::open(&world, &origin, "a.test", client).await;
            for _ in 0..3 {
                assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
            }
        }
        assert!(
            origin.connections() <= 3,
            "{client:?}: {}",
            origin.connections()
        );
        assert_eq!(origin.seen().len(), 9);
    }
}
