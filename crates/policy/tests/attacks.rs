//! The items of the attack list that a policy alone decides; the others are shown against the gateway.

use policy::{Policy, Verdict, Wire, authority};

use crate::world::{ask, connect, host, policy, said, word};

/// What the attacks are on: one host, and names below another.
fn allowed() -> Policy {
    policy(
        r#"
        [[rule]]
        name = "allowed"
        hosts = ["allowed.test", "*.wild.test"]
        plain = true
        action = "allow"
        "#,
    )
}

/// Whether anything of this authority could leave, in any way.
fn leaves(policy: &Policy, place: &str) -> bool {
    authority(place, Some(443)).is_ok()
        && [Wire::Tls, Wire::Http, Wire::Unknown]
            .into_iter()
            .any(|wire| {
                matches!(
                    connect(policy, place, wire),
                    Verdict::Allow { .. } | Verdict::Ask { .. }
                )
            })
}

#[test]
fn a5_addresses_in_any_spelling() {
    for place in [
        "127.0.0.1:443",
        "2130706433:443",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
        "[::ffff:127.0.0.1]:443",
        "[64:ff9b::7f00:1]:443",
        "[2002:7f00:1::]:443",
        "[fe80::1%lo]:443",
        "fe80::1%lo.allowed.test",
        "fe80::1%lo.wild.test",
    ] {
        assert!(!leaves(&allowed(), place), "{place}");
    }
    // Where a name resolves to one of them it is not dialled.
    for ip in [
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fe80::1",
    ] {
        assert!(
            allowed()
                .dial(&host("allowed.test"), 443, ip.parse().unwrap())
                .is_err(),
            "{ip}"
        );
    }
}

#[test]
fn a8_spellings_of_names() {
    for place in [
        "ALLOWED.test",
        "allowed.test.",
        "allowed\u{3002}test",
        "a.Wild.TEST.",
    ] {
        assert!(leaves(&allowed(), place), "{place}");
    }
    for place in [
        "allowed..test",
        ".allowed.test",
        // The first letter is Cyrillic, in one spelling and in the other.
        "\u{430}llowed.test",
        "xn--llowed-3fg.test",
        "allowed_.test",
    ] {
        assert!(!leaves(&allowed(), place), "{place}");
    }
}

#[test]
fn a9_wildcards() {
    for (place, leaves_it) in [
        ("a.wild.test", true),
        ("a.b.wild.test", true),
        ("wild.test", false),
        ("evilwild.test", false),
        ("wild.test.evil.test", false),
        ("evil.test", false),
        ("a.allowed.test", false),
        ("evilallowed.test", false),
        ("*.wild.test", false),
        ("1.2.3.4", false),
        ("[2606:4700::1111]", false),
    ] {
        assert_eq!(leaves(&allowed(), place), leaves_it, "{place}");
    }
    for hosts in [
        "*",
        "*.com",
        "*.co.uk",
        "*.github.io",
        "*.cloudfront.net",
        "*.1.2.3.4",
        "*.*",
        "a.*.test",
        "*test",
    ] {
        for action in ["allow", "passthrough"] {
            let text =
                format!("[[rule]]\nname = \"r\"\nhosts = [\"{hosts}\"]\naction = \"{action}\"");
            assert!(Policy::parse(&text).is_err(), "{hosts} {action}");
        }
    }
}

#[test]
fn a10_ports() {
    for place in [
        "evil.test:443.allowed.test",
        "evil.test:443.wild.test",
        "evil.test:443:allowed.test",
        "allowed.test:8443",
        "allowed.test:22",
        "allowed.test:0",
        "allowed.test:65979",
    ] {
        assert!(!leaves(&allowed(), place), "{place}");
    }
}

#[test]
fn a11_users_backslashes_and_tabs() {
    for place in [
        "allowed.test@evil.test",
        "evil.test@allowed.test",
        "allowed.test:443@evil.test",
        "evil.test\\@allowed.test",
        "evil.test\\.wild.test",
        "evil.test\t.wild.test",
        "evil.test\0.wild.test",
        "evil.test/.wild.test",
        "evil.test#.wild.test",
        "evil.test?.wild.test",
        "evil.test%2f.wild.test",
        "evil.test%00.wild.test",
        "evil.test\r\nHost:.wild.test",
    ] {
        assert!(!leaves(&allowed(), place), "{place:?}");
    }
}

#[test]
fn a16_plain_http_has_the_same_answer() {
    let tls = policy("[[rule]]\nname = \"r\"\nhosts = [\"allowed.test\"]\naction = \"allow\"");
    assert_eq!(word(&connect(&tls, "allowed.test", Wire::Tls)), "allow r");
    for place in ["allowed.test:80", "allowed.test:443", "evil.test:80"] {
        assert_eq!(
            word(&connect(&tls, place, Wire::Http)),
            "deny - NoRule",
            "{place}"
        );
    }
    assert_eq!(said(&tls, "GET", "http://allowed.test/"), "deny - NoRule");
}

#[test]
fn a18_what_is_empty_missing_or_malformed_allows_nothing() {
    for text in [
        "rule = []",
        "[[rule]]\nname = \"r\"\nhosts = []\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"\"]\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nmethods = []\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\npaths = []\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nports = []\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nmethod = [\"GET\"]\naction = \"allow\"",
        "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]",
        "[[rules]]\nname = \"r\"\nhosts = [\"a.test\"]\naction = \"allow\"",
        "[rule]\nname = \"r\"\nhosts = [\"a.test\"]\naction = \"allow\"",
        "presets = []",
        "allow = [\"a.test\"]",
        "[[rule]",
        "\u{0}",
    ] {
        assert!(Policy::parse(text).is_err(), "{text}");
    }
}

