//! What is said of a refusal: to a model that reads a program's output, so that it stops trying, or tries what is allowed, or
//! asks the right person for the right thing. What came from inside is escaped and cut.

use std::fmt::Write as _;

use protocol::DenyReason;

use crate::ask::{Connect, Request, Wire};
use crate::git::GitAct;
use crate::glob::Glob;
use crate::path::Odd;
use crate::rule::{Asked, Fit, Miss, Rule};
use crate::shown::cut;
use crate::verdict::Verdict;

/// Of how many rules it is said why they do not fit.
const RULES: usize = 3;

/// Returns a connection in words.
pub(crate) fn connection(asked: &Connect<'_>) -> String {
    format!("a connection to {}:{}", asked.host.in_url(), asked.port)
}

/// Returns a request in words, without its query.
pub(crate) fn request(request: &Request<'_>) -> String {
    let upgrade = if request.websocket {
        " (WebSocket)"
    } else {
        ""
    };
    let path = if request.path.starts_with('/') {
        cut(request.path)
    } else {
        " ".to_owned() + &cut(request.path)
    };
    format!(
        "{} {}{path}{upgrade}",
        cut(request.method),
        origin(request.host.in_url(), request.port, request.tls)
    )
}

/// A rule forbids it.
pub(crate) fn denied<T>(rule: &Rule, what: &str, git: Option<&GitAct>) -> Verdict<T> {
    let git = git.map(|act| format!(" ({act})")).unwrap_or_default();
    Verdict::Deny {
        rule: Some(rule.name.clone()),
        reason: DenyReason::Rule,
        message: format!(
            "{what}{git} is not allowed: rule `{}` of this sandbox's policy denies it. Trying again does not help. {PERSON}",
            rule.name
        ),
    }
}

/// A rule asks for the path of something that has none to compare.
pub(crate) fn odd_path<T>(rule: &Rule, what: &str, odd: Odd) -> Verdict<T> {
    Verdict::Deny {
        rule: Some(rule.name.clone()),
        reason: DenyReason::BadName,
        message: format!(
            "{what} is not allowed: rule `{}` of this sandbox's policy looks at the path, and this one can be read in two ways: {odd}. Send the path in its plain form.",
            rule.name
        ),
    }
}

/// No rule lets a connection out.
pub(crate) fn no_connection<T>(rules: &[Rule], asked: &Connect<'_>) -> Verdict<T> {
    let Connect {
        host,
        port,
        protocol,
    } = *asked;
    let tls = protocol == Wire::Tls;
    let miss = |rule: &Rule| rule.carries(host, port, tls).err();
    let (mut reason, mut why) = (DenyReason::NoRule, near(rules, &host.to_string(), miss));
    if protocol == Wire::Unknown {
        let carried = rules
            .iter()
            .any(|rule| !rule.denies() && rule.reaches(host, port).is_ok());
        if carried {
            reason = DenyReason::Protocol;
            "what is sent is neither TLS nor HTTP, and no rule passes it through"
                .clone_into(&mut why);
        }
    }
    let what = connection(asked);
    let scheme = if tls { "https" } else { "http" };
    let url = format!("{scheme}://{}:{port}/", host.in_url());
    Verdict::Deny {
        rule: None,
        reason,
        message: format!("{what} is not allowed: {why}. {}", hint(&url)),
    }
}

/// No rule lets a request out.
pub(crate) fn no_request<T>(rules: &[Rule], asked: &Asked<'_>, what: &str) -> Verdict<T> {
    let request = asked.request;
    let miss = |rule: &Rule| match rule.fits(asked) {
        Fit::No(miss) => Some(miss),
        Fit::Yes | Fit::Refuse(_) => None,
    };
    let why = near(rules, &request.host.to_string(), miss);
    let git = asked
        .git
        .as_ref()
        .map(|act| format!(" ({act})"))
        .unwrap_or_default();
    // As one types it in a shell; a path that would have to be quoted is left out, for it was written by a program inside.
    let plain = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._~/@:+%,=".contains(&b))
    };
    let path =
        Some(request.path).filter(|path| path.starts_with('/') && path.len() <= 200 && plain(path));
    let method = Some(request.method)
        .filter(|method| *method != "GET" && method.len() <= 20 && plain(method));
    let method = method.map_or(String::new(), |method| format!("-X {method} "));
    let url = origin(request.host.in_url(), request.port, request.tls) + path.unwrap_or("/");
    let url = method + &url;
    Verdict::Deny {
        rule: None,
        reason: DenyReason::NoRule,
        message: format!("{what}{git} is not allowed: {why}. {}", hint(&url)),
    }
}

/// Returns why a rule does not fit.
pub(crate) fn why(rule: &Rule, miss: Miss) -> String {
    let globs = |globs: &[Glob]| list(globs.iter().map(Glob::text));
    match miss {
        Miss::Host => format!("is for {}", list(&rule.hosts)),
        Miss::Port => format!("is for port {}", list(rule.ports.iter().flatten())),
        Miss::Plain => "is for TLS only".to_owned(),
        Miss::Method => format!("is for {}", list(rule.methods.iter().flatten())),
        Miss::WebSocket => "is not for WebSockets".to_owned(),
        Miss::Path => format!(
            "is for the paths {}",
            globs(rule.paths.as_deref().unwrap_or_default())
        ),
        Miss::Query => format!(
            "is for queries with {}",
            list(rule.query.iter().map(|(key, _)| key))
        ),
        Miss::Git => {
            let git = rule.git.clone().unwrap_or_default();
            let mut text = "is for git alone:".to_owned();
            for (verb, repos) in [("fetch", &git.fetch), ("push", &git.push)] {
                if !repos.is_empty() {
                    // Writing into a string cannot fail.
                    let _ = write!(text, " {verb} {}", globs(repos));
                }
            }
            text
        }
        Miss::Ref => {
            let refs = rule
                .git
                .as_ref()
                .and_then(|git| git.refs.as_deref())
                .unwrap_or_default();
            format!("is for pushes to {}", globs(refs))
        }
    }
}

/// Says of the rules that name the host why they do not fit; that there is none, else.
fn near(rules: &[Rule], host: &str, miss: impl Fn(&Rule) -> Option<Miss>) -> String {
    let allowing = rules.iter().filter(|rule| !rule.denies());
    let close = allowing.filter_map(|rule| match miss(rule) {
        Some(Miss::Host) | None => None,
        Some(miss) => Some(format!("rule `{}` {}", rule.name, why(rule, miss))),
    });
    let all: Vec<String> = close.collect();
    match all.len() {
        0 if rules.is_empty() => "this sandbox's policy allows nothing".to_owned(),
        0 => format!("no rule of this sandbox's policy allows {host}"),
        1..=RULES => all.join("; "),
        more => format!(
            "{}; and so on for {} more",
            all[..RULES].join("; "),
            more - RULES
        ),
    }
}

const PERSON: &str = "Only a person outside the sandbox can change its policy.";

fn hint(url: &str) -> String {
    format!(
        "Trying again does not help. {PERSON} `durable policy check {url} --of SANDBOX` tells them more."
    )
}

/// Returns scheme, host and port of a URL, the port where it is not the usual.
pub(crate) fn origin(host: String, port: u16, tls: bool) -> String {
    let (scheme, usual) = if tls { ("https", 443) } else { ("http", 80) };
    match port == usual {
        true => format!("{scheme}://{host}"),
        false => format!("{scheme}://{host}:{port}"),
    }
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    cut(&all.join(", "))
}
