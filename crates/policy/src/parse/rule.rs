//! `[[rule]]`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::PolicyError;
use super::fields::{Fields, Item};
use super::{inject, units};
use crate::glob::Glob;
use crate::inject::Injection;
use crate::net::Net;
use crate::pattern::HostPattern;
use crate::rule::{Action, Budget, GitRule, Rule};
use crate::secret::SecretRef;

const KEYS: [&str; 16] = [
    "name",
    "action",
    "addresses",
    "git",
    "hosts",
    "inject",
    "limits",
    "methods",
    "paths",
    "plain",
    "ports",
    "query",
    "remembered",
    "roots",
    "timeout",
    "websocket",
];
/// How long `ask` waits where nothing is said.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Ports inside a sandbox that are ours, or are answered by somebody else than a rule.
const OURS: [u16; 3] = [53, protocol::paths::MODEL_PORT, protocol::paths::PROXY_PORT];

pub(super) fn read(item: &Item<'_>, secrets: &[SecretRef]) -> Result<Rule, PolicyError> {
    let mut fields = item.table(&KEYS)?;
    let name = name(&fields.need("name", "a name for the rule")?)?;
    fields.call(format!("rule.{name}"));
    let action = action(&fields)?;
    let plain = flag(&fields, "plain")?.unwrap_or(false);
    let git = fields.get("git").map(|item| git(&item)).transpose()?;
    let rule = Rule {
        name,
        action,
        hosts: each(&fields.need("hosts", "a list of names")?, |item, text| {
            host(item, text, action)
        })?,
        ports: ports(&fields, action, plain)?,
        plain,
        methods: list(&fields, "methods", method)?,
        paths: list(&fields, "paths", path)?,
        query: query(&fields)?,
        inject: injections(&fields, secrets, git.is_some())?,
        written: ["inject", "limits"]
            .into_iter()
            .filter_map(|key| Some(format!("{key} = {}\n", fields.get(key)?.source())))
            .collect(),
        git,
        websocket: flag(&fields, "websocket")?,
        limits: limits(&fields)?,
        remembered: flag(&fields, "remembered")?.unwrap_or(false),
        addresses: addresses(&fields)?,
        roots: fields.get("roots").map(|item| roots(&item)).transpose()?,
    };
    agree(&fields, &rule)?;
    Ok(rule)
}

/// Reads a name of a rule or a secret.
pub(super) fn name(item: &Item<'_>) -> Result<String, PolicyError> {
    let text = item.string()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(plain)
        && text.len() <= 64;
    match good {
        true => Ok(text.to_owned()),
        false => Err(item.error(
            "this is no name",
            "at most 64 letters, digits, `-`, `_`, `.`, a letter or digit first",
        )),
    }
}

fn action(fields: &Fields<'_>) -> Result<Action, PolicyError> {
    const ALLOWED: &str = "allow, deny, ask, passthrough";
    let item = fields.need("action", ALLOWED)?;
    let timeout = fields
        .get("timeout")
        .map(|item| units::time(&item))
        .transpose()?;
    match item.string()? {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        "ask" => Ok(Action::Ask(timeout.unwrap_or(TIMEOUT))),
        "passthrough" => Ok(Action::PassThrough),
        _ => Err(item.error("there is no such action", ALLOWED)),
    }
}

fn host(item: &Item<'_>, text: &str, action: Action) -> Result<HostPattern, PolicyError> {
    let pattern = HostPattern::parse(text)
        .map_err(|error| item.error(error.to_string(), "names, addresses, `*.example.com`"))?;
    let open = pattern.is_open() && matches!(action, Action::Allow | Action::PassThrough);
    match open {
        true => Err(item.error(
            format!(
                "anybody can have a host that `{pattern}` means, so this would allow everything"
            ),
            "names; in a rule that denies or asks this too",
        )),
        false => Ok(pattern),
    }
}

