//! What rules say of connections and of requests.

use std::time::Duration;

use policy::{Budget, Channel, How, Injection, Place, Policy, TokenPlace, Verdict, Wire};
use protocol::{DenyReason, EffectKind};

use crate::world::{ask, connect, host, policy, said, word};

fn rule(name: &str, rest: &str) -> Policy {
    policy(&format!("[[rule]]\nname = \"{name}\"\n{rest}"))
}

#[test]
fn nothing_is_allowed_by_nothing() {
    for nothing in [Policy::empty(), policy(""), policy("# only a comment\n")] {
        assert_eq!(
            said(&nothing, "GET", "https://example.com/"),
            "deny - NoRule"
        );
        for wire in [Wire::Tls, Wire::Http, Wire::Unknown] {
            assert_eq!(
                word(&connect(&nothing, "example.com", wire)),
                "deny - NoRule"
            );
        }
        assert!(nothing.ports().is_empty() && nothing.secrets().next().is_none());
    }
    assert_eq!(Policy::empty(), policy(""));
}

#[test]
fn a_denial_says_what_was_asked_and_what_a_person_can_do() {
    let Verdict::Deny { message, .. } =
        ask("POST", "https://evil.test/a?key=value").of(&Policy::empty())
    else {
        panic!("allowed");
    };
    assert_eq!(
        message,
        "POST https://evil.test/a is not allowed: this sandbox's policy allows nothing. Trying again does not help. Only \
         a person outside the sandbox can change its policy. `durable policy check -X POST https://evil.test/a --of SANDBOX` tells \
         them more."
    );
    let rules = rule(
        "read",
        "hosts = [\"a.test\"]\nmethods = [\"GET\"]\npaths = [\"/v1/**\"]\naction = \"allow\"",
    );
    let told = |method, url| match ask(method, url).of(&rules) {
        Verdict::Deny { message, .. } => message,
        other => panic!("{other:?}"),
    };
    assert!(told("PUT", "https://a.test/v1/x").contains("rule `read` is for GET."));
    assert!(told("GET", "https://a.test/v2/x").contains("rule `read` is for the paths /v1/**."));
    assert!(told("GET", "https://a.test:8443/v1/x").contains("rule `read` is for port 443."));
    assert!(told("GET", "http://a.test:443/v1/x").contains("rule `read` is for TLS only."));
    assert!(
        told("GET", "https://b.test/v1/x")
            .contains("no rule of this sandbox's policy allows b.test.")
    );
    assert!(told("GET", "https://a.test/v1/../x").contains("it has a segment `.` or `..`"));
    assert!(!told("GET", "https://b.test/\u{1b}[31m`x").contains(['\u{1b}', '\n']));
}

#[test]
fn hosts_ports_methods_and_paths_all_must_fit() {
    let rules = policy(
        r#"
        [[rule]]
        name = "api"
        hosts = ["api.test", "*.dev.test", "10.1.1.1"]
        ports = [443, 8443]
        methods = ["GET", "POST"]
        paths = ["/v1/*", "/v2/**"]
        action = "allow"
        "#,
    );
    for (method, url, want) in [
        ("GET", "https://api.test/v1/x", "allow api"),
        ("POST", "https://API.test.:8443/v2/x/y", "allow api"),
        ("GET", "https://a.b.dev.test/v1/x", "allow api"),
        ("GET", "https://10.1.1.1/v1/x", "allow api"),
        ("GET", "https://api.test/%761/x", "allow api"),
        ("GET", "https://api.test/v1/x/y", "deny - NoRule"),
        ("GET", "https://api.test/V1/x", "deny - NoRule"),
        ("get", "https://api.test/v1/x", "deny - NoRule"),
        ("DELETE", "https://api.test/v1/x", "deny - NoRule"),
        ("GET", "https://dev.test/v1/x", "deny - NoRule"),
        ("GET", "https://api.test:9443/v1/x", "deny - NoRule"),
        ("GET", "http://api.test:443/v1/x", "deny - NoRule"),
        ("GET", "https://api.test/v1/a%2fb", "deny api BadName"),
        ("GET", "https://api.test//v1/x", "deny api BadName"),
        // The method is asked before the path.
        ("PUT", "https://api.test/a%2fb", "deny - NoRule"),
    ] {
        assert_eq!(said(&rules, method, url), want, "{method} {url}");
    }
    assert_eq!(rules.ports(), [8443].into());
}

