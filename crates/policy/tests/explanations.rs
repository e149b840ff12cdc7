//! `durable policy check`, for people and for programs.

use policy::{Decision, explain};

use crate::world::policy;

const RULES: &str = r#"
presets = ["github-read"]
[[secret]]
name = "github"
from = "env:GITHUB_TOKEN"
[[rule]]
name = "mine"
hosts = ["github.com"]
git = { fetch = ["acme/*"], push = ["acme/app"], refs = ["refs/heads/agent/*"] }
inject = [{ secret = "github", basic = "x-access-token" }]
limits = { upload = "1kB" }
action = "allow"
[[rule]]
name = "no-gists"
hosts = ["gist.github.com"]
action = "deny"
[[rule]]
name = "pages"
hosts = ["pages.test"]
action = "passthrough"
"#;

#[test]
fn every_rule_is_told_with_its_reason() {
    let told = explain(
        &policy(RULES),
        "https://github.com/acme/app.git/info/refs?service=git-receive-pack",
        "GET",
    );
    assert_eq!(
        told.to_string(),
        "GET https://github.com/acme/app.git/info/refs\n\
         \x20 this is a git push to acme/app\n\
         \x20 no-gists (deny) is for gist.github.com\n\
         * mine (allow) fits\n\
         \x20 pages (passthrough) is for pages.test\n\
         \x20 github-read/git (allow) is for git alone: fetch **\n\
         \x20 github-read/web (allow) fits too, but a rule before it decides\n\
         \x20 github-read/api (allow) is for api.github.com\n\
         \x20 github-read/content (allow) is for raw.githubusercontent.com, gist.githubusercontent.com, \
         objects.githubusercontent.com, release-assets.githubusercontent.com, media.githubusercontent.com\n\
         allowed by rule `mine`; with secret github as the password of `x-access-token`; at most 1000 bytes up in a request"
    );
}

#[test]
fn what_is_decided_is_what_the_policy_decides() {
    let decided = |url, method| explain(&policy(RULES), url, method).decision.to_string();
    assert_eq!(
        decided("https://pages.test/any", "PUT"),
        "allowed by rule `pages`; the connection passes untouched"
    );
    assert!(
        decided("https://gist.github.com/x", "GET")
            .starts_with("denied: a connection to gist.github.com:443 is not")
    );
    assert!(
        decided("https://github.com/acme/app.git/git-receive-pack", "POST")
            .contains("pushes to refs/heads/agent/*")
    );
    assert!(
        decided("https://evil.test/", "GET")
            .contains("no rule of this sandbox's policy allows evil.test")
    );
}

#[test]
fn what_is_no_url_is_denied() {
    for url in [
        "",
        "github.com",
        "ftp://github.com/",
        "https://",
        "https:///x",
        "https://allowed.test@github.com/",
        "https://github.com\\@evil.test/",
        "https://github.com:0/",
        "https://127.1/",
        "https://git\thub.com/",
    ] {
        let told = explain(&policy(RULES), url, "GET");
        assert!(
            matches!(
                told.decision,
                Decision::Deny {
                    reason: protocol::DenyReason::BadName,
                    ..
                }
            ),
            "{url:?}"
        );
        assert!(told.rules.is_empty());
    }
}

#[test]
fn programs_read_it_as_json() {
    let told = explain(&policy(RULES), "https://pages.test/", "GET");
    let json = serde_json::to_value(told).unwrap();
    assert_eq!(json["decision"]["verdict"], "allow");
    assert_eq!(json["decision"]["inspect"], false);
    assert_eq!(json["rules"][2]["decides"], true);
    assert_eq!(json["url"], "https://pages.test/");
}
