//! Why a policy decides as it does: the same functions that decide, asked rule by rule.

use std::fmt;

use protocol::DenyReason;
use serde::Serialize;

use crate::ask::{Connect, Request, Wire};
use crate::git::{GitAct, git_act};
use crate::host::{Host, authority};
use crate::inject::How;
use crate::policy::Policy;
use crate::rule::{Action, Asked, Budget, Fit, Rule};
use crate::say;
use crate::shown::cut;
use crate::verdict::{Channel, Grant, Verdict};

/// What a policy says of a URL, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The method asked about.
    pub method: String,
    /// The URL as it was understood, without its query; as it was given where it was not.
    pub url: String,
    /// What the request is to git, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<String>,
    /// Every rule, in the order in which they are looked at.
    pub rules: Vec<Looked>,
    /// What is decided.
    pub decision: Decision,
}

/// How one rule was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Looked {
    /// The rule; those of a preset have its name before theirs.
    pub rule: String,
    /// `allow`, `deny`, `ask`, `passthrough`.
    pub action: &'static str,
    /// Whether it decides.
    pub decides: bool,
    /// Why it fits, or does not.
    pub why: String,
}

/// What is decided of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Decision {
    /// It is allowed.
    Allow {
        /// By which rule.
        rule: String,
        /// Whether each request is looked at; else the connection passes untouched.
        inspect: bool,
        /// Secrets that go in, by name, each with where.
        secrets: Vec<String>,
        /// What the rule grants at most, in words.
        limits: Vec<String>,
    },
    /// A person is asked.
    Ask {
        /// By which rule.
        rule: String,
        /// How many seconds a word is waited for.
        timeout_s: u64,
        /// Secrets that go in, by name, each with where.
        secrets: Vec<String>,
        /// What the rule grants at most, in words.
        limits: Vec<String>,
    },
    /// It is not allowed.
    Deny {
        /// By which rule; none where none allows it.
        #[serde(skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// Why.
        reason: DenyReason,
        /// What programs inside are told.
        message: String,
    },
}

/// Says what a policy decides of a request, and why. A URL with `ws` or `wss` asks for a WebSocket.
#[must_use]
pub fn explain(policy: &Policy, url: &str, method: &str) -> Explanation {
    let url = match Url::parse(url) {
        Ok(url) => url,
        Err(wrong) => {
            let message = format!("`{}` is no URL that could be allowed: {wrong}", cut(url));
            return Explanation {
                method: cut(method),
                url: cut(url),
                git: None,
                rules: Vec::new(),
                decision: Decision::Deny {
                    rule: None,
                    reason: DenyReason::BadName,
                    message,
                },
            };
        }
    };
    let act = git_act(method, url.path, url.query);
    // A push is explained without its refs: which they are is told by its body only.
    let known = act
        .as_ref()
        .filter(|act| !matches!(act, GitAct::Push { .. }));
    let request = Request {
        host: &url.host,
        port: url.port,
        tls: url.tls,
        method,
        path: url.path,
        query: url.query,
        websocket: url.websocket,
        git: known,
    };
    let wire = if url.tls { Wire::Tls } else { Wire::Http };
    let connect = policy.connect(&Connect {
        host: &url.host,
        port: url.port,
        protocol: wire,
    });
    Explanation {
        method: cut(method),
        url: say::origin(url.host.in_url(), url.port, url.tls) + &cut(url.path),
        git: act.as_ref().map(GitAct::to_string),
        rules: looked(policy, &request, &connect),
        decision: decision(policy, &request, connect),
    }
}

fn decision(policy: &Policy, request: &Request<'_>, connect: Verdict<Channel>) -> Decision {
    let verdict = match connect {
        Verdict::Deny {
            rule,
            reason,
            message,
        } => {
            return Decision::Deny {
                rule,
                reason,
                message,
            };
        }
        Verdict::Allow {
            rule,
            grant: Channel::PassThrough,
        } => {
            return Decision::Allow {
                rule,
                inspect: false,
                secrets: Vec::new(),
                limits: Vec::new(),
            };
        }
        Verdict::Allow {
            grant: Channel::Inspect,
            ..
        }
        | Verdict::Ask { .. } => policy.request(request),
    };
    match verdict {
        Verdict::Allow { rule, grant } => Decision::Allow {
            rule,
            inspect: true,
            secrets: secrets(&grant),
            limits: limits(grant.budget),
        },
        Verdict::Ask {
            rule,
            timeout,
            grant,
        } => Decision::Ask {
            rule,
            timeout_s: timeout.as_secs(),
            secrets: secrets(&grant),
            limits: limits(grant.budget),
        },
        Verdict::Deny {
            rule,
            reason,
            message,
        } => Decision::Deny {
            rule,
            reason,
            message,
        },
    }
}

