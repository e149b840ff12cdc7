//! What holds of every input.

use policy::{
    Connect, GitAct, Host, MAX_COMMANDS, Policy, Request, Verdict, Wire, authority, explain,
    git_act, kind, push_commands,
};
use proptest::prelude::*;
use protocol::EffectKind;

use crate::world::policy;

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-zA-Z0-9_.-]{0,30}",
        2 => "([a-z0-9]{1,5}\\.){1,4}[a-z]{2,3}\\.?",
        2 => any::<[u8; 4]>().prop_map(|ip| std::net::Ipv4Addr::from(ip).to_string()),
        2 => any::<[u16; 8]>().prop_map(|ip| format!("[{}]", std::net::Ipv6Addr::from(ip))),
        1 => "(0x)?[0-9a-f]{1,4}(\\.(0x)?[0-9]{1,3}){0,4}",
        3 => "\\PC{0,12}",
        1 => any::<String>(),
    ]
}

fn wire() -> impl Strategy<Value = Wire> {
    prop_oneof![Just(Wire::Http), Just(Wire::Tls), Just(Wire::Unknown)]
}

/// Lines of policies, in any order.
fn toml() -> impl Strategy<Value = String> {
    let line = prop_oneof![
        Just("[[rule]]".to_owned()),
        Just("[[secret]]".to_owned()),
        Just("presets = [\"npm\", \"debian\"]".to_owned()),
        "name = \"[a-c]\"",
        Just("hosts = [\"a.test\"]".to_owned()),
        Just("hosts = [\"*.b.test\", \"10.0.0.1\", \"*\"]".to_owned()),
        Just("action = \"allow\"".to_owned()),
        "action = \"(deny|ask|passthrough)\"",
        "ports = \\[[0-9]{1,6}\\]",
        Just("plain = true".to_owned()),
        Just("methods = [\"GET\", \"PUT\"]".to_owned()),
        "paths = \\[\"/[a*/.]{0,8}\"\\]",
        Just("git = { fetch = [\"**\"], push = [\"a/*\"] }".to_owned()),
        Just("inject = [{ secret = \"a\", bearer = true }]".to_owned()),
        "from = \"(env|file|x):[a-z]{0,3}\"",
        "limits = \\{ upload = \"[0-9]{1,20}[KMG]iB\" \\}",
        "[a-z]{1,9} = [\\[\\]{}\"'=0-9a-z.,-]{0,12}",
        any::<String>(),
    ];
    proptest::collection::vec(line, 0..14).prop_map(|lines| lines.join("\n"))
}