#[test]
fn a_path_is_left_alone_where_no_rule_asks_for_it() {
    let rules = rule(
        "npm",
        "hosts = [\"r.test\"]\nmethods = [\"GET\"]\naction = \"allow\"",
    );
    assert_eq!(
        said(&rules, "GET", "https://r.test/@scope%2fname//../x"),
        "allow npm"
    );
}

#[test]
fn without_tls_only_what_is_plain_leaves() {
    let rules = rule(
        "apt",
        "hosts = [\"deb.test\"]\nplain = true\naction = \"allow\"",
    );
    assert_eq!(said(&rules, "GET", "http://deb.test/"), "allow apt");
    assert_eq!(said(&rules, "GET", "https://deb.test/"), "allow apt");
    let tls = rule(
        "tls",
        "hosts = [\"deb.test\"]\nports = [80, 443]\naction = \"allow\"",
    );
    assert_eq!(said(&tls, "GET", "http://deb.test/"), "deny - NoRule");
    assert_eq!(
        word(&connect(&tls, "deb.test:80", Wire::Http)),
        "deny - NoRule"
    );
}

#[test]
fn a_denial_wins_wherever_it_stands() {
    let rules = policy(
        r#"
        presets = ["npm"]
        [[rule]]
        name = "all"
        hosts = ["a.test"]
        plain = true
        action = "allow"
        [[rule]]
        name = "no-admin"
        hosts = ["*"]
        paths = ["/admin", "/admin/**", "/-/npm/**"]
        action = "deny"
        [[rule]]
        name = "no-delete"
        hosts = ["*.test"]
        methods = ["DELETE"]
        action = "deny"
        [[rule]]
        name = "no-host"
        hosts = ["registry.yarnpkg.com"]
        action = "deny"
        "#,
    );
    for (method, url, want) in [
        ("GET", "https://a.test/x", "allow all"),
        ("GET", "https://a.test/admin", "deny no-admin Rule"),
        ("GET", "https://a.test/ADMIN/", "deny no-admin Rule"),
        ("GET", "https://a.test/%61dmin/x", "deny no-admin Rule"),
        ("GET", "http://a.test/admin/x", "deny no-admin Rule"),
        ("GET", "https://a.test/admin;x=1", "deny no-admin Rule"),
        ("GET", "https://a.test/admin;x=1/;y", "deny no-admin Rule"),
        ("GET", "https://a.test/x;/admin", "allow all"),
        (
            "GET",
            "https://a.test/x/%2e%2e/admin",
            "deny no-admin BadName",
        ),
        ("GET", "https://a.test//admin", "deny no-admin BadName"),
        ("delete", "https://a.test/x", "deny no-delete Rule"),
        (
            "GET",
            "https://registry.npmjs.org/react",
            "allow npm/registry",
        ),
        (
            "POST",
            "https://registry.npmjs.org/-/npm/v1/security/advisories/bulk",
            "deny no-admin Rule",
        ),
        (
            "GET",
            "https://registry.yarnpkg.com/react",
            "deny no-host Rule",
        ),
    ] {
        assert_eq!(said(&rules, method, url), want, "{method} {url}");
    }
    // A rule that denies a part is kept by looking, one that denies a host by closing.
    assert!(matches!(
        connect(&rules, "a.test", Wire::Tls),
        Verdict::Allow {
            grant: Channel::Inspect,
            ..
        }
    ));
    assert_eq!(
        word(&connect(&rules, "registry.yarnpkg.com", Wire::Tls)),
        "deny no-host Rule"
    );
    assert_eq!(
        word(&connect(&rules, "registry.yarnpkg.com:8080", Wire::Unknown)),
        "deny no-host Rule"
    );
}

#[test]
fn the_first_rule_that_fits_decides() {
    let rules = policy(
        r#"
        presets = ["github-read"]
        [[rule]]
        name = "mine"
        hosts = ["github.com"]
        paths = ["/acme/**"]
        action = "ask"
        timeout = "2m"
        [[rule]]
        name = "rest"
        hosts = ["github.com"]
        methods = ["GET"]
        limits = { upload = "1KiB", requests_per_minute = 60 }
        action = "allow"
        "#,
    );
    assert_eq!(
        said(&rules, "GET", "https://github.com/acme/app"),
        "ask mine"
    );
    assert_eq!(
        said(&rules, "GET", "https://github.com/other"),
        "allow rest"
    );
    assert_eq!(
        said(&rules, "HEAD", "https://github.com/other"),
        "allow github-read/web"
    );
    let Verdict::Ask { timeout, .. } = ask("GET", "https://github.com/acme/app").of(&rules) else {
        panic!("not asked");
    };
    assert_eq!(timeout, Duration::from_secs(120));
    let Verdict::Allow { grant, .. } = ask("GET", "https://github.com/other").of(&rules) else {
        panic!("not allowed");
    };
    assert_eq!(
        grant.budget,
        Budget {
            upload: Some(1024),
            requests_per_minute: Some(60)
        }
    );
}

