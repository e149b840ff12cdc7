//! Secrets: put in where the policy says so, and found nowhere else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Version;
use protocol::{DenyReason, Event};
use tokio::net::TcpStream;

use crate::client::{Answer, Http, raw};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::{World, door};

const VALUE: &str = "ghp_realRealReal0123456789";
const FAKE: &str = "ghp_fakeFakeFake0123456789";

fn with_secret(rule: &str, more: &str) -> String {
    format!("[[secret]]\nname = \"token\"\nfrom = \"env:TOKEN\"\n{more}\n{rule}")
}

async fn world(inject: &str, more: &str) -> (Origin, World) {
    let origin = Origin::tls(&["a.test"], true).await;
    let inject = format!("inject = [{{ secret = \"token\", {inject} }}]");
    let policy = with_secret(&rule("r", "a.test", &origin, &inject), more);
    let world = World::new(&policy, &[origin.port]);
    world.secrets.set("token", VALUE);
    (origin, world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_put_where_the_rule_says_and_journaled_by_its_fingerprint() {
    for (inject, header, expected) in [
        ("bearer = true", "authorization", format!("Bearer {VALUE}")),
        (
            "basic = \"x-access-token\"",
            "authorization",
            format!(
                "Basic {}",
                STANDARD.encode(format!("x-access-token:{VALUE}"))
            ),
        ),
        ("header = \"x-api-key\"", "x-api-key", VALUE.to_owned()),
        (
            "header = \"x-api-key\", format = \"token {}\"",
            "x-api-key",
            format!("token {VALUE}"),
        ),
    ] {
        let (origin, world) = world(inject, "").await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let mut http = Http::open(&world, &origin, "a.test", version).await;
            // What the client has there is a dummy, and is gone.
            let headers = [(header, "dummy"), ("accept-encoding", "gzip")];
            let answer = http
                .ask("GET", "a.test", origin.port, "/x", &headers, text(""))
                .await;
            assert_eq!(answer.status(), 200);
            drop(Answer::of(answer).await);
            let seen = origin.seen().pop().unwrap();
            assert_eq!(seen.header(header), Some(expected.as_str()));
            assert_eq!(seen.headers.get_all(header).iter().count(), 1);
            assert_eq!(seen.header("accept-encoding"), Some("identity"));
        }
        let used = world
            .journal
            .wait(|event| match event {
                Event::EffectBegun { secrets, .. } => secrets.first().cloned(),
                _ => None,
            })
            .await;
        assert_eq!((used.name.as_str(), used.fingerprint.len()), ("token", 12));
        assert!(!world.written().contains(VALUE));
    }
    let (origin, world) = world("query = \"key\"", "").await;
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    http.get("a.test", origin.port, "/x?a=1&key=dummy&b=2")
        .await;
    assert!(
        origin.seen()[0]
            .uri
            .ends_with(&format!("/x?a=1&b=2&key={VALUE}"))
    );
    assert!(!world.written().contains(VALUE));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_secret_is_not_asked_for_in_slices() {
    let (origin, world) = world("bearer = true", "").await;
    let other = Origin::tls(&["b.test"], true).await;
    let without = World::new(&rule("r", "b.test", &other, LOOK), &[other.port]);
    let headers = [("range", "bytes=3-5"), ("if-range", "\"e\"")];
    for (world, origin, name, expected) in [
        (&world, &origin, "a.test", None),
        (&without, &other, "b.test", Some("bytes=3-5")),
    ] {
        let mut http = Http::open(world, origin, name, Version::HTTP_2).await;
        let answer = http
            .ask("GET", name, origin.port, "/x", &headers, text(""))
            .await;
        assert_eq!(answer.status(), 200);
        assert_eq!(origin.seen()[0].header("range"), expected);
        assert_eq!(
            origin.seen()[0].header("if-range").is_some(),
            expected.is_some()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_says_the_secret_is_scrubbed() {
    let (origin, world) = world("bearer = true", "").await;
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let answer = http.get("a.test", origin.port, "/reflect").await;
        assert_eq!(answer.status, 200);
        assert!(!answer.text().contains(VALUE), "{}", answer.text());
        assert!(
            answer
                .text()
                .starts_with(&format!("Bearer {}", "*".repeat(VALUE.len()))),
            "{}",
            answer.text()
        );
        assert!(
            !format!("{:?}", answer.headers).contains(VALUE),
            "{:?}",
            answer.headers
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_cannot_be_had_stops_the_request() {
    let (origin, world) = world("bearer = true", "").await;
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.status, 200);
    world.secrets.take("token");
    let answer = http.get("a.test", origin.port, "/").await;
    assert_eq!((answer.status, answer.denied_for()), (403, "secret"));
    // Another version of it is used by the next request, over another connection.
    world.secrets.set("token", "ghp_rotated0123456789");
    assert_eq!(http.get("a.test", origin.port, "/").await.status, 200);
    let seen = origin.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[1].header("authorization"),
        Some("Bearer ghp_rotated0123456789")
    );
    assert_eq!(origin.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_is_replaced_in_its_place_and_refused_everywhere_else() {
    let inject = "placeholder = [\"header:authorization\", \"query:key\"]";
    let (origin, world) = world(inject, "placeholder = { env = \"TOKEN\" }").await;
    world.secrets.show("token", FAKE);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let port = origin.port;
    let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("me:{password}")));
    for (given, expected) in [
        (format!("token {FAKE}"), format!("token {VALUE}")),
        (basic(FAKE), basic(VALUE)),
        ("Bearer own".to_owned(), "Bearer own".to_owned()),
    ] {
        let answer = http
            .ask(
                "GET",
                "a.test",
                port,
                "/",
                &[("authorization", &given)],
                text(""),
            )
            .await;
        assert_eq!(answer.status(), 200);
        assert_eq!(
            origin.seen().pop().unwrap().header("authorization"),
            Some(expected.as_str())
        );
    }
    http.get("a.test", port, &format!("/?key={FAKE}&x=1")).await;
    assert!(
        origin
            .seen()
            .pop()
            .unwrap()
            .uri
            .ends_with(&format!("/?x=1&key={VALUE}"))
    );
    let reached = origin.seen().len();
    for (path, header, body) in [
        ("/".to_owned(), ("user-agent", FAKE.to_owned()), ""),
        (
            "/".to_owned(),
            ("referer", format!("https://a.test/{FAKE}")),
            "",
        ),
        ("/".to_owned(), ("cookie", format!("a={FAKE}")), ""),
        ("/".to_owned(), ("x-auth", basic(FAKE)), ""),
        (format!("/{FAKE}"), ("accept", "*/*".to_owned()), ""),
        (format!("/?other={FAKE}"), ("accept", "*/*".to_owned()), ""),
    ] {
        let answer = Answer::of(
            http.ask(
                "GET",
                "a.test",
                port,
                &path,
                &[(header.0, &header.1)],
                text(body),
            )
            .await,
        )
        .await;
        assert_eq!(
            (answer.status, answer.denied_for()),
            (403, "placeholder"),
            "{path} {header:?}"
        );
        assert!(answer.text().contains("`token`"), "{}", answer.text());
    }
    assert_eq!(origin.seen().len(), reached);
    let answer = http
        .ask(
            "POST",
            "a.test",
            port,
            "/sink",
            &[],
            text(format!("{{\"note\":\"{FAKE}\"}}")),
        )
        .await;
    let answer = Answer::of(answer).await;
    assert_eq!((answer.status, answer.denied_for()), (403, "placeholder"));
    let written = world.written();
    assert!(
        !written.contains(VALUE) && !written.contains(FAKE),
        "{written}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_secret_lets_no_other_credential_through() {
    let (origin, world) = world("bearer = true", "require = true").await;
    world.secrets.show("token", FAKE);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let port = origin.port;
    let own = format!("Bearer {FAKE}");
    for (headers, status) in [
        (vec![], 200),
        (vec![("authorization", own.as_str())], 200),
        (vec![("authorization", "Bearer ghp_stolen")], 403),
    ] {
        let answer = http
            .ask("GET", "a.test", port, "/", &headers, text(""))
            .await;
        assert_eq!(answer.status(), status, "{headers:?}");
    }
    let (_, message) = world.journal.denied(DenyReason::Secret).await;
    assert!(!message.contains("stolen"), "{message}");
    assert_eq!(origin.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_tls_gets_no_secret() {
    let (origin, _world) = world("bearer = true", "").await;
    let stream = TcpStream::connect(door(origin.port)).await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a.test:{}\r\nConnection: close\r\n\r\n",
        origin.port
    );
    let answer = raw(stream, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(origin.seen().is_empty() && origin.connections() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_aws_is_signed_anew() {
    let (origin, world) = world(
        "sigv4 = { service = \"s3\", region = \"eu-central-1\" }",
        "",
    )
    .await;
    world
        .secrets
        .set("token", "AKIAREALREALREAL:secretSecretSecretKey");
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let fake = "AWS4-HMAC-SHA256 Credential=AKIAFAKE/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=00";
    let headers = [
        ("authorization", fake),
        ("x-amz-date", "20260101T000000Z"),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ];
    let answer = http
        .ask(
            "PUT",
            "a.test",
            origin.port,
            "/bucket/key",
            &headers,
            text("data"),
        )
        .await;
    assert_eq!(answer.status(), 200);
    let seen = origin.seen().pop().unwrap();
    let signed = seen.header("authorization").unwrap();
    assert!(signed.contains("Credential=AKIAREALREALREAL/"), "{signed}");
    assert!(
        signed.contains("/eu-central-1/s3/aws4_request") && !signed.contains("Signature=00"),
        "{signed}"
    );
    assert!(!format!("{seen:?}").contains("secretSecretSecretKey"));
    let streaming = [
        ("authorization", fake),
        ("x-amz-date", "20260101T000000Z"),
        ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
    ];
    let answer = http
        .ask(
            "PUT",
            "a.test",
            origin.port,
            "/bucket/key",
            &streaming,
            text("data"),
        )
        .await;
    assert_eq!(answer.status(), 403);
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_rules_connection_is_not_anothers() {
    let origin = Origin::tls(&["a.test"], true).await;
    let policy = with_secret(
        &(rule(
            "with",
            "a.test",
            &origin,
            "paths = [\"/with/**\"]\ninject = [{ secret = \"token\", bearer = true }]",
        ) + &rule("without", "a.test", &origin, LOOK)),
        "",
    );
    let world = World::new(&policy, &[origin.port]);
    world.secrets.set("token", VALUE);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    for path in ["/with/x", "/y", "/with/z", "/y"] {
        assert_eq!(http.get("a.test", origin.port, path).await.status, 200);
    }
    for seen in origin.seen() {
        assert_eq!(
            seen.header("authorization").is_some(),
            seen.uri.contains("/with/"),
            "{seen:?}"
        );
    }
    assert_eq!(origin.connections(), 2);
}
