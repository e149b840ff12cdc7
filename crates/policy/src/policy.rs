//! A policy: its rules in order, and its answers.
//!
//! Any rule that denies and fits wins. Else the first rule that fits decides: those of the file, those of presets, and then those
//! for everybody. Else it is denied.

use std::collections::BTreeSet;
use std::net::IpAddr;

use protocol::EffectKind;

use crate::ask::{Connect, Request, Wire};
use crate::effect;
use crate::git::GitAct;
use crate::guard::{self, Refused, vet};
use crate::host::Host;
use crate::parse::{self, PolicyError};
use crate::pattern::HostPattern;
use crate::rule::{Action, Asked, Fit, Rule};
use crate::say;
use crate::secret::SecretRef;
use crate::verdict::{Channel, Grant, Verdict};

/// What may leave a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    text: String,
    rules: Vec<Rule>,
    secrets: Vec<SecretRef>,
}

impl Policy {
    /// Reads a policy from its text, TOML:
    ///
    /// ```toml
    /// presets = ["crates", "npm"]         # sets of rules, after those of this file; `presets()` lists them
    ///
    /// [[rule]]
    /// name = "my-repo"                    # unique; shown in denials and effects
    /// hosts = ["github.com"]              # names, "*.below.example.com", addresses; "*" only to deny or ask
    /// ports = [443]                       # 443 where it is left out, with `plain` 80 too; all in a rule that denies
    /// plain = false                       # true: without TLS as well
    /// methods = ["GET", "POST"]           # all where it is left out
    /// paths = ["/acme/**"]                # `*` within a segment, `**` across segments
    /// query = { service = "git-*" }       # keys that must be there, with what they may say
    /// websocket = true                    # true where it is left out, unless `methods` are named
    /// git = { fetch = ["acme/*"], push = ["acme/app"], refs = ["refs/heads/agent/*"] }
    /// action = "allow"                    # allow, deny, ask, passthrough
    /// timeout = "90s"                     # of `ask`
    /// inject = [{ secret = "github", basic = "x-access-token" }]
    /// limits = { upload = "10MiB", requests_per_minute = 600 }
    /// remembered = true                   # an answer to an `ask`, which may leave nothing to rules below it
    /// addresses = ["10.1.0.0/16"]         # private addresses that these hosts may have
    /// roots = """-----BEGIN CERTIFICATE-----…"""   # authorities trusted for these hosts, beside the usual
    ///
    /// [[secret]]
    /// name = "github"
    /// from = "env:GITHUB_TOKEN"           # a reference, never a value
    /// placeholder = { env = "GITHUB_TOKEN" }
    /// require = true                      # a credential of the client's own is refused
    /// ```
    ///
    /// An injection is one of `bearer = true`, `basic = "USER"`, `header = "NAME"` (with `format = "token {}"`), `query =
    /// "KEY"`, `placeholder = ["header:NAME", "query:KEY"]`, `sigv4 = { service = "s3", region = "us-east-1" }` and
    /// `github_app = { app = "ID", installation = 1, repository = "app", permissions = { contents = "write" } }`, with
    /// `api = "https://HOST/api/v3"` for an Enterprise Server.
    ///
    /// # Errors
    ///
    /// Whatever is not understood, with its line: nothing is passed over. Values never stand in the error.
    pub fn parse(toml: &str) -> Result<Self, PolicyError> {
        let parse::File { rules, secrets } = parse::file(toml)?;
        let text = toml.to_owned();
        Ok(Self {
            text,
            rules,
            secrets,
        })
    }

    /// Returns the policy that allows nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns the text that it was read from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns BLAKE3 of the text, in hex.
    #[must_use]
    pub fn digest(&self) -> String {
        blake3::hash(self.text.as_bytes()).to_hex().to_string()
    }

    /// Returns the ports that need doors of their own, beside those that every sandbox has.
    #[must_use]
    pub fn ports(&self) -> BTreeSet<u16> {
        let named = self
            .rules
            .iter()
            .filter(|rule| !rule.denies())
            .filter_map(|rule| rule.ports.as_ref())
            .flatten();
        named
            .copied()
            .filter(|port| !protocol::paths::DOOR_PORTS.contains(port))
            .collect()
    }