#[test]
fn a_rule_for_everybody_comes_last() {
    let rules = policy(
        r#"
        presets = ["pypi"]
        [[rule]]
        name = "rest"
        hosts = ["*"]
        action = "ask"
        [[rule]]
        name = "mine"
        hosts = ["a.test"]
        action = "allow"
        "#,
    );
    assert_eq!(said(&rules, "GET", "https://a.test/"), "allow mine");
    assert_eq!(
        said(&rules, "GET", "https://pypi.org/simple/"),
        "allow pypi/index"
    );
    assert_eq!(said(&rules, "POST", "https://pypi.org/simple/"), "ask rest");
    assert_eq!(said(&rules, "GET", "https://b.test/"), "ask rest");
    assert_eq!(said(&rules, "GET", "http://b.test/"), "deny - NoRule");
    // What an earlier rule allows as a whole is not looked at for the sake of a later one.
    let untouched = connect(&rules, "a.test", Wire::Tls);
    assert!(matches!(
        untouched,
        Verdict::Allow {
            grant: Channel::PassThrough,
            ..
        }
    ));
}

#[test]
fn tls_is_opened_only_where_a_rule_needs_it() {
    let head = "hosts = [\"a.test\"]\n";
    for (rest, want) in [
        ("action = \"allow\"", Channel::PassThrough),
        ("action = \"passthrough\"", Channel::PassThrough),
        ("action = \"allow\"\nplain = true", Channel::PassThrough),
        ("action = \"allow\"\nmethods = [\"GET\"]", Channel::Inspect),
        ("action = \"allow\"\npaths = [\"/**\"]", Channel::Inspect),
        (
            "action = \"allow\"\nquery = { a = \"b\" }",
            Channel::Inspect,
        ),
        ("action = \"allow\"\nwebsocket = false", Channel::Inspect),
        ("action = \"allow\"\nwebsocket = true", Channel::PassThrough),
        (
            "action = \"allow\"\ngit = { fetch = [\"a/b\"] }",
            Channel::Inspect,
        ),
        (
            "action = \"allow\"\nlimits = { upload = 1 }",
            Channel::Inspect,
        ),
        ("action = \"ask\"", Channel::Inspect),
    ] {
        let rules = rule("r", &format!("{head}{rest}"));
        match connect(&rules, "a.test", Wire::Tls) {
            Verdict::Allow { rule, grant } => {
                assert_eq!((rule.as_str(), grant), ("r", want), "{rest}")
            }
            other => panic!("{rest}: {other:?}"),
        }
        assert_eq!(word(&connect(&rules, "b.test", Wire::Tls)), "deny - NoRule");
        assert_eq!(
            word(&connect(&rules, "a.test:444", Wire::Tls)),
            "deny - NoRule"
        );
    }
    let secret = "[[secret]]\nname = \"s\"\nfrom = \"env:S\"\n[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\n\
                  inject = [{ secret = \"s\", bearer = true }]\naction = \"allow\"";
    let inspected = connect(&policy(secret), "a.test", Wire::Tls);
    assert!(matches!(
        inspected,
        Verdict::Allow {
            grant: Channel::Inspect,
            ..
        }
    ));
}