const SAMPLE: &str = r#"
presets = ["npm", "github-read"]
[[rule]]
name = "all"
hosts = ["a.test", "*.b.test"]
plain = true
action = "allow"
[[rule]]
name = "some"
hosts = ["c.test"]
paths = ["/x/**"]
query = { q = "1*" }
action = "ask"
[[rule]]
name = "none"
hosts = ["*"]
paths = ["/secret/**"]
action = "deny"
"#;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_host_is_read_back_as_it_is_shown(text in host()) {
        if let Ok(host) = Host::parse(&text) {
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host.clone()));
            prop_assert_eq!(Host::parse(&host.in_url()), Ok(host.clone()));
            prop_assert_eq!(authority(&format!("{}:8443", host.in_url()), None), Ok((host.clone(), 8443)));
            let shown = host.to_string();
            prop_assert!(shown.bytes().all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase()));
            if let Host::Name(name) = host {
                prop_assert!(name.len() <= 253 && name.split('.').all(|l| (1..=63).contains(&l.len())));
                prop_assert!(name.parse::<std::net::IpAddr>().is_err());
            }
        }
    }

    #[test]
    fn the_case_of_a_host_and_a_dot_at_its_end_mean_nothing(text in "([a-z0-9]{1,6}\\.){1,4}[a-z]{2,3}") {
        let host = Host::parse(&text);
        prop_assert_eq!(Host::parse(&text.to_uppercase()), host.clone());
        prop_assert_eq!(Host::parse(&(text + ".")), host);
    }

    #[test]
    fn without_a_rule_nothing_leaves(
        text in host(), port in 1_u16.., method in "[A-Z]{1,7}", path in any::<String>(), tls in any::<bool>(),
        websocket in any::<bool>(), wire in wire(), query in proptest::option::of(any::<String>()),
    ) {
        if let Ok(host) = Host::parse(&text) {
            let git = git_act(&method, &path, query.as_deref());
            let request = Request {
                host: &host, port, tls, method: &method, path: &path, query: query.as_deref(), websocket, git: git.as_ref(),
            };
            for rules in [Policy::empty(), policy("[[rule]]\nname = \"no\"\nhosts = [\"*\"]\naction = \"deny\"")] {
                let denied = matches!(rules.request(&request), Verdict::Deny { .. });
                prop_assert!(denied);
                let denied = matches!(rules.connect(&Connect { host: &host, port, protocol: wire }), Verdict::Deny { .. });
                prop_assert!(denied);
            }
        }
    }

    /// A request that leaves goes through a connection that may be made, and what passes untouched could pass looked at.
    #[test]
    fn connections_and_requests_agree(
        name in prop_oneof![Just("a.test"), Just("x.b.test"), Just("c.test"), Just("registry.npmjs.org"), Just("github.com"), Just("d.test")],
        port in prop_oneof![Just(80), Just(443), Just(8080)], method in prop_oneof![Just("GET"), Just("POST"), Just("PUT")],
        path in "/(x|secret|SECRET|%73ecret|\\.\\.|a/b\\.git/git-upload-pack)?(/[a-z]{0,2})?", tls in any::<bool>(),
        query in proptest::option::of("[qp]=[12]{0,2}(&q=[12])?"),
    ) {
        let rules = policy(SAMPLE);
        let host = Host::parse(name).unwrap();
        let request = Request {
            host: &host, port, tls, method, path: &path, query: query.as_deref(), websocket: false, git: None,
        };
        let wire = if tls { Wire::Tls } else { Wire::Http };
        let connects = matches!(rules.connect(&Connect { host: &host, port, protocol: wire }), Verdict::Allow { .. });
        let leaves = !matches!(rules.request(&request), Verdict::Deny { .. });
        prop_assert!(connects || !leaves);
        let secret = path.to_lowercase().replace("%73", "s");
        if secret.starts_with("/secret/") {
            prop_assert!(!leaves);
        }
        if leaves && !tls {
            prop_assert!(matches!(name, "a.test" | "x.b.test"));
        }
    }

    #[test]
    fn no_text_makes_the_reader_stumble(text in toml()) {
        match Policy::parse(&text) {
            Ok(rules) => {
                prop_assert_eq!(Policy::parse(rules.text()), Ok(rules.clone()));
                let _shown = explain(&rules, "https://a.test/x", "GET").to_string();
            }
            Err(error) => prop_assert!(error.line >= 1 && error.line <= text.split('\n').count()),
        }
    }

    #[test]
    fn nobody_stumbles_over_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), text in any::<String>(), method in "GET|POST",
    ) {
        if let Ok(Some(commands)) = push_commands(&bytes) {
            prop_assert!(commands.iter().all(|command| command.name.starts_with("refs/")));
        }
        let _act = git_act(&method, &text, Some(&text));
        let json = [("content-type", &b"application/json"[..])];
        let whole = kind("POST", "/graphql", json, Some(&bytes));
        prop_assert!(whole == EffectKind::Write || !bytes.is_empty());
        let _shown = explain(&policy(SAMPLE), &text, &method).to_string();
    }

    /// However a push is cut, its commands are the same or are not yet known.
    #[test]
    fn a_push_does_not_depend_on_where_it_is_cut(names in proptest::collection::vec("[a-z]{1,8}", 0..6), cut in 0_usize..2000) {
        let id = "1".repeat(40);
        let mut body = String::new();
        for name in &names {
            let line = format!("{id} {id} refs/heads/{name}");
            body += &format!("{:04x}{line}", line.len() + 4);
        }
        body += "0000PACK";
        let whole = push_commands(body.as_bytes()).unwrap().unwrap();
        prop_assert_eq!(whole.len(), names.len());
        let part = push_commands(&body.as_bytes()[..cut.min(body.len())]).unwrap();
        prop_assert!(part.is_none() || part == Some(whole));
        prop_assert!(body.len() < MAX_COMMANDS);
    }

    #[test]
    fn a_repository_has_one_name(owner in "[a-z]{1,5}", repo in "[a-z]{1,5}", suffix in prop_oneof![Just(""), Just(".git")]) {
        let path = format!("/{owner}/{repo}{suffix}/git-receive-pack");
        let push = GitAct::Push { repo: format!("{owner}/{repo}"), refs: Vec::new() };
        prop_assert_eq!(git_act("POST", &path, None), Some(push));
    }
}
