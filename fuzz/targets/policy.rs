//! No text makes the reader of policies stumble; what is read answers every question, and never lets out what is denied whole.

#![no_main]

use libfuzzer_sys::fuzz_target;
use policy::{Connect, Host, Policy, Request, Says, Scope, Verdict, Wire, explain};

const DENY: &str = "[[rule]]\nname = \"fuzz-deny\"\nhosts = [\"*\"]\naction = \"deny\"\n";

fuzz_target!(|text: &str| {
    let rules = match Policy::parse(text) {
        Ok(rules) => rules,
        Err(error) => {
            assert!(
                (1..=text.split('\n').count()).contains(&error.line),
                "{error}"
            );
            return;
        }
    };
    assert_eq!(Policy::parse(rules.text()).as_ref(), Ok(&rules));
    let _ports = rules.ports();
    let with_deny = Policy::parse(&format!("{text}\n{DENY}"));
    for host in [
        "a.test",
        "x.a.test",
        "registry.npmjs.org",
        "github.com",
        "127.0.0.1",
    ] {
        let host = Host::parse(host).expect("a host");
        for (port, tls) in [(443, true), (80, false), (8080, true)] {
            let wire = if tls { Wire::Tls } else { Wire::Http };
            let connect = rules.connect(&Connect {
                host: &host,
                port,
                protocol: wire,
            });
            for (method, path) in [
                ("GET", "/"),
                ("POST", "/a/b.git/git-receive-pack"),
                ("PUT", "/a/../b"),
                ("GET", "/a/b"),
            ] {
                let request = Request {
                    host: &host,
                    port,
                    tls,
                    method,
                    path,
                    query: Some("a=b"),
                    websocket: false,
                    git: None,
                };
                let answer = rules.request(&request);
                if matches!(connect, Verdict::Deny { .. }) {
                    assert!(
                        matches!(answer, Verdict::Deny { .. }),
                        "{host}:{port} {method} {path}"
                    );
                }
                if let Verdict::Ask { rule, .. } = &answer {
                    remembered(&rules, rule, &request);
                }
                if let Ok(with_deny) = &with_deny {
                    assert!(matches!(with_deny.request(&request), Verdict::Deny { .. }));
                }
            }
            let url = format!(
                "{}://{}:{port}/a",
                if tls { "https" } else { "http" },
                host.in_url()
            );
            assert!(!explain(&rules, &url, "GET").to_string().is_empty());
        }
    }
});

/// What was said to one request is no answer to another.
fn remembered(rules: &Policy, rule: &str, request: &Request<'_>) {
    let other = Request {
        path: "/other",
        ..*request
    };
    for says in [Says::Allow, Says::Deny] {
        if let Ok(new) = rules.remember(rule, request, says, Scope::Request) {
            assert_eq!(new.request(&other), rules.request(&other));
        }
    }
}
