//! Which hosts a rule names.

use std::fmt;

use crate::host::{Host, HostError};
use crate::suffixes;

/// One entry of `hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// `*`: every host.
    Any,
    /// A name or an address.
    Exact(Host),
    /// `*.suffix`: the names below it, of any depth, not itself.
    Below(String),
}

/// Why a text is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PatternError {
    Host(HostError),
    Star,
    BelowAddress,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(error) => error.fmt(f),
            Self::Star => {
                f.write_str("a star stands only for whole labels at the begin: `*.example.com`")
            }
            Self::BelowAddress => f.write_str("nothing is below an address"),
        }
    }
}

impl HostPattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let suffix = text.strip_prefix("*.");
        let rest = suffix.unwrap_or(text);
        if rest.contains('*') {
            return Err(PatternError::Star);
        }
        match (Host::parse(rest).map_err(PatternError::Host)?, suffix) {
            (host, None) => Ok(Self::Exact(host)),
            (Host::Name(name), Some(_)) => Ok(Self::Below(name)),
            (Host::Ip(_), Some(_)) => Err(PatternError::BelowAddress),
        }
    }

    pub(crate) fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Exact(named), host) => named == host,
            (Self::Below(suffix), Host::Name(name)) => is_below(name, suffix),
            (Self::Below(_), Host::Ip(_)) => false,
        }
    }

    /// Whether every host that the other one means is meant by this one.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Exact(host)) => self.matches(host),
            (Self::Below(own), Self::Below(suffix)) => own == suffix || is_below(suffix, own),
            (Self::Exact(_), Self::Below(_)) | (_, Self::Any) => false,
        }
    }

    /// Whether anybody can have a host that this means: then it is no list of hosts.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(_) => false,
            Self::Below(suffix) => suffixes::is_public(suffix),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(host) => host.fmt(f),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    let label = name
        .strip_suffix(suffix)
        .and_then(|rest| rest.strip_suffix('.'));
    label.is_some_and(|label| !label.is_empty())
}