#[test]
fn plain_http_is_always_looked_at_and_other_bytes_pass_only_untouched() {
    let allow = rule(
        "a",
        "hosts = [\"a.test\"]\nplain = true\nports = [80, 443, 5432]\naction = \"allow\"",
    );
    assert!(matches!(
        connect(&allow, "a.test:80", Wire::Http),
        Verdict::Allow {
            grant: Channel::Inspect,
            ..
        }
    ));
    assert_eq!(
        word(&connect(&allow, "a.test:5432", Wire::Unknown)),
        "deny - Protocol"
    );
    let raw = rule(
        "db",
        "hosts = [\"a.test\"]\nplain = true\nports = [5432]\naction = \"passthrough\"",
    );
    for wire in [Wire::Unknown, Wire::Tls, Wire::Http] {
        assert!(matches!(
            connect(&raw, "a.test:5432", wire),
            Verdict::Allow {
                grant: Channel::PassThrough,
                ..
            }
        ));
    }
    let tls = rule(
        "tls",
        "hosts = [\"a.test\"]\nports = [5432]\naction = \"passthrough\"",
    );
    assert_eq!(
        word(&connect(&tls, "a.test:5432", Wire::Unknown)),
        "deny - Protocol"
    );
    assert_eq!(raw.ports(), [5432].into());
}

#[test]
fn what_is_passed_through_is_looked_at_where_a_part_of_it_is_denied() {
    let rules = policy(
        r#"
        [[rule]]
        name = "pass"
        hosts = ["a.test"]
        action = "passthrough"
        [[rule]]
        name = "no-put"
        hosts = ["*"]
        methods = ["PUT"]
        action = "deny"
        "#,
    );
    assert!(matches!(
        connect(&rules, "a.test", Wire::Tls),
        Verdict::Allow {
            grant: Channel::Inspect,
            ..
        }
    ));
    assert_eq!(said(&rules, "PUT", "https://a.test/"), "deny no-put Rule");
    assert_eq!(said(&rules, "GET", "https://a.test/"), "allow pass");
}

#[test]
fn bytes_of_no_kind_do_not_pass_where_a_part_is_denied() {
    let raw =
        "[[rule]]\nname = \"raw\"\nhosts = [\"a.test\"]\nplain = true\naction = \"passthrough\"\n";
    let part =
        "[[rule]]\nname = \"part\"\nhosts = [\"a.test\"]\npaths = [\"/x\"]\naction = \"deny\"\n";
    assert_eq!(
        word(&connect(&policy(raw), "a.test", Wire::Unknown)),
        "allow raw"
    );
    let both = policy(&(raw.to_owned() + part));
    assert_eq!(
        word(&connect(&both, "a.test", Wire::Unknown)),
        "deny - Protocol"
    );
    // What a rule denies is often served with a slash at its end too.
    assert_eq!(said(&both, "GET", "https://a.test/X/"), "deny part Rule");
    assert_eq!(said(&both, "GET", "https://a.test/x/y"), "allow raw");
}

#[test]
fn a_websocket_leaves_where_anything_may_or_it_is_named() {
    let head = "hosts = [\"a.test\"]\naction = \"allow\"\n";
    for (rest, want) in [
        ("", "allow r"),
        ("paths = [\"/**\"]", "allow r"),
        ("methods = [\"GET\"]", "deny - NoRule"),
        ("methods = [\"GET\"]\nwebsocket = true", "allow r"),
        ("websocket = false", "deny - NoRule"),
    ] {
        let rules = rule("r", &format!("{head}{rest}"));
        assert_eq!(said(&rules, "GET", "wss://a.test/x"), want, "{rest}");
        assert_eq!(said(&rules, "GET", "https://a.test/x"), "allow r", "{rest}");
    }
    let Verdict::Allow { grant, .. } = ask("GET", "wss://a.test/x").of(&rule("r", head)) else {
        panic!("not allowed");
    };
    assert_eq!(grant.kind, EffectKind::Write);
}

#[test]
fn queries_fit_with_all_their_values() {
    let rules = rule(
        "q",
        "hosts = [\"a.test\"]\nquery = { service = [\"git-*\", \"x\"], v = \"1\" }\naction = \"allow\"",
    );
    for (url, want) in [
        ("https://a.test/?service=git-x&v=1", "allow q"),
        ("https://a.test/?v=%31&ser%76ice=x&other=y", "allow q"),
        ("https://a.test/?service=git-x", "deny - NoRule"),
        ("https://a.test/?service=evil&v=1", "deny - NoRule"),
        (
            "https://a.test/?service=x&service=evil&v=1",
            "deny - NoRule",
        ),
        ("https://a.test/", "deny - NoRule"),
    ] {
        assert_eq!(said(&rules, "GET", url), want, "{url}");
    }
    let deny = policy(
        "[[rule]]\nname = \"all\"\nhosts = [\"a.test\"]\naction = \"allow\"\n\
         [[rule]]\nname = \"no\"\nhosts = [\"a.test\"]\nquery = { admin = \"*\" }\naction = \"deny\"",
    );
    assert_eq!(
        said(&deny, "GET", "https://a.test/?a=b&%61DMIN=1"),
        "deny no Rule"
    );
    assert_eq!(said(&deny, "GET", "https://a.test/?a=b"), "allow all");
}