    /// Returns the secrets that are declared.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        self.secrets.iter()
    }

    /// Returns the secret of this name.
    #[must_use]
    pub fn secret(&self, name: &str) -> Option<&SecretRef> {
        self.secrets.iter().find(|secret| secret.name == name)
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Says what is to be done with a connection. It is never [`Verdict::Ask`]: who asks a person needs the request for it.
    pub fn connect(&self, asked: &Connect<'_>) -> Verdict<Channel> {
        let Connect {
            host,
            port,
            protocol,
        } = *asked;
        let tls = protocol == Wire::Tls;
        let reach = || {
            self.rules
                .iter()
                .filter(move |rule| rule.carries(host, port, tls).is_ok())
        };
        let mut look = false;
        for rule in reach().filter(|rule| rule.denies()) {
            match rule.is_narrow() {
                true => look = true,
                false => return say::denied(rule, &say::connection(asked), None),
            }
        }
        let mut first = None;
        for rule in reach().filter(|rule| !rule.denies()) {
            let passes = rule.action == Action::PassThrough;
            if protocol == Wire::Unknown {
                // Bytes of no kind that is known cannot be asked about later.
                if passes && !look {
                    return allow(rule, Channel::PassThrough);
                }
                continue;
            }
            first = first.or(Some(rule));
            look |= rule.needs_look() || protocol == Wire::Http && !passes;
            if !rule.is_narrow() {
                break;
            }
        }
        match first {
            Some(rule) if look => allow(rule, Channel::Inspect),
            Some(rule) => allow(rule, Channel::PassThrough),
            None => say::no_connection(&self.rules, asked),
        }
    }

    /// Says whether a request may leave, and with what.
    pub fn request(&self, request: &Request<'_>) -> Verdict<Grant> {
        let asked = Asked::new(request);
        let what = say::request(request);
        let order = |denying: bool| {
            self.rules
                .iter()
                .filter(move |rule| rule.denies() == denying)
        };
        for rule in order(true).chain(order(false)) {
            match rule.fits(&asked) {
                Fit::No(_) => {}
                Fit::Refuse(odd) => return say::odd_path(rule, &what, odd),
                Fit::Yes => {
                    let grant = || Grant {
                        inject: rule.inject.clone(),
                        budget: rule.limits,
                        kind: kind_of(&asked),
                    };
                    return match rule.action {
                        Action::Deny => say::denied(rule, &what, asked.git.as_ref()),
                        Action::Ask(timeout) => Verdict::Ask {
                            rule: rule.name.clone(),
                            timeout,
                            grant: grant(),
                        },
                        Action::Allow | Action::PassThrough => allow(rule, grant()),
                    };
                }
            }
        }
        say::no_request(&self.rules, &asked, &what)
    }

    /// Says whether an address that a name resolved to may be dialled: as [`vet`], but for what a rule names on purpose.
    ///
    /// # Errors
    ///
    /// As [`vet`].
    pub fn dial(&self, host: &Host, port: u16, ip: IpAddr) -> Result<(), Refused> {
        let ip = ip.to_canonical();
        let named = |rule: &Rule| {
            // What a person said of one request names no address: whoever asked chose it.
            let itself = !rule.remembered && rule.hosts.contains(&HostPattern::Exact(Host::Ip(ip)));
            // Who names a net does not mean the metadata service in it.
            let mut nets = rule
                .addresses
                .iter()
                .filter(|net| net.is_one() || !guard::is_metadata(ip));
            itself && *host == Host::Ip(ip) || nets.any(|net| net.holds(ip))
        };
        match self.allowing(host, port).any(named) {
            true => Ok(()),
            false => vet(ip),
        }
    }

    /// Returns authorities that are trusted for a host beside the usual ones, PEM.
    #[must_use]
    pub fn roots(&self, host: &Host, port: u16) -> Option<&str> {
        self.allowing(host, port)
            .find_map(|rule| rule.roots.as_deref())
    }

    fn allowing(&self, host: &Host, port: u16) -> impl Iterator<Item = &Rule> {
        let rules = self.rules.iter().filter(|rule| !rule.denies());
        rules.filter(move |rule| rule.reaches(host, port).is_ok())
    }
}

fn allow<T>(rule: &Rule, grant: T) -> Verdict<T> {
    Verdict::Allow {
        rule: rule.name.clone(),
        grant,
    }
}

/// Whether it only reads, as far as that is told without headers and body.
fn kind_of(asked: &Asked<'_>) -> EffectKind {
    if asked.request.websocket {
        return EffectKind::Write;
    }
    match asked.git {
        Some(GitAct::Fetch { .. } | GitAct::Advertise { .. }) => EffectKind::Read,
        Some(GitAct::Push { .. }) => EffectKind::Write,
        None => effect::kind(asked.request.method, asked.request.path, [], None),
    }
}
