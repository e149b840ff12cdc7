//! Policies and questions, written short.

use policy::{
    Channel, Connect, GitAct, Grant, Host, Policy, Request, Verdict, Wire, authority, git_act,
};

pub(crate) fn policy(text: &str) -> Policy {
    Policy::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn host(text: &str) -> Host {
    Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A question about `METHOD URL`, over TLS if the URL says so.
pub(crate) struct Ask<'a> {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) websocket: bool,
    pub(crate) git: Option<GitAct>,
}

pub(crate) fn ask<'a>(method: &'a str, url: &'a str) -> Ask<'a> {
    let (scheme, rest) = url.split_once("://").unwrap();
    let tls = matches!(scheme, "https" | "wss");
    let (place, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = authority(place, Some(if tls { 443 } else { 80 })).unwrap();
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    let git = git_act(method, path, query);
    Ask {
        host,
        port,
        tls,
        method,
        path,
        query,
        websocket: scheme.starts_with("ws"),
        git,
    }
}

impl Ask<'_> {
    /// With the refs that a push names.
    pub(crate) fn refs(mut self, names: &[&str]) -> Self {
        let Some(GitAct::Push { refs, .. }) = &mut self.git else {
            panic!("no push");
        };
        *refs = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    /// As somebody would ask who does not know git.
    pub(crate) fn without_git(mut self) -> Self {
        self.git = None;
        self
    }

    pub(crate) fn of(&self, policy: &Policy) -> Verdict<Grant> {
        policy.request(&self.request())
    }

    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            host: &self.host,
            port: self.port,
            tls: self.tls,
            method: self.method,
            path: self.path,
            query: self.query,
            websocket: self.websocket,
            git: self.git.as_ref(),
        }
    }
}

pub(crate) fn connect(policy: &Policy, place: &str, protocol: Wire) -> Verdict<Channel> {
    let (host, port) = authority(place, Some(443)).unwrap();
    policy.connect(&Connect {
        host: &host,
        port,
        protocol,
    })
}

/// What a verdict is, in a word: its rule, with what else is said.
pub(crate) fn word<T: std::fmt::Debug>(verdict: &Verdict<T>) -> String {
    match verdict {
        Verdict::Allow { rule, .. } => format!("allow {rule}"),
        Verdict::Ask { rule, .. } => format!("ask {rule}"),
        Verdict::Deny { rule, reason, .. } => {
            format!("deny {} {reason:?}", rule.as_deref().unwrap_or("-"))
        }
    }
}

/// What a policy says of `METHOD URL`, in a word.
pub(crate) fn said(policy: &Policy, method: &str, url: &str) -> String {
    word(&ask(method, url).of(policy))
}