fn ports(
    fields: &Fields<'_>,
    action: Action,
    plain: bool,
) -> Result<Option<BTreeSet<u16>>, PolicyError> {
    let Some(item) = fields.get("ports") else {
        return Ok(match action {
            Action::Deny => None,
            _ if plain => Some([80, 443].into()),
            _ => Some([443].into()),
        });
    };
    let mut ports = BTreeSet::new();
    for item in item.items()? {
        let port = u16::try_from(item.number(1, u64::from(u16::MAX))?).unwrap_or_default();
        if OURS.contains(&port) {
            return Err(item.error(
                "at this port a sandbox has a service of its own",
                "any other",
            ));
        }
        ports.insert(port);
    }
    Ok(Some(ports))
}

fn method(item: &Item<'_>, text: &str) -> Result<String, PolicyError> {
    const ALLOWED: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, … in capitals";
    let plain = |c: char| c.is_ascii_uppercase() || c == '-' || c == '_';
    match !text.is_empty() && text.chars().all(plain) && text != "CONNECT" {
        true => Ok(text.to_owned()),
        false => Err(item.error("this is no method of a request", ALLOWED)),
    }
}

fn path(item: &Item<'_>, text: &str) -> Result<Glob, PolicyError> {
    const ALLOWED: &str = "patterns like \"/acme/**\", \"/v1/*/status\"";
    if !text.starts_with('/') {
        return Err(item.error("a path begins with a slash", ALLOWED));
    }
    if text.contains(['?', '#']) {
        return Err(item.error(
            "a path ends before `?` and `#`",
            "`query` for what stands behind `?`",
        ));
    }
    Glob::parse(text).map_err(|wrong| item.error(wrong, ALLOWED))
}

fn repo(item: &Item<'_>, text: &str) -> Result<Glob, PolicyError> {
    const ALLOWED: &str = "patterns like \"acme/app\", \"acme/*\"";
    if text.starts_with('/') || text.ends_with(".git") || text.ends_with('/') {
        return Err(item.error(
            "a repository is written without a slash at its ends and without `.git`",
            ALLOWED,
        ));
    }
    Glob::parse(text).map_err(|wrong| item.error(wrong, ALLOWED))
}

fn git_ref(item: &Item<'_>, text: &str) -> Result<Glob, PolicyError> {
    const ALLOWED: &str = "patterns like \"refs/heads/agent/*\", \"refs/tags/**\"";
    if !text.starts_with("refs/") {
        return Err(item.error("a ref is written in full", ALLOWED));
    }
    Glob::parse(text).map_err(|wrong| item.error(wrong, ALLOWED))
}

fn git(item: &Item<'_>) -> Result<GitRule, PolicyError> {
    let fields = item.table(&["fetch", "push", "refs"])?;
    let git = GitRule {
        fetch: list(&fields, "fetch", repo)?.unwrap_or_default(),
        push: list(&fields, "push", repo)?.unwrap_or_default(),
        refs: list(&fields, "refs", git_ref)?,
    };
    if git.fetch.is_empty() && git.push.is_empty() {
        return Err(item.error("this names no repository", "fetch = […], push = […]"));
    }
    match fields.get("refs") {
        Some(refs) if git.push.is_empty() => {
            Err(refs.error("refs are of a push: name `push` too", ""))
        }
        _ => Ok(git),
    }
}

fn query(fields: &Fields<'_>) -> Result<Vec<(String, Vec<String>)>, PolicyError> {
    let Some(item) = fields.get("query") else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for (key, item) in item.table(&[])?.all() {
        let patterns = match item.is_string() {
            true => vec![item.string()?.to_owned()],
            false => each(&item, |_, text| Ok(text.to_owned()))?,
        };
        all.push((key.to_owned(), patterns));
    }
    match all.is_empty() {
        true => Err(item.error("this names no key", "{ key = \"pattern\" }")),
        false => Ok(all),
    }
}

fn injections(
    fields: &Fields<'_>,
    secrets: &[SecretRef],
    git: bool,
) -> Result<Vec<Injection>, PolicyError> {
    let Some(item) = fields.get("inject") else {
        return Ok(Vec::new());
    };
    let mut all: Vec<Injection> = Vec::new();
    for item in item.items()? {
        let one = inject::read(&item, secrets, git)?;
        let place = one.how.place();
        if place.is_some() && all.iter().any(|other| other.how.place() == place) {
            return Err(item.error("two secrets go into one place", ""));
        }
        all.push(one);
    }
    Ok(all)
}