#[test]
fn git_is_told_by_repository_verb_and_ref() {
    let rules = policy(
        r#"
        [[rule]]
        name = "git"
        hosts = ["github.com"]
        git = { fetch = ["acme/*", "lib/one"], push = ["acme/app"], refs = ["refs/heads/agent/*"] }
        action = "allow"
        "#,
    );
    for (method, url, want) in [
        (
            "GET",
            "https://github.com/acme/app.git/info/refs?service=git-upload-pack",
            "allow git",
        ),
        (
            "GET",
            "https://github.com/acme/other/info/refs?service=git-upload-pack",
            "allow git",
        ),
        (
            "POST",
            "https://github.com/lib/one.git/git-upload-pack",
            "allow git",
        ),
        (
            "POST",
            "https://github.com/lib/two.git/git-upload-pack",
            "deny - NoRule",
        ),
        (
            "GET",
            "https://github.com/acme/app.git/info/refs?service=git-receive-pack",
            "allow git",
        ),
        (
            "GET",
            "https://github.com/acme/other.git/info/refs?service=git-receive-pack",
            "deny - NoRule",
        ),
        (
            "GET",
            "https://github.com/acme/other.git/info/refs?service=git-upload-pack&service=git-receive-pack",
            "deny - NoRule",
        ),
        ("GET", "https://github.com/acme/app", "deny - NoRule"),
        (
            "GET",
            "https://github.com/acme/app.git/info/refs",
            "deny - NoRule",
        ),
        (
            "POST",
            "https://github.com/acme/x/../app.git/git-receive-pack",
            "deny git BadName",
        ),
        (
            "POST",
            "https://github.com/acme%2fapp.git/git-upload-pack",
            "deny git BadName",
        ),
    ] {
        assert_eq!(said(&rules, method, url), want, "{method} {url}");
    }
    let push = |url| ask("POST", url);
    let app = "https://github.com/acme/app.git/git-receive-pack";
    for (refs, want) in [
        (&["refs/heads/agent/1"][..], "allow git"),
        (&["refs/heads/agent/1", "refs/heads/agent/2"], "allow git"),
        // What git sends to try.
        (&[], "allow git"),
        (&["refs/heads/main"], "deny - NoRule"),
        (&["refs/heads/agent/1", "refs/heads/main"], "deny - NoRule"),
        (&["refs/heads/agent/1/2"], "deny - NoRule"),
        (&["refs/heads/Agent/1"], "deny - NoRule"),
    ] {
        assert_eq!(word(&push(app).refs(refs).of(&rules)), want, "{refs:?}");
    }
    let other =
        push("https://github.com/acme/other.git/git-receive-pack").refs(&["refs/heads/agent/1"]);
    assert_eq!(word(&other.of(&rules)), "deny - NoRule");
    // Who does not say which refs a push has is not believed that there are none.
    assert_eq!(word(&push(app).without_git().of(&rules)), "deny - NoRule");
    let Verdict::Deny { message, .. } = push(app).refs(&["refs/heads/main"]).of(&rules) else {
        panic!("allowed");
    };
    assert!(
        message.contains("(git push to acme/app: refs/heads/main)"),
        "{message}"
    );
    assert!(
        message.contains("rule `git` is for pushes to refs/heads/agent/*"),
        "{message}"
    );
}

#[test]
fn git_is_denied_by_any_ref() {
    let rules = policy(
        r#"
        [[rule]]
        name = "all"
        hosts = ["github.com"]
        action = "allow"
        [[rule]]
        name = "protected"
        hosts = ["github.com"]
        git = { push = ["**"], refs = ["refs/heads/main"] }
        action = "deny"
        "#,
    );
    let app = "https://github.com/acme/app.git/git-receive-pack";
    let push = |refs: &[&str]| word(&ask("POST", app).refs(refs).of(&rules));
    assert_eq!(push(&["refs/heads/a"]), "allow all");
    assert_eq!(
        push(&["refs/heads/a", "refs/heads/MAIN"]),
        "deny protected Rule"
    );
    assert_eq!(push(&[]), "allow all");
    assert_eq!(
        word(&ask("POST", app).without_git().of(&rules)),
        "deny protected Rule"
    );
    let refs = "https://github.com/acme/app.git/info/refs?service=git-receive-pack";
    assert_eq!(said(&rules, "GET", refs), "allow all");
}