#[test]
fn a20_a_net_of_addresses_allows_no_name() {
    let rules = policy(
        r#"
        [[rule]]
        name = "net"
        hosts = ["intranet.test"]
        addresses = ["10.0.0.0/8"]
        action = "allow"
        "#,
    );
    assert!(!leaves(&rules, "evil.test") && !leaves(&rules, "10.0.0.1"));
    assert!(
        rules
            .dial(&host("evil.test"), 443, "10.0.0.1".parse().unwrap())
            .is_err()
    );
    let wide = "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\naddresses = [\"0.0.0.0/0\"]\naction = \"allow\"";
    assert!(Policy::parse(wide).is_err());
}

#[test]
fn b7_a_secret_has_no_way_without_tls() {
    let text = |plain: &str| {
        format!(
            "[[secret]]\nname = \"s\"\nfrom = \"env:S\"\n[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nports = [80, 443]\n\
             {plain}\ninject = [{{ secret = \"s\", bearer = true }}]\naction = \"allow\""
        )
    };
    assert!(Policy::parse(&text("plain = true")).is_err());
    let rules = policy(&text(""));
    assert_eq!(said(&rules, "GET", "http://a.test/"), "deny - NoRule");
    assert_eq!(said(&rules, "GET", "https://a.test/"), "allow r");
}

#[test]
fn b2_no_secret_goes_where_answers_repeat_it() {
    for name in [
        "User-Agent",
        "Referer",
        "Origin",
        "X-Request-Id",
        "Sec-WebSocket-Protocol",
        "Idempotency-Key",
        "Host",
    ] {
        for how in [
            format!("header = \"{name}\""),
            format!("placeholder = [\"header:{name}\"]"),
        ] {
            let text = format!(
                "[[secret]]\nname = \"s\"\nfrom = \"env:S\"\nplaceholder = {{ env = \"S\" }}\n[[rule]]\nname = \"r\"\n\
                 hosts = [\"a.test\"]\ninject = [{{ secret = \"s\", {how} }}]\naction = \"allow\""
            );
            assert!(Policy::parse(&text).is_err(), "{how}");
        }
    }
}

#[test]
fn b22_of_two_credentials_for_one_host_the_path_chooses() {
    let rules = policy(
        r#"
        [[secret]]
        name = "one"
        from = "env:ONE"
        [[secret]]
        name = "two"
        from = "env:TWO"
        [[rule]]
        name = "one"
        hosts = ["a.test"]
        paths = ["/one/**"]
        inject = [{ secret = "one", bearer = true }]
        action = "allow"
        [[rule]]
        name = "two"
        hosts = ["a.test"]
        paths = ["/two/**"]
        inject = [{ secret = "two", bearer = true }]
        action = "allow"
        "#,
    );
    let secret = |url: &str| match ask("GET", url).of(&rules) {
        Verdict::Allow { grant, .. } => grant.inject[0].secret.clone(),
        other => word(&other),
    };
    assert_eq!(secret("https://a.test/one/x"), "one");
    assert_eq!(secret("https://a.test/two/x"), "two");
    assert_eq!(secret("https://a.test/three"), "deny - NoRule");
    assert_eq!(secret("https://a.test/one/..;/two/x"), "deny one BadName");
}

#[test]
fn c18_c19_reading_presets_publish_nothing() {
    let rules =
        policy("presets = [\"npm\", \"pypi\", \"crates\", \"debian\", \"go\", \"github-read\"]");
    for (method, url) in [
        ("PUT", "https://registry.npmjs.org/mine"),
        ("POST", "https://registry.npmjs.org/-/npm/v1/tokens"),
        (
            "POST",
            "https://registry.npmjs.org/-/npm/v1/security/../tokens",
        ),
        ("PUT", "https://crates.io/api/v1/crates/new"),
        ("DELETE", "https://crates.io/api/v1/crates/x/1.0.0/yank"),
        ("POST", "https://upload.pypi.org/legacy/"),
        ("POST", "https://pypi.org/legacy/"),
        ("POST", "https://api.github.com/gists"),
        ("POST", "https://api.github.com/graphql"),
        ("PUT", "https://api.github.com/repos/a/b/contents/c"),
        (
            "GET",
            "https://github.com/a/b/info/refs?service=git-receive-pack&x",
        ),
        ("POST", "https://github.com/a/b.git/git-receive-pack"),
        ("GET", "https://storage.googleapis.com/evil-bucket/x"),
        (
            "GET",
            "https://storage.googleapis.com/proxy-golang-org-prod/../evil-bucket/x",
        ),
        (
            "PUT",
            "https://storage.googleapis.com/proxy-golang-org-prod/x",
        ),
    ] {
        let verdict = ask(method, url).of(&rules);
        // A page of GitHub is read by whatever name: what git would push with it is denied.
        if url.contains("info/refs") {
            assert_eq!(word(&verdict), "allow github-read/web");
            continue;
        }
        assert!(
            matches!(verdict, Verdict::Deny { .. }),
            "{method} {url}: {verdict:?}"
        );
    }
}
