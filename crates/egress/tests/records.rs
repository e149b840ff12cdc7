//! Answers that are recorded, and requests that get them.

use egress::Word;
use http::Version;
use protocol::{DenyReason, EffectKind, Event};

use crate::client::{Answer, Http};
use crate::origin::{LOOK, Origin, flood, rule, text};
use crate::world::{World, recorded};

/// Waits until an effect has ended, and returns why its answer is not recorded.
async fn settled(world: &World) -> Option<String> {
    let wait = world.journal.wait(|event| match event {
        Event::EffectSettled { unrecorded, .. } => Some(unrecorded.clone()),
        _ => None,
    });
    wait.await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_recorded_and_given_again_without_leaving() {
    for (version, upstream) in [(Version::HTTP_11, false), (Version::HTTP_2, true)] {
        let origin = Origin::tls(&["a.test"], upstream).await;
        let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        world.kept.say(Ok(Word::Recorded));
        let kind = [("content-type", "text/plain")];
        let answer = http
            .ask("POST", "a.test", origin.port, "/echo", &kind, text("body"))
            .await;
        assert_eq!(Answer::of(answer).await.text(), "body");
        // What the client has seen whole is recorded by then.
        let events = world.journal.events();
        let kept = recorded(&events).expect("no record");
        assert_eq!((kept.answer.status, &kept.body[..]), (200, &b"body"[..]));
        assert!(
            !kept
                .answer
                .headers
                .iter()
                .any(|(name, _)| name == "alt-svc"),
            "it is kept as the sandbox saw it: {:?}",
            kept.answer
        );
        let head = events.iter().find_map(|event| match event {
            Event::EffectBegun { head, class, .. } => Some((head.clone(), *class)),
            _ => None,
        });
        let asked = world.kept.asked();
        assert_eq!(head, Some((asked[0].head.clone(), EffectKind::Write)));

        world.kept.say(Ok(Word::Body { most: 4 }));
        world.kept.say(Ok(Word::Answered(kept)));
        let answer = http
            .ask("POST", "a.test", origin.port, "/echo", &kind, text("body"))
            .await;
        assert_eq!(Answer::of(answer).await.text(), "body");
        assert_eq!(origin.seen().len(), 1);
        let asked = world.kept.asked();
        assert_eq!(asked[1].head, asked[0].head);
        let sent = events.iter().find_map(|event| match event {
            Event::EffectSettled { sent, .. } => sent.clone(),
            _ => None,
        });
        assert!(sent.is_some() && asked[2].body == sent, "{asked:?}");

        // Taken in and not answered, the body leaves as it is.
        world.kept.say(Ok(Word::Body { most: 4 }));
        world.kept.say(Ok(Word::Recorded));
        let answer = http
            .ask("POST", "a.test", origin.port, "/echo", &[], text("else"))
            .await;
        assert_eq!(Answer::of(answer).await.text(), "else");
        assert_eq!(origin.seen().len(), 2);
        assert_ne!(world.kept.asked()[3].head, asked[0].head, "another type");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_differs_is_refused_in_words_and_does_not_leave() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    world.kept.say(Err("expected something else".to_owned()));
    let answer = http
        .ask("POST", "a.test", origin.port, "/sink", &[], text("x"))
        .await;
    let answer = Answer::of(answer).await;
    assert_eq!((answer.status, answer.denied_for()), (409, "diverged"));
    assert!(answer.text().contains("expected something else"));
    world.journal.denied(DenyReason::Diverged).await;

    // Of a body that is longer than the recorded one no more is taken in than shows that.
    world.kept.say(Ok(Word::Body { most: 10 }));
    world.kept.say(Err("another body".to_owned()));
    let answer = http
        .ask("POST", "a.test", origin.port, "/sink", &[], flood(1 << 20))
        .await;
    assert_eq!(Answer::of(answer).await.status, 409);
    let body = world.kept.asked()[2].body.clone().unwrap();
    assert!(body.bytes > 10 && body.bytes < 1 << 20 && body.digest.is_none());
    assert!(origin.seen().is_empty());

    // What only reads is not asked about.
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    assert_eq!(world.kept.asked().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_read_to_its_end_when_nobody_waits_for_it_any_more() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let origin = Origin::tls(&["a.test"], true).await;
        let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
        let events = origin.events();
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        world.kept.say(Ok(Word::Recorded));
        let answer = http
            .ask("POST", "a.test", origin.port, "/events", &[], text(""))
            .await;
        events.send("data: 1\n\n").unwrap();
        drop((answer, http));
        let ending = tokio::spawn({
            let egress = world.egress.clone();
            async move { egress.end_boot().await }
        });
        events.send("data: 2\n\n").unwrap();
        drop(events);
        ending.await.unwrap();
        let kept = recorded(&world.journal.events()).expect("no record");
        assert_eq!(&kept.body[..], b"data: 1\n\ndata: 2\n\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_recorded_says_why() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    world.kept.say(Ok(Word::Recorded));
    let path = format!("/flood?{}", 300 << 10);
    let answer = http
        .ask("POST", "a.test", origin.port, &path, &[], text(""))
        .await;
    assert_eq!(Answer::of(answer).await.body.len(), 300 << 10);
    let why = settled(&world).await.expect("it was recorded");
    assert!(why.contains("longer than"), "{why}");
    assert!(recorded(&world.journal.events()).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_boot_that_is_over_leaves() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    world.egress.end_boot().await;
    let request = http::Request::builder()
        .method("POST")
        .uri("/sink")
        .header("host", format!("a.test:{}", origin.port))
        .body(text("x"))
        .unwrap();
    assert!(http.send(request).await.is_err());
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_in_no_record() {
    let origin = Origin::tls(&["a.test"], true).await;
    let more = format!("{LOOK}\ninject = [{{ secret = \"s\", bearer = true }}]");
    let policy =
        rule("r", "a.test", &origin, &more) + "[[secret]]\nname = \"s\"\nfrom = \"env:S\"\n";
    let world = World::new(&policy, &[origin.port]);
    world.secrets.set("s", "very-secret-value");
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    world.kept.say(Ok(Word::Recorded));
    let answer = http
        .ask("POST", "a.test", origin.port, "/reflect", &[], text(""))
        .await;
    let seen = Answer::of(answer).await;
    let kept = recorded(&world.journal.events()).expect("no record");
    assert_eq!(kept.body, seen.body);
    assert!(
        kept.answer
            .headers
            .iter()
            .any(|(name, _)| name == "x-you-sent")
    );
    assert!(!String::from_utf8_lossy(&kept.body).contains("very-secret-value"));
    assert!(!world.written().contains("very-secret-value"));
}
