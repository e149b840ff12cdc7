//! Requests that wait for a person.

use egress::Approval;
use http::Version;
use protocol::DenyReason;

use crate::client::{Answer, Http};
use crate::origin::{Origin, rule, text};
use crate::world::World;

fn asking(origin: &Origin, more: &str) -> String {
    rule("careful", "a.test", origin, more).replace("\"allow\"", "\"ask\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_held_until_a_person_says_so() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&asking(&origin, "timeout = \"60s\""), &[origin.port]);
    let port = origin.port;
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let mut digests = Vec::new();
    for (path, approval, status) in [
        ("/a", Approval::Allowed(None), 200),
        (
            "/a",
            Approval::Refused {
                why: "not today".into(),
            },
            403,
        ),
        ("/b", Approval::Allowed(None), 200),
    ] {
        let sent = http.ask("POST", "a.test", port, path, &[], text("x"));
        let answered = async {
            let (ask, answer) = world.asked().await;
            assert!(origin.seen().iter().all(|seen| seen.uri != path) || path == "/a");
            answer.send(approval).unwrap();
            ask
        };
        let (answer, ask) = tokio::join!(sent, answered);
        assert_eq!(
            (ask.rule.as_str(), ask.request.path.as_deref()),
            ("careful", Some(path))
        );
        assert_eq!(ask.timeout.as_secs(), 60);
        digests.push(ask.digest);
        let answer = Answer::of(answer).await;
        assert_eq!(answer.status, status);
        if status == 403 {
            assert_eq!(answer.denied_for(), "approval");
            assert!(answer.text().contains("not today"));
        }
    }
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
    world.journal.denied(DenyReason::Approval).await;
    assert_eq!(origin.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_answers_and_nothing_leaves() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&asking(&origin, "timeout = \"1s\""), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let answer = http.get("a.test", origin.port, "/").await;
    assert_eq!((answer.status, answer.denied_for()), (403, "approval"));
    assert!(origin.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_is_for_the_head_and_the_body_that_were_shown() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&asking(&origin, "timeout = \"60s\""), &[origin.port]);
    let port = origin.port;
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_11).await;
    let long = "x".repeat(65 << 10);
    let mut asked = Vec::new();
    for (kind, agent, body) in [
        ("text/plain", "one", "pay 1"),
        ("text/plain", "two", "pay 1"),
        ("text/plain", "one", "pay 9"),
        ("text/html", "one", "pay 1"),
        ("text/plain", "one", "\u{1b}[2Jok"),
        ("text/plain", "one", &long),
    ] {
        let headers = [("content-type", kind), ("user-agent", agent)];
        let sent = http.ask(
            "POST",
            "a.test",
            port,
            "/echo",
            &headers,
            text(body.to_owned()),
        );
        let answered = async {
            let (ask, answer) = world.asked().await;
            answer.send(Approval::Allowed(None)).unwrap();
            ask
        };
        let (answer, ask) = tokio::join!(sent, answered);
        // What was read before goes on as it came.
        assert_eq!(Answer::of(answer).await.text(), body);
        asked.push(ask);
    }
    let shown = |number: usize| asked[number].body.clone().unwrap();
    assert_eq!(shown(0).bytes, Some(5));
    assert_eq!(shown(0).beginning.as_deref(), Some("pay 1"));
    assert_eq!(
        shown(0).digest,
        Some(blake3::hash(b"pay 1").to_hex().to_string())
    );
    assert_eq!(shown(4).beginning.as_deref(), Some("\\u{1b}[2Jok"));
    assert_eq!(
        (shown(5).bytes, shown(5).digest, shown(5).beginning),
        (Some(65 << 10), None, None)
    );
    let digest = |number: usize| &asked[number].digest;
    assert_eq!(digest(0), digest(1));
    for other in 2..6 {
        assert_ne!(digest(0), digest(other), "{other}");
    }
}
