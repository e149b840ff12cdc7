//! One rule, and how what is asked fits it.
//!
//! A rule that denies is read broadly and one that allows narrowly: where two readings of a request differ, both lean to the
//! side of not letting it out.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::ask::Request;
use crate::git::GitAct;
use crate::glob::{Case, Glob, star};
use crate::host::Host;
use crate::inject::Injection;
use crate::net::Net;
use crate::path::{self, Odd};
use crate::pattern::HostPattern;
use crate::query;

/// What a rule grants at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of the body of one request, or that one WebSocket sends.
    pub upload: Option<u64>,
    /// Requests in a minute, of all that the rule allows in a sandbox.
    pub requests_per_minute: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Deny,
    Ask(Duration),
    PassThrough,
}

impl Action {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask(_) => "ask",
            Self::PassThrough => "passthrough",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) action: Action,
    pub(crate) hosts: Vec<HostPattern>,
    /// None are all, which only a rule that denies can say.
    pub(crate) ports: Option<BTreeSet<u16>>,
    /// Whether it is also for what is not encrypted.
    pub(crate) plain: bool,
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<Glob>>,
    /// Keys with the patterns of their values.
    pub(crate) query: Vec<(String, Vec<String>)>,
    pub(crate) git: Option<GitRule>,
    pub(crate) websocket: Option<bool>,
    pub(crate) inject: Vec<Injection>,
    pub(crate) limits: Budget,
    /// These two as they were written.
    pub(crate) written: String,
    /// Whether it is an answer of a person, which may leave nothing to the rules below it.
    pub(crate) remembered: bool,
    pub(crate) addresses: Vec<Net>,
    pub(crate) roots: Option<String>,
}

/// Which repositories a rule is for, and what may be done with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GitRule {
    pub(crate) fetch: Vec<Glob>,
    pub(crate) push: Vec<Glob>,
    /// None are all.
    pub(crate) refs: Option<Vec<Glob>>,
}

/// How a connection or a request fits a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    No(Miss),
    /// It cannot be told, and so is refused.
    Refuse(Odd),
}

/// The first condition of a rule that is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Miss {
    Host,
    Port,
    Plain,
    Method,
    WebSocket,
    Path,
    Query,
    Git,
    Ref,
}

/// What was asked, with what git makes of it.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) git: Option<GitAct>,
    /// Whether the refs of a push were looked at by who asks.
    pub(crate) refs_known: bool,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(request: &'a Request<'a>) -> Self {
        let own = crate::git::git_act(request.method, request.path, request.query);
        Self {
            request,
            git: request.git.cloned().or(own),
            refs_known: request.git.is_some(),
        }
    }
}

impl Rule {
    pub(crate) fn denies(&self) -> bool {
        self.action == Action::Deny
    }

    /// Whether it is for hosts that anybody can have; such a rule comes after all others.
    pub(crate) fn is_open(&self) -> bool {
        self.hosts.iter().any(HostPattern::is_open)
    }

    /// Whether a connection to a port of a host can be for this rule.
    pub(crate) fn reaches(&self, host: &Host, port: u16) -> Result<(), Miss> {
        if !self.hosts.iter().any(|pattern| pattern.matches(host)) {
            return Err(Miss::Host);
        }
        match &self.ports {
            Some(ports) if !ports.contains(&port) => Err(Miss::Port),
            _ => Ok(()),
        }
    }

    /// [`Rule::reaches`], and encrypted or not.
    pub(crate) fn carries(&self, host: &Host, port: u16, tls: bool) -> Result<(), Miss> {
        self.reaches(host, port)?;
        match tls || self.plain || self.denies() {
            true => Ok(()),
            false => Err(Miss::Plain),
        }
    }

    /// Whether it says something of single requests, so that it takes a look at them to know whether they fit.
    pub(crate) fn is_narrow(&self) -> bool {
        self.methods.is_some()
            || self.paths.is_some()
            || !self.query.is_empty()
            || self.git.is_some()
            || self.websocket == Some(false)
    }

    /// Whether requests must be seen for it to be kept.
    pub(crate) fn needs_look(&self) -> bool {
        match self.action {
            Action::PassThrough => false,
            Action::Deny => self.is_narrow(),
            Action::Ask(_) => true,
            Action::Allow => {
                self.is_narrow() || !self.inject.is_empty() || self.limits != Budget::default()
            }
        }
    }

    /// Whether connections of another rule are looked into since this one is for some of them.
    pub(crate) fn looks_into(&self, other: &Self) -> bool {
        let shares_ports = match (&self.ports, &other.ports) {
            (Some(own), Some(others)) => !own.is_disjoint(others),
            (None, _) | (_, None) => true,
        };
        let shares_hosts = self.hosts.iter().any(|own| {
            let mut others = other.hosts.iter();
            others.any(|host| own.covers(host) || host.covers(own))
        });
        self.needs_look() && shares_ports && shares_hosts
    }

