//! What a person said once is said again without asking.

use policy::{How, Policy, Says, Scope, Verdict};

use crate::world::{ask, host, policy, said, word};

const RULES: &str = r#"
# What everybody needs.
presets = ["pypi"]

# Secrets first.
[[secret]]
name = "s"
from = "env:S"

[[rule]]
name = "api"
hosts = ["api.test", "git.test"]
inject = [
  { secret = "s", bearer = true }, # a comment
]
limits = { upload = "1MiB" }
action = "ask"

[[rule]]
name = "rest"
hosts = ["*"]
plain = true
action = "ask"
"#;

fn remember(method: &str, url: &str, says: Says, scope: Scope) -> Policy {
    let rules = policy(RULES);
    let asked = ask(method, url);
    let Verdict::Ask { rule, .. } = asked.of(&rules) else {
        panic!("not asked");
    };
    rules
        .remember(&rule, &asked.request(), says, scope)
        .unwrap()
}

#[test]
fn a_yes_holds_for_the_same_request_with_the_same_secret() {
    let rules = remember(
        "POST",
        "https://api.test/v1/\"x%20y\"/?a=b",
        Says::Allow,
        Scope::Request,
    );
    let Verdict::Allow { rule, grant } =
        ask("POST", "https://api.test/v1/\"x%20y\"/?c=d").of(&rules)
    else {
        panic!("not allowed");
    };
    assert_eq!(
        (rule.as_str(), &grant.inject[0].how),
        ("said-1", &How::Bearer)
    );
    assert_eq!(grant.budget.upload, Some(1 << 20));
    for (method, url) in [
        ("GET", "https://api.test/v1/\"x%20y\"/"),
        ("POST", "https://api.test/v1/other"),
        ("POST", "https://git.test/v1/\"x%20y\"/"),
        ("POST", "wss://api.test/v1/\"x%20y\"/"),
    ] {
        assert_eq!(said(&rules, method, url), "ask api", "{method} {url}");
    }
    assert!(
        rules
            .text()
            .starts_with("\n# What everybody needs.\npresets")
    );
    assert!(rules.secret("s").is_some());
}

#[test]
fn a_word_on_a_host_holds_for_all_of_it() {
    let yes = remember("GET", "http://new.test/x", Says::Allow, Scope::Host);
    assert_eq!(said(&yes, "PUT", "http://new.test/y"), "allow said-1");
    assert_eq!(said(&yes, "PUT", "https://new.test/y"), "ask rest");
    assert_eq!(said(&yes, "GET", "http://x.new.test/y"), "ask rest");
    let no = remember("GET", "https://1.2.3.4/", Says::Deny, Scope::Host);
    assert_eq!(said(&no, "PUT", "https://1.2.3.4/y"), "deny said-1 Rule");
    let twice = no
        .remember(
            "rest",
            &ask("GET", "wss://b.test/x").request(),
            Says::Allow,
            Scope::Request,
        )
        .unwrap();
    assert_eq!(said(&twice, "GET", "wss://b.test/x"), "allow said-2");
    assert_eq!(said(&twice, "PUT", "https://1.2.3.4/y"), "deny said-1 Rule");
}

#[test]
fn a_word_may_leave_nothing_to_the_rule_that_asked() {
    let rules = policy("[[rule]]\nname = \"one\"\nhosts = [\"a.test\"]\naction = \"ask\"");
    let asked = ask("GET", "https://a.test/x");
    let yes = rules
        .remember("one", &asked.request(), Says::Allow, Scope::Host)
        .unwrap();
    assert_eq!(said(&yes, "PUT", "https://a.test/y"), "allow said-1");
}

#[test]
fn a_push_is_remembered_by_repository_and_ref() {
    let rules = policy(RULES);
    let url = "https://git.test/acme/app.git/git-receive-pack";
    let push = |refs: &[&str]| ask("POST", url).refs(refs);
    let yes = rules
        .remember(
            "api",
            &push(&["refs/heads/a"]).request(),
            Says::Allow,
            Scope::Request,
        )
        .unwrap();
    assert_eq!(word(&push(&["refs/heads/a"]).of(&yes)), "allow said-1");
    assert_eq!(
        word(&push(&["refs/heads/a", "refs/heads/b"]).of(&yes)),
        "ask api"
    );
    let refs = "https://git.test/acme/app.git/info/refs?service=git-receive-pack";
    let asks = remember("GET", refs, Says::Allow, Scope::Request);
    assert_eq!(said(&asks, "GET", refs), "allow said-1");
    assert_eq!(
        said(
            &asks,
            "GET",
            "https://git.test/acme/app.git/info/refs?service=git-upload-pack"
        ),
        "ask api"
    );
    let fetch = "https://git.test/acme/app.git/git-upload-pack";
    assert_eq!(
        said(
            &remember("POST", fetch, Says::Deny, Scope::Request),
            "POST",
            fetch
        ),
        "deny said-1 Rule"
    );
}