#[test]
fn secrets_go_where_their_rule_says() {
    let rules = policy(
        r#"
        [[secret]]
        name = "github"
        from = "env:GITHUB_TOKEN"
        placeholder = { env = "GITHUB_TOKEN" }
        require = true
        [[secret]]
        name = "app"
        from = "file:/etc/app.pem"
        [[rule]]
        name = "git"
        hosts = ["github.com"]
        git = { push = ["acme/app"] }
        inject = [{ secret = "app", github_app = { app = 12, installation = 34, repository = "app", permissions = { contents = "write" } } }]
        action = "allow"
        [[rule]]
        name = "api"
        hosts = ["api.github.com"]
        inject = [
          { secret = "github", header = "Authorization", format = "token {}" },
          { secret = "github", query = "key" },
          { secret = "github", placeholder = ["header:X-Api-Key", "query:token"] },
          { secret = "app", header = "X-Two" },
        ]
        action = "ask"
        [[rule]]
        name = "s3"
        hosts = ["bucket.s3.amazonaws.com"]
        inject = [{ secret = "app", sigv4 = { service = "s3", region = "eu-west-1" } }]
        action = "allow"
        [[rule]]
        name = "basic"
        hosts = ["basic.test"]
        inject = [{ secret = "github", basic = "x-access-token" }]
        action = "allow"
        "#,
    );
    let injected = |method, url| match ask(method, url).of(&rules) {
        Verdict::Allow { grant, .. } | Verdict::Ask { grant, .. } => grant.inject,
        Verdict::Deny { message, .. } => panic!("{message}"),
    };
    let one = |secret: &str, how| Injection {
        secret: secret.into(),
        how,
    };
    assert_eq!(
        injected(
            "GET",
            "https://github.com/acme/app/info/refs?service=git-receive-pack"
        ),
        [one(
            "app",
            How::GitHubApp {
                app: "12".into(),
                installation: 34,
                repository: "app".into(),
                permissions: [("contents".into(), "write".into())].into(),
                place: TokenPlace::Basic,
                api: None,
            }
        )]
    );
    assert_eq!(
        injected("GET", "https://api.github.com/user"),
        [
            one(
                "github",
                How::Header {
                    name: "authorization".into(),
                    format: "token {}".into()
                }
            ),
            one("github", How::Query { key: "key".into() }),
            one(
                "github",
                How::Placeholder {
                    places: vec![
                        Place::Header("x-api-key".into()),
                        Place::Query("token".into())
                    ],
                }
            ),
            one(
                "app",
                How::Header {
                    name: "x-two".into(),
                    format: "{}".into()
                }
            ),
        ]
    );
    assert_eq!(
        injected("PUT", "https://bucket.s3.amazonaws.com/x"),
        [one(
            "app",
            How::SigV4 {
                service: "s3".into(),
                region: "eu-west-1".into()
            }
        )]
    );
    assert_eq!(
        injected("GET", "https://basic.test/"),
        [one(
            "github",
            How::Basic {
                user: "x-access-token".into()
            }
        )]
    );
    assert!(
        rules
            .secret("github")
            .is_some_and(|secret| secret.require && secret.from == "env:GITHUB_TOKEN")
    );
    assert_eq!(rules.secrets().count(), 2);
    // Without TLS, at another port, at another host: nothing.
    for url in [
        "http://api.github.com:443/user",
        "https://api.github.com:444/user",
        "https://xapi.github.com/user",
    ] {
        assert!(
            matches!(
                ask("GET", url).of(&rules),
                Verdict::Deny {
                    reason: DenyReason::NoRule,
                    ..
                }
            ),
            "{url}"
        );
    }
}

#[test]
fn roots_are_those_of_the_rule_for_the_host() {
    let pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let rules = rule(
        "r",
        &format!("hosts = [\"a.test\"]\nroots = '''\n{pem}'''\naction = \"allow\""),
    );
    assert_eq!(rules.roots(&host("a.test"), 443), Some(pem));
    assert_eq!(rules.roots(&host("a.test"), 80), None);
    assert_eq!(rules.roots(&host("b.test"), 443), None);
}
