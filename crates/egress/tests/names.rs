//! Who is meant: every name that a connection and its requests give must be the same, and no address counts.

use http::{Request, Version};
use protocol::DenyReason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Answer, Http, raw, tls, tls_over};
use crate::origin::{LOOK, Origin, rule, text};
use crate::world::{World, door};

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_policy_refuses_in_words() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new("", &[origin.port]);
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        let answer = http.get("a.test", origin.port, "/secret").await;
        assert_eq!((answer.status, answer.denied_for()), (403, "no_rule"));
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["type"], "egress_denied");
        assert!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .contains("a.test"),
            "{body}"
        );
    }
    let (request, _) = world.journal.denied(DenyReason::NoRule).await;
    assert_eq!(request.op.unwrap().as_str(), "build-1");
    assert_eq!(request.path.as_deref(), Some("/secret"));
    assert_eq!(origin.connections(), 0);
    assert!(
        world.leads.asked().is_empty(),
        "a refused name is not asked for outside"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fronting_is_refused_also_on_a_later_stream() {
    let origin = Origin::tls(&["a.test", "evil.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let mut http = Http::open(&world, &origin, "a.test", version).await;
        assert_eq!(http.get("a.test", origin.port, "/").await.status, 200);
        let answer = http.get("evil.test", origin.port, "/").await;
        assert_eq!((answer.status, answer.denied_for()), (421, "mismatch"));
        let other_port = http.get("a.test", 1, "/").await;
        assert_eq!(other_port.status, 421);
        assert_eq!(http.get("A.Test.", origin.port, "/").await.status, 200);
    }
    let (request, _) = world.journal.denied(DenyReason::Mismatch).await;
    assert_eq!(request.host, "a.test");
    assert!(
        origin
            .seen()
            .iter()
            .all(|seen| !format!("{seen:?}").contains("evil"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn host_and_authority_of_one_stream_must_agree() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let request = Request::builder()
        .version(Version::HTTP_2)
        .uri(format!("https://a.test:{}/", origin.port))
        .header("host", "evil.test")
        .body(text(""))
        .unwrap();
    let answer = Answer::of(http.send(request).await.unwrap()).await;
    assert_eq!(answer.status, 421);
    assert!(origin.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_name_counts_and_not_the_address_dialled() {
    // The door is at 127.0.0.2; the name leads to 127.0.0.1, where the origin is.
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", origin.port, "/").await.text(), "hello");
    // And where the name leads elsewhere, the address of the connection is no way around that.
    world.leads.set("a.test", &["10.0.0.1"]);
    world.egress.set_policy(std::sync::Arc::new(
        policy::Policy::parse(&rule("other", "a.test", &origin, LOOK)).unwrap(),
    ));
    let answer = http.get("a.test", origin.port, "/").await;
    assert_eq!((answer.status, answer.denied_for()), (403, "address"));
    assert!(answer.text().contains("10.0.0.1"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_nobody_named_are_not_dialled() {
    let origin = Origin::tls(&["a.test"], true).await;
    let bare = format!(
        "[[rule]]\nname = \"r\"\naction = \"allow\"\nhosts = [\"*.evil.test\"]\nports = [{}]\npaths = [\"/**\"]\n",
        origin.port
    );
    let world = World::new(&bare, &[origin.port]);
    for (number, address) in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fe80::1",
        "fd00:ec2::254",
        "198.18.0.1",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("n{number}.evil.test");
        world.leads.set(&name, &[address]);
        let stream = tls(&world, door(origin.port), &name, &["http/1.1"])
            .await
            .unwrap();
        let answer = Http::over(stream, Version::HTTP_11)
            .await
            .get(&name, origin.port, "/")
            .await;
        assert_eq!(
            (answer.status, answer.denied_for()),
            (403, "address"),
            "{address}"
        );
    }
    assert_eq!(origin.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_judged_by_each_requests_host() {
    let origin = Origin::plain().await;
    let _world = World::new(&rule("r", "a.test", &origin, ""), &[origin.port]);
    let port = origin.port;
    let stream = TcpStream::connect(door(port)).await.unwrap();
    let two = format!(
        "GET / HTTP/1.1\r\nHost: a.test:{port}\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test:{port}\r\nConnection: close\r\n\r\n"
    );
    let answer = raw(stream, two.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("hello"),
        "{answer}"
    );
    assert!(
        answer.contains("HTTP/1.1 403") && answer.contains("x-durable-deny: no_rule"),
        "{answer}"
    );
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxys_client_is_judged_alike() {
    let origin = Origin::tls(&["a.test"], true).await;
    let plain = Origin::plain().await;
    let policy = rule("r", "a.test", &origin, LOOK) + &rule("p", "p.test", &plain, "");
    let world = World::new(&policy, &[]);
    let port = origin.port;

    let stream = connect(&world, &format!("a.test:{port}")).await;
    let stream = tls_over(world.authority.cert_pem(), stream, "a.test", &["h2"])
        .await
        .unwrap();
    let mut http = Http::over(stream, Version::HTTP_2).await;
    assert_eq!(http.get("a.test", port, "/").await.text(), "hello");

    // CONNECT names one, TLS another.
    let stream = connect(&world, &format!("a.test:{port}")).await;
    let stream = tls_over(world.authority.cert_pem(), stream, "evil.test", &["h2"])
        .await
        .unwrap();
    let answer = Http::over(stream, Version::HTTP_2)
        .await
        .get("evil.test", port, "/")
        .await;
    assert_eq!((answer.status, answer.denied_for()), (421, "mismatch"));

    for (target, status, reason) in [
        (format!("evil.test:{port}"), 403, "no_rule"),
        ("a.test:22".into(), 403, "no_rule"),
        (format!("127.0.0.1:{port}"), 403, "no_rule"),
        (format!("2130706433:{port}"), 400, "bad_name"),
        (format!("0x7f.1:{port}"), 400, "bad_name"),
        (format!("evil.test@a.test:{port}"), 400, "bad_name"),
        (format!("[fe80::1%lo]:{port}"), 400, "bad_name"),
        ("a.test".into(), 400, "bad_name"),
    ] {
        let stream = TcpStream::connect(world.proxy).await.unwrap();
        let answer = raw(
            stream,
            format!("CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes(),
        )
        .await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{target}: {answer}"
        );
        assert!(
            answer.contains(&format!("x-durable-deny: {reason}\r\n")),
            "{target}: {answer}"
        );
    }

    let port = plain.port;
    for (target, host, status) in [
        (
            format!("http://p.test:{port}/x"),
            format!("p.test:{port}"),
            200,
        ),
        (format!("http://p.test:{port}/x"), "evil.test".into(), 421),
        (
            format!("http://evil.test@p.test:{port}/"),
            format!("p.test:{port}"),
            400,
        ),
        (
            format!("https://p.test:{port}/"),
            format!("p.test:{port}"),
            400,
        ),
        ("/".into(), format!("p.test:{port}"), 400),
        ("http://evil.test/".into(), "evil.test".into(), 403),
    ] {
        let stream = TcpStream::connect(world.proxy).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = raw(stream, request.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{target} {host}: {answer}"
        );
    }
    assert_eq!(plain.seen().len(), 1);
}

/// Has a proxy lead on to a target.
async fn connect(world: &World, target: &str) -> TcpStream {
    let mut stream = TcpStream::connect(world.proxy).await.unwrap();
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 39];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 Connection established\r\n\r\n");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_nobody_vouches_for_gets_nothing() {
    let origin = Origin::tls(&["a.test"], true).await;
    let unknown = rule("r", "a.test", &origin, LOOK);
    let unknown = &unknown[..unknown.find("roots").unwrap()];
    let world = World::new(unknown, &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http.get("a.test", origin.port, "/").await;
    assert_eq!((answer.status, answer.denied_for()), (502, "upstream"));
    assert!(answer.text().contains("certificate"), "{}", answer.text());
    assert!(origin.seen().is_empty());
    // One that is somebody else is not taken for it.
    let other = Origin::tls(&["b.test"], true).await;
    let world = World::new(&rule("r", "a.test", &other, LOOK), &[other.port]);
    let mut http = Http::open(&world, &other, "a.test", Version::HTTP_2).await;
    assert_eq!(http.get("a.test", other.port, "/").await.status, 502);
    assert!(other.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_the_clients_business() {
    let origin = Origin::tls(&["a.test", "evil.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    let answer = http.get("a.test", origin.port, "/elsewhere").await;
    assert_eq!(answer.status, 302);
    assert_eq!(answer.headers["location"], "https://evil.test/");
    assert_eq!(world.leads.asked(), ["a.test"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_trust_the_authority_is_told_of_in_the_journal() {
    let origin = Origin::tls(&["a.test"], false).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let stream = TcpStream::connect(door(origin.port)).await.unwrap();
    let failed = tls_over(&origin.roots, stream, "a.test", &["http/1.1"]).await;
    assert!(failed.unwrap_err().to_string().contains("certificate"));
    let (request, message) = world.journal.denied(DenyReason::Protocol).await;
    assert_eq!(
        (request.host.as_str(), request.protocol.as_str()),
        ("a.test", "tls")
    );
    assert!(message.contains("certificate authority"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_neither_http_nor_tls_leaves_only_by_a_rule_that_passes_it() {
    let origin = Origin::plain().await;
    let passes = rule("r", "a.test", &origin, "").replace("\"allow\"", "\"passthrough\"");
    for (policy, passed) in [(rule("r", "a.test", &origin, ""), false), (passes, true)] {
        let world = World::new(&policy, &[]);
        let stream = connect(&world, &format!("a.test:{}", origin.port)).await;
        // Whatever an HTTP server says to this, it is from the origin.
        let answer = raw(stream, b"\x01\x02\x03 nonsense\r\n\r\n").await;
        assert_eq!(answer.starts_with("HTTP/1.1 400"), passed, "{answer}");
        if !passed {
            let (request, message) = world.journal.denied(DenyReason::Protocol).await;
            assert_eq!(
                (request.protocol.as_str(), request.host.as_str()),
                ("tcp", "a.test")
            );
            assert!(message.contains("passthrough"), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_in_tls_gets_its_alert_and_words_in_the_journal() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(&rule("r", "a.test", &origin, LOOK), &[origin.port]);
    let refused = tls(&world, door(origin.port), "a.test", &["postgresql"]).await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("NoApplicationProtocol")
    );
    let (_, message) = world.journal.denied(DenyReason::Protocol).await;
    assert!(
        message.contains("postgresql") && message.contains("passthrough"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_first_is_heard_where_a_rule_passes_it() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"220 hello\r\n").await.unwrap();
        let mut said = [0; 6];
        stream.read_exact(&mut said).await.unwrap();
        stream.write_all(&said).await.unwrap();
    });
    let policy = format!(
        "[[rule]]\nname = \"r\"\naction = \"passthrough\"\nhosts = [\"a.test\"]\nports = [{port}]\naddresses = [\"127.0.0.1\"]\nplain = true\n"
    );
    let world = World::new(&policy, &[]);
    let mut stream = connect(&world, &format!("a.test:{port}")).await;
    let mut greeting = [0; 11];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 hello\r\n");
    stream.write_all(b"QUIT\r\n").await.unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"QUIT\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_about_methods_is_not_gone_around_by_a_header() {
    let origin = Origin::tls(&["a.test"], true).await;
    let world = World::new(
        &rule("r", "a.test", &origin, "methods = [\"GET\", \"POST\"]"),
        &[origin.port],
    );
    let mut http = Http::open(&world, &origin, "a.test", Version::HTTP_2).await;
    for (name, method, status) in [
        ("x-http-method-override", "DELETE", 403),
        ("x-http-method", "put", 403),
        ("x-method-override", "GET", 200),
        ("x-other", "DELETE", 200),
    ] {
        let answer = http
            .ask(
                "POST",
                "a.test",
                origin.port,
                "/",
                &[(name, method)],
                text(""),
            )
            .await;
        assert_eq!(answer.status(), status, "{name}: {method}");
    }
    assert_eq!(origin.seen().len(), 2);
}
