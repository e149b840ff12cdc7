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
