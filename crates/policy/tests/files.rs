//! The format: what it takes, and how it says no.

use policy::{MAX_TEXT, Policy, Shown};

use crate::world::policy;

const RULE: &str = "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\naction = \"allow\"\n";
const SECRET: &str = "[[secret]]\nname = \"s\"\nfrom = \"env:S\"\n";

fn error(text: &str) -> String {
    match Policy::parse(text) {
        Ok(_) => panic!("taken: {text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_example_of_the_documentation_is_a_policy() {
    let text = r#"
presets = ["crates", "npm"]
[[rule]]
name = "my-repo"
hosts = ["github.com"]
ports = [443]
plain = false
methods = ["GET", "POST"]
paths = ["/acme/**"]
query = { service = "git-*" }
websocket = true
git = { fetch = ["acme/*"], push = ["acme/app"], refs = ["refs/heads/agent/*"] }
action = "ask"
timeout = "90s"
inject = [{ secret = "github", basic = "x-access-token" }]
limits = { upload = "10MiB", requests_per_minute = 600 }
addresses = ["10.1.0.0/16"]
[[secret]]
name = "github"
from = "env:GITHUB_TOKEN"
placeholder = { env = "GITHUB_TOKEN" }
require = true
"#;
    let rules = policy(text);
    assert_eq!(rules.text(), text);
    assert_eq!(rules.digest().len(), 64);
    assert_ne!(rules.digest(), Policy::empty().digest());
    let secret = rules.secret("github").unwrap();
    assert_eq!(secret.placeholder, Some(Shown::Env("GITHUB_TOKEN".into())));
    assert_eq!(policy(rules.text()), rules);
}

#[test]
fn an_error_says_where_what_and_what_is_allowed() {
    for (text, want) in [
        (
            "a = 1",
            "line 1: there is no key `a` (allowed: presets, rule, secret)",
        ),
        (
            "presets = [\"crate\"]",
            "line 1: `presets`: there is no such preset (allowed: anthropic, crates, ",
        ),
        (
            "\n\n[[rule]]\nname = \"r\"\n",
            "line 3: `rule.r.action`: this is missing (allowed: allow, deny, ask, passthrough)",
        ),
        (
            "[rule]\n",
            "line 1: `rule`: write `[[rule]]`, with two brackets",
        ),
        (
            "[[rule]]\nname = 1\n",
            "line 2: `rule.name`: this is a number (allowed: a string)",
        ),
        (
            "[[rule]]\nname = \"a b\"\n",
            "line 2: `rule.name`: this is no name",
        ),
        (
            &format!("{RULE}method = [\"GET\"]\n"),
            "line 5: `rule`: there is no key `method` (allowed: name, action, ",
        ),
        (
            &format!("{RULE}methods = [\"get\"]\n"),
            "line 5: `rule.r.methods`: this is no method of a request",
        ),
        (
            &format!("{RULE}methods = \"GET\"\n"),
            "line 5: `rule.r.methods`: this is a string (allowed: a list",
        ),
        (
            &format!("{RULE}ports = [70000]\n"),
            "line 5: `rule.r.ports`: this number does not fit here (allowed: a number from 1 to 65535)",
        ),
        (&format!("{RULE}ports = [8378]\n"), "a service of its own"),
        (
            &format!("{RULE}paths = [\"a\"]\n"),
            "a path begins with a slash",
        ),
        (
            &format!("{RULE}paths = [\"/a/../b\"]\n"),
            "no segments `.` and `..`",
        ),
        (
            &format!("{RULE}timeout = \"1s\"\n"),
            "this has no meaning with `action = \"allow\"`",
        ),
        (
            &format!("{RULE}limits = {{ upload = \"10 miles\" }}\n"),
            "this is no size (allowed: sizes like",
        ),
        (
            &format!("{RULE}limits = {{ upload = \"0B\" }}\n"),
            "this is no size",
        ),
        (&format!("{RULE}limits = {{}}\n"), "this limits nothing"),
        (&format!("{RULE}query = {{}}\n"), "this names no key"),
        (&format!("{RULE}git = {{}}\n"), "this names no repository"),
        (
            &format!("{RULE}git = {{ fetch = [\"a/b\"], refs = [\"refs/heads/x\"] }}\n"),
            "refs are of a push",
        ),
        (
            &format!("{RULE}git = {{ push = [\"a/b\"], refs = [\"main\"] }}\n"),
            "a ref is written in full",
        ),
        (
            &format!("{RULE}git = {{ push = [\"a/b.git\"] }}\n"),
            "without `.git`",
        ),
        (
            &format!("{RULE}addresses = [\"10.0.0.1/8\"]\n"),
            "not the first one of its net",
        ),
        (&format!("{RULE}roots = \"x\"\n"), "no list of certificates"),
        (
            &format!(
                "{RULE}roots = \"\"\"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\"\"\"\n"
            ),
            "roots do nothing",
        ),
        (
            "presets = [{ name = \"crates\", hosts = [\"x.test\"] }]",
            "there is no key `hosts`",
        ),
        (
            &format!("{RULE}roots = \"-----BEGIN PRIVATE KEY-----\"\n"),
            "no list of certificates",
        ),
        (
            &format!("{RULE}inject = [{{ secret = \"s\", bearer = true }}]\n"),
            "no `[[secret]]` of this name",
        ),
        (
            &format!("{SECRET}{RULE}inject = [{{ secret = \"s\" }}]\n"),
            "an injection says one thing",
        ),
        (
            &format!(
                "{SECRET}{RULE}inject = [{{ secret = \"s\", bearer = true, query = \"k\" }}]\n"
            ),
            "an injection says one thing",
        ),
        (
            &format!("{SECRET}{RULE}inject = [{{ secret = \"s\", bearer = false }}]\n"),
            "leave it out instead",
        ),
        (
            &format!(
                "{SECRET}{RULE}inject = [{{ secret = \"s\", header = \"X\", format = \"x\" }}]\n"
            ),
            "a format has `{}`",
        ),
        (
            &format!(
                "{SECRET}{RULE}inject = [{{ secret = \"s\", placeholder = [\"header:x\"] }}]\n"
            ),
            "has no `placeholder`",
        ),
        (
            &format!(
                "{SECRET}{RULE}inject = [{{ secret = \"s\", bearer = true }}, {{ secret = \"s\", basic = \"u\" }}]\n"
            ),
            "two secrets go into one place",
        ),
        (
            &format!("{RULE}{RULE}"),
            "line 5: `rule`: there are two rules `r`",
        ),
        (&format!("{SECRET}{SECRET}"), "there are two secrets `s`"),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"127.1\"]\naction = \"deny\"",
            "line 3: `rule.r.hosts`: this is an unusual way",
        ),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"*.com\"]\naction = \"allow\"",
            "anybody can have a host that `*.com` means",
        ),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"*\"]\nroots = \"x\"\naction = \"ask\"",
            "no list of certificates",
        ),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"*\"]\naddresses = [\"10.0.0.1\"]\naction = \"ask\"",
            "name the hosts",
        ),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nplain = true\naction = \"deny\"",
            "no meaning with `action = \"deny\"`",
        ),
        (
            "[[rule]]\nname = \"r\"\nhosts = [\"a.test\"]\nmethods = [\"GET\"]\naction = \"passthrough\"",
            "no meaning",
        ),
        ("x = [", "line 1: this is no TOML: "),
        ("a = 1\na = 2", "line 2: this is no TOML: "),
    ] {
        let said = error(text);
        assert!(said.contains(want), "{text}\n{said}");
    }
    assert!(error(&"#".repeat(MAX_TEXT + 1)).contains("longer than"));
    let many: Vec<u16> = (1000..1065).collect();
    assert!(error(&format!("{RULE}ports = {many:?}")).contains("more than 64 ports"));
}