fn limits(fields: &Fields<'_>) -> Result<Budget, PolicyError> {
    let Some(item) = fields.get("limits") else {
        return Ok(Budget::default());
    };
    let fields = item.table(&["requests_per_minute", "upload"])?;
    let requests = fields
        .get("requests_per_minute")
        .map(|item| item.number(1, u64::from(u32::MAX)))
        .transpose()?;
    let limits = Budget {
        upload: fields
            .get("upload")
            .map(|item| units::size(&item))
            .transpose()?,
        requests_per_minute: requests.map(|number| u32::try_from(number).unwrap_or(u32::MAX)),
    };
    match limits == Budget::default() {
        true => Err(item.error("this limits nothing", "upload, requests_per_minute")),
        false => Ok(limits),
    }
}

/// Reads the private addresses that hosts may have.
pub(super) fn addresses(fields: &Fields<'_>) -> Result<Vec<Net>, PolicyError> {
    Ok(list(fields, "addresses", net)?.unwrap_or_default())
}

fn net(item: &Item<'_>, text: &str) -> Result<Net, PolicyError> {
    Net::parse(text).map_err(|wrong| {
        item.error(
            wrong,
            "addresses and nets like \"127.0.0.1\", \"10.0.0.0/8\"",
        )
    })
}

/// Reads certificates, and nothing else: a private key has no place here.
pub(super) fn roots(item: &Item<'_>) -> Result<String, PolicyError> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let text = item.string()?;
    let (mut inside, mut found) = (false, false);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        match (line, inside) {
            (BEGIN, false) => inside = true,
            (END, true) => (inside, found) = (false, true),
            (body, true) if body.chars().all(base64) => {}
            _ => return Err(item.error("this is no list of certificates in PEM", BEGIN)),
        }
    }
    match found && !inside {
        true => Ok(text.to_owned()),
        false => Err(item.error("this is no list of certificates in PEM", BEGIN)),
    }
}

/// Refuses what has no meaning together.
fn agree(fields: &Fields<'_>, rule: &Rule) -> Result<(), PolicyError> {
    let idle: &[&str] = match rule.action {
        Action::Allow => &["timeout"],
        Action::Ask(_) => &[],
        Action::Deny => &[
            "addresses",
            "inject",
            "limits",
            "plain",
            "roots",
            "timeout",
            "websocket",
        ],
        Action::PassThrough => &[
            "git",
            "inject",
            "limits",
            "methods",
            "paths",
            "query",
            "roots",
            "timeout",
            "websocket",
        ],
    };
    let word = rule.action.word();
    if let Some(item) = idle.iter().find_map(|key| fields.get(key)) {
        return Err(item.error(
            format!("this has no meaning with `action = \"{word}\"`"),
            "",
        ));
    }
    for key in ["addresses", "inject", "roots"] {
        if let Some(item) = fields.get(key)
            && rule.is_open()
        {
            return Err(item.error(
                "this rule is for hosts that anybody can have: name the hosts",
                "",
            ));
        }
    }
    match fields.get("inject") {
        Some(item) if rule.plain => Err(item.error(
            "a secret is never sent without TLS: take `plain` out, or use two rules",
            "",
        )),
        _ => Ok(()),
    }
}

fn flag(fields: &Fields<'_>, key: &str) -> Result<Option<bool>, PolicyError> {
    fields.get(key).map(|item| item.boolean()).transpose()
}

fn list<T>(
    fields: &Fields<'_>,
    key: &str,
    read: impl Fn(&Item<'_>, &str) -> Result<T, PolicyError>,
) -> Result<Option<Vec<T>>, PolicyError> {
    fields.get(key).map(|item| each(&item, read)).transpose()
}

fn each<T>(
    item: &Item<'_>,
    read: impl Fn(&Item<'_>, &str) -> Result<T, PolicyError>,
) -> Result<Vec<T>, PolicyError> {
    item.items()?
        .iter()
        .map(|item| read(item, item.string()?))
        .collect()
}