    pub(crate) fn fits(&self, asked: &Asked<'_>) -> Fit {
        let request = asked.request;
        if let Err(miss) = self.carries(request.host, request.port, request.tls) {
            return Fit::No(miss);
        }
        if !self.has_method(request.method) {
            return Fit::No(Miss::Method);
        }
        if request.websocket && !self.has_websocket() {
            return Fit::No(Miss::WebSocket);
        }
        if self.paths.is_some() || self.git.is_some() {
            let segments = match path::segments(request.path) {
                Ok(segments) => segments,
                // `OPTIONS *` has no path; nothing that names one means it.
                Err(Odd::NotAbsolute) if request.path == "*" => return Fit::No(Miss::Path),
                Err(odd) => return Fit::Refuse(odd),
            };
            if !self.has_path(&segments) {
                return Fit::No(Miss::Path);
            }
        }
        if !self.has_query(request.query) {
            return Fit::No(Miss::Query);
        }
        match &self.git {
            Some(git) => self.has_git(git, asked),
            None => Fit::Yes,
        }
    }

    fn case(&self) -> Case {
        match self.denies() {
            true => Case::Ignored,
            false => Case::Matters,
        }
    }

    fn has_method(&self, method: &str) -> bool {
        let same = |named: &String| match self.denies() {
            true => named.eq_ignore_ascii_case(method),
            false => named == method,
        };
        self.methods
            .as_ref()
            .is_none_or(|methods| methods.iter().any(same))
    }

    /// A WebSocket is a `GET` after which anything may pass: who names methods must name it too.
    fn has_websocket(&self) -> bool {
        self.websocket.unwrap_or(self.methods.is_none()) || self.denies()
    }

    fn has_path(&self, segments: &[Vec<u8>]) -> bool {
        let Some(paths) = &self.paths else {
            return true;
        };
        let matches =
            |segments: &[&[u8]]| paths.iter().any(|glob| glob.matches(segments, self.case()));
        let whole: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        if !self.denies() {
            return matches(&whole);
        }
        // `/admin/` and `/admin;x=1` are often served as `/admin`.
        let bare = segments
            .iter()
            .map(|segment| segment.split(|&byte| byte == b';').next());
        let bare: Vec<&[u8]> = bare.map(Option::unwrap_or_default).collect();
        [whole, bare]
            .iter()
            .any(|segments| match segments.as_slice() {
                [rest @ .., []] if !rest.is_empty() => matches(segments) || matches(rest),
                segments => matches(segments),
            })
    }

    /// Every key must be there. Of one that is there more than once, all values must fit to allow, and any to deny.
    fn has_query(&self, text: Option<&str>) -> bool {
        if self.query.is_empty() {
            return true;
        }
        let pairs: Vec<_> = query::pairs(text.unwrap_or_default()).collect();
        let is_key = |found: &[u8], key: &[u8]| match self.case() {
            Case::Matters => found == key,
            Case::Ignored => found.eq_ignore_ascii_case(key),
        };
        self.query.iter().all(|(key, patterns)| {
            let mut values = pairs
                .iter()
                .filter(|(found, _)| is_key(found, key.as_bytes()))
                .map(|(_, value)| value)
                .peekable();
            let fits = |value: &Vec<u8>| {
                patterns
                    .iter()
                    .any(|pattern| star(pattern.as_bytes(), value, self.case()))
            };
            match self.denies() {
                true => values.any(fits),
                false => values.peek().is_some() && values.all(fits),
            }
        })
    }

    fn has_git(&self, rule: &GitRule, asked: &Asked<'_>) -> Fit {
        let case = self.case();
        let names =
            |globs: &[Glob], repo: &str| globs.iter().any(|glob| glob.matches_text(repo, case));
        let fits = |yes: bool, miss| if yes { Fit::Yes } else { Fit::No(miss) };
        match &asked.git {
            None => Fit::No(Miss::Git),
            Some(GitAct::Fetch { repo } | GitAct::Advertise { repo, push: false }) => {
                fits(names(&rule.fetch, repo), Miss::Git)
            }
            // A rule that denies some refs only must not deny the question which there are.
            Some(GitAct::Advertise { repo, push: true }) => fits(
                names(&rule.push, repo) && !(self.denies() && rule.refs.is_some()),
                Miss::Git,
            ),
            Some(GitAct::Push { repo, .. }) if !names(&rule.push, repo) => Fit::No(Miss::Git),
            Some(GitAct::Push { refs, .. }) => match &rule.refs {
                None => Fit::Yes,
                Some(_) if !asked.refs_known => fits(self.denies(), Miss::Ref),
                Some(globs) => {
                    let named =
                        |name: &String| globs.iter().any(|glob| glob.matches_text(name, case));
                    let yes = match self.denies() {
                        true => refs.iter().any(named),
                        false => refs.iter().all(named),
                    };
                    fits(yes, Miss::Ref)
                }
            },
        }
    }

    /// Whether a rule below this one can never match, since this one takes all that it could.
    pub(crate) fn shadows(&self, below: &Self) -> bool {
        let (Some(ports), Some(others)) = (&self.ports, &below.ports) else {
            return false;
        };
        !self.denies()
            && !self.remembered
            && !self.is_narrow()
            && (below.is_open() || !self.is_open())
            && (self.plain || !below.plain)
            && others.is_subset(ports)
            && below
                .hosts
                .iter()
                .all(|other| self.hosts.iter().any(|own| own.covers(other)))
    }
}