#[test]
fn what_no_rule_can_say_is_not_remembered() {
    let rules = policy(RULES);
    for (rule, asked) in [
        ("api", ask("GET", "https://api.test/a*b")),
        ("api", ask("GET", "https://api.test/a/../b")),
        ("api", ask("GET", "https://api.test/a%2525")),
        ("api", ask("get", "https://api.test/")),
        ("api", ask("POST", "https://api.test/a/git-receive-pack")),
        ("no-such-rule", ask("GET", "https://api.test/")),
    ] {
        let error = rules
            .remember(rule, &asked.request(), Says::Allow, Scope::Request)
            .unwrap_err();
        assert!(
            error.to_string().contains("write a rule by hand"),
            "{error}"
        );
    }
    // Nor is a yes to what another rule denies.
    let denied = policy(&format!(
        "{RULES}[[rule]]\nname = \"no\"\nhosts = [\"api.test\"]\naction = \"deny\""
    ));
    let asked = ask("GET", "https://api.test/");
    assert!(
        denied
            .remember("api", &asked.request(), Says::Allow, Scope::Host)
            .is_err()
    );
}

#[test]
fn answers_are_taken_along_where_they_would_be_asked_for_again() {
    let old = remember("POST", "https://api.test/v1/x", Says::Allow, Scope::Request);
    let url = "https://git.test/acme/app.git/git-receive-pack";
    let push = ask("POST", url).refs(&["refs/heads/a"]);
    let old = old
        .remember("api", &push.request(), Says::Deny, Scope::Request)
        .unwrap();
    let old = old
        .remember(
            "rest",
            &ask("GET", "http://new.test/x").request(),
            Says::Allow,
            Scope::Request,
        )
        .unwrap();
    assert_eq!(old.remembered().count(), 3);

    // The same policy again, without them.
    let same = old.carry(policy(RULES));
    assert_eq!(same.dropped, [""; 0]);
    assert_eq!(same.policy.remembered().count(), 3);
    for (method, url) in [
        ("POST", "https://api.test/v1/x"),
        ("GET", "http://new.test/x"),
    ] {
        let told = said(&same.policy, method, url);
        assert!(told.starts_with("allow said-"), "{told}");
    }
    let told = word(&push.of(&same.policy));
    assert!(told.starts_with("deny said-"), "{told}");
    // With them in it, it is what it is.
    let itself = same.policy.carry(same.policy.clone());
    assert_eq!(itself.policy, same.policy);

    // One that says something else about them does not have its word taken.
    let other = "[[rule]]\nname = \"one\"\nhosts = [\"api.test\"]\npaths = [\"/v1/**\"]\naction = \"allow\"\n\
                 [[rule]]\nname = \"two\"\nhosts = [\"new.test\"]\naction = \"deny\"";
    let other = old.carry(policy(other));
    assert_eq!(other.policy.remembered().count(), 0);
    assert_eq!(other.dropped.len(), 3, "{:?}", other.dropped);
    assert!(
        other
            .dropped
            .iter()
            .any(|why| why.contains("denies it now"))
    );
    assert!(
        other
            .dropped
            .iter()
            .any(|why| why.contains("`one` allows it"))
    );
    assert_eq!(
        said(&other.policy, "GET", "http://new.test/x"),
        "deny two Rule"
    );

    let forgotten = old.forget(policy(RULES));
    assert_eq!(
        (forgotten.policy, forgotten.dropped.len()),
        (policy(RULES), 3)
    );
    assert_eq!(old.carry(Policy::empty()).policy.remembered().count(), 0);
}

#[test]
fn a_word_opens_no_address_that_is_never_dialled() {
    for address in ["127.0.0.1", "10.9.9.9", "169.254.169.254"] {
        let url = format!("http://{address}/x");
        for scope in [Scope::Request, Scope::Host] {
            let yes = remember("GET", &url, Says::Allow, scope);
            assert_eq!(said(&yes, "GET", &url), "allow said-1");
            let dialled = yes.dial(&host(address), 80, address.parse().unwrap());
            assert!(dialled.is_err(), "{address} {scope:?}");
        }
    }
    // Who wrote the address into the rule that asked meant it.
    let rules =
        policy("[[rule]]\nname = \"one\"\nhosts = [\"10.9.9.9\"]\nplain = true\naction = \"ask\"");
    let asked = ask("GET", "http://10.9.9.9/x");
    let yes = rules
        .remember("one", &asked.request(), Says::Allow, Scope::Host)
        .unwrap();
    assert!(
        yes.dial(&host("10.9.9.9"), 80, "10.9.9.9".parse().unwrap())
            .is_ok()
    );
}