#[test]
fn a_secret_that_is_written_down_is_refused_and_not_repeated() {
    for value in [
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "user:hunter2",
        "env:",
        "ENV:X",
        "https://user:hunter2@x",
        "",
    ] {
        let said = error(&format!(
            "[[secret]]\nname = \"github\"\nfrom = \"{value}\"\n"
        ));
        assert!(value.len() < 5 || !said.contains(value), "{said}");
        assert!(
            !said.contains("hunter2") && said.contains("`secret.github.from`"),
            "{said}"
        );
    }
    let literal = error("[[secret]]\nname = \"github\"\nfrom = \"ghp_16C7e42F292c\"\n");
    assert!(
        literal.contains("durable secret set github") && literal.contains("age:github"),
        "{literal}"
    );
    // Nor where it breaks the file.
    let broken = error("[[secret]]\nname = \"github\"\nfrom = ghp_16C7e42F292c\n");
    assert!(!broken.contains("ghp_16C7e42F292c"), "{broken}");
}

#[test]
fn a_rule_that_can_never_match_is_an_error() {
    let two = |first: &str, second: &str| {
        let rule = |name: &str, rest: &str| format!("[[rule]]\nname = \"{name}\"\n{rest}\n");
        Policy::parse(&(rule("first", first) + &rule("second", second)))
    };
    let all = "hosts = [\"*.a.test\", \"b.test\"]\naction = \"allow\"";
    for second in [
        "hosts = [\"x.a.test\"]\nmethods = [\"GET\"]\naction = \"allow\"",
        "hosts = [\"*.x.a.test\", \"b.test\"]\naction = \"ask\"",
    ] {
        let said = two(all, second).unwrap_err().to_string();
        assert!(
            said.contains("rule `second` can never match: rule `first` above it"),
            "{said}"
        );
    }
    for second in [
        "hosts = [\"x.a.test\"]\nmethods = [\"GET\"]\naction = \"deny\"",
        "hosts = [\"a.test\"]\naction = \"allow\"",
        "hosts = [\"x.a.test\"]\nports = [8443]\naction = \"allow\"",
        "hosts = [\"x.a.test\"]\nports = [443]\nplain = true\naction = \"allow\"",
        "hosts = [\"*\"]\naction = \"ask\"",
    ] {
        assert!(two(all, second).is_ok(), "{second}");
    }
    assert!(
        two(
            "hosts = [\"b.test\"]\nmethods = [\"GET\"]\naction = \"allow\"",
            "hosts = [\"b.test\"]\naction = \"allow\""
        )
        .is_ok()
    );
    assert!(
        two(
            "hosts = [\"*\"]\naction = \"deny\"\nmethods = [\"PUT\"]",
            all
        )
        .is_ok()
    );
}