fn looked(policy: &Policy, request: &Request<'_>, connect: &Verdict<Channel>) -> Vec<Looked> {
    let asked = Asked::new(request);
    let untouched = match connect {
        Verdict::Allow {
            rule,
            grant: Channel::PassThrough,
        } => Some(rule),
        Verdict::Allow { .. } | Verdict::Ask { .. } | Verdict::Deny { .. } => None,
    };
    let mut decided = false;
    let order = |denying: bool| {
        policy
            .rules()
            .iter()
            .filter(move |rule| rule.denies() == denying)
    };
    let look = |rule: &Rule| {
        let fit = match untouched {
            // Of what passes untouched nothing but the connection is known.
            Some(name) if *name == rule.name => Fit::Yes,
            Some(_) | None => rule.fits(&asked),
        };
        let decides = !decided && !matches!(fit, Fit::No(_));
        let why = match fit {
            _ if decided && !matches!(fit, Fit::No(_)) => {
                "fits too, but a rule before it decides".to_owned()
            }
            Fit::No(miss) => say::why(rule, miss),
            Fit::Refuse(odd) => {
                format!("looks at the path, and this one can be read in two ways: {odd}")
            }
            Fit::Yes => match rule.action {
                Action::Ask(_) => "fits: a person is asked".to_owned(),
                Action::PassThrough => "fits: what is sent passes untouched".to_owned(),
                Action::Allow | Action::Deny => "fits".to_owned(),
            },
        };
        decided |= decides;
        Looked {
            rule: rule.name.clone(),
            action: rule.action.word(),
            decides,
            why,
        }
    };
    order(true).chain(order(false)).map(look).collect()
}

fn secrets(grant: &Grant) -> Vec<String> {
    let place = |how: &How| match how {
        How::Bearer => "as the bearer token".to_owned(),
        How::Basic { user } => format!("as the password of `{user}`"),
        How::Header { name, .. } => format!("in the header `{name}`"),
        How::Query { key } => format!("in the query as `{key}`"),
        How::Placeholder { .. } => "in place of its placeholder".to_owned(),
        How::SigV4 { service, region } => format!("as a signature for {service} in {region}"),
        How::GitHubApp { repository, .. } => {
            format!("as a token of a GitHub App for `{repository}`")
        }
    };
    grant
        .inject
        .iter()
        .map(|one| format!("{} {}", one.secret, place(&one.how)))
        .collect()
}

fn limits(budget: Budget) -> Vec<String> {
    let upload = budget
        .upload
        .map(|bytes| format!("{bytes} bytes up in a request"));
    let rate = budget
        .requests_per_minute
        .map(|number| format!("{number} requests in a minute"));
    upload.into_iter().chain(rate).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.method, self.url)?;
        if let Some(git) = &self.git {
            writeln!(f, "  this is a {git}")?;
        }
        for looked in &self.rules {
            let mark = if looked.decides { '*' } else { ' ' };
            writeln!(
                f,
                "{mark} {} ({}) {}",
                looked.rule, looked.action, looked.why
            )?;
        }
        self.decision.fmt(f)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secrets, limits) = match self {
            Self::Allow {
                rule,
                inspect: true,
                secrets,
                limits,
            } => {
                write!(f, "allowed by rule `{rule}`")?;
                (secrets, limits)
            }
            Self::Allow { rule, .. } => {
                return write!(
                    f,
                    "allowed by rule `{rule}`; the connection passes untouched"
                );
            }
            Self::Ask {
                rule,
                timeout_s,
                secrets,
                limits,
            } => {
                write!(f, "a person is asked, by rule `{rule}`, for {timeout_s} s")?;
                (secrets, limits)
            }
            Self::Deny { message, .. } => return write!(f, "denied: {message}"),
        };
        secrets
            .iter()
            .try_for_each(|secret| write!(f, "; with secret {secret}"))?;
        limits
            .iter()
            .try_for_each(|limit| write!(f, "; at most {limit}"))
    }
}

/// As much of a URL as a decision takes.
struct Url<'a> {
    host: Host,
    port: u16,
    tls: bool,
    websocket: bool,
    path: &'a str,
    query: Option<&'a str>,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        const SCHEMES: &str = "write https://, http://, wss:// or ws:// before the host";
        let (scheme, rest) = text.split_once("://").ok_or(SCHEMES)?;
        let (tls, websocket) = match scheme.to_ascii_lowercase().as_str() {
            "https" => (true, false),
            "wss" => (true, true),
            "http" => (false, false),
            "ws" => (false, true),
            _ => return Err(SCHEMES.to_owned()),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (place, rest) = rest.split_at(end);
        let (host, port) = authority(place, Some(if tls { 443 } else { 80 }))
            .map_err(|error| error.to_string())?;
        let (path, query) = match rest.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (rest, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self {
            host,
            port,
            tls,
            websocket,
            path,
            query,
        })
    }
}
