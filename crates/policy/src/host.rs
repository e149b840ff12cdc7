//! The one canonical form of a host, for rules and for requests alike: what two texts mean is compared, never the texts.
//!
//! Whatever another program could read as something else is refused here and not guessed at. That an address may be dialled
//! is the guard's business, not this file's.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

/// The longest text that is looked at; no spelling of a name of 253 bytes is longer.
const MAX_TEXT: usize = 2048;
/// The longest name DNS knows, without the dot of the root.
const MAX_NAME: usize = 253;
/// The longest label DNS knows.
const MAX_LABEL: usize = 63;

/// A host in canonical form. Two that mean the same are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name: lower case, A-labels, no dot at its end.
    Name(String),
    /// An address; one of IPv4 that was written as one of IPv6 is one of IPv4.
    Ip(IpAddr),
}

/// Why a text is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// There is nothing.
    #[error("the host is empty")]
    Empty,
    /// `user@host`, in which one reader sees another host than the next.
    #[error("a host has no user before it: leave out what stands before `@`")]
    Userinfo,
    /// A port where none belongs, or none where one is needed, or something that is none.
    #[error("{0}")]
    Port(&'static str),
    /// `fe80::1%eth0`.
    #[error("an address with a zone (`%…`) means nothing outside of its machine")]
    Zone,
    /// A character that no host has.
    #[error("the character {0:?} does not belong in a host")]
    Character(char),
    /// Two dots side by side, or one at the begin.
    #[error("a name has no empty labels: there are two dots side by side, or one at its begin")]
    EmptyLabel,
    /// More than DNS can say.
    #[error("a name has at most 253 bytes, and at most 63 between two dots")]
    TooLong,
    /// A hyphen at an end of a label.
    #[error("a label of a name neither begins nor ends with a hyphen")]
    Hyphen,
    /// An underscore in the part of a name that somebody registers.
    #[error("an underscore stands only before the last two labels of a name")]
    Underscore,
    /// `127.1`, `0x7f.0.0.1`, `2130706433`: an address to some programs and a name to others.
    #[error(
        "this is an unusual way to write an address: write four decimal numbers without leading zeros"
    )]
    OddAddress,
    /// Brackets around something else than an address of IPv6, or none around one that a port follows.
    #[error("brackets belong around an address of IPv6, and around nothing else")]
    Brackets,
    /// Not a name after the rules for international names (UTS 46).
    #[error("this is no valid international name (UTS 46)")]
    International,
}

impl Host {
    /// Reads a host without a port: a name in any case and any script, or an address, that of IPv6 with brackets or without.
    ///
    /// # Errors
    ///
    /// Whatever is not plainly one host, see [`HostError`].
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text.len() > MAX_TEXT {
            return Err(HostError::TooLong);
        }
        if text.contains('@') {
            return Err(HostError::Userinfo);
        }
        if text.contains('%') {
            return Err(match text.contains(':') {
                true => HostError::Zone,
                false => HostError::Character('%'),
            });
        }
        if let Some(odd) = text.chars().find(|&c| never_in_host(c)) {
            return Err(HostError::Character(odd));
        }
        if let Some(rest) = text.strip_prefix('[') {
            return match rest.split_once(']') {
                Some((inside, "")) => v6(inside),
                Some((_, after)) if after.starts_with(':') => Err(HostError::Port(NO_PORT)),
                _ => Err(HostError::Brackets),
            };
        }
        if text.contains([']', '[']) {
            return Err(HostError::Brackets);
        }
        if text.contains(':') {
            return v6(text).map_err(|_| HostError::Port(NO_PORT));
        }
        if let Ok(ip) = Ipv4Addr::from_str(text) {
            return Ok(Self::Ip(ip.into()));
        }
        name(text)
    }

    /// Returns the name, if it is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Ip(_) => None,
        }
    }

    /// Returns how it stands before a port and in a URL: an address of IPv6 in brackets.
    #[must_use]
    pub fn in_url(&self) -> String {
        match self {
            Self::Ip(IpAddr::V6(ip)) => format!("[{ip}]"),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text)
    }
}

const NO_PORT: &str = "a port does not belong here: name the host alone";
const NEEDS_PORT: &str = "a port is missing: write `host:port`";
const BAD_PORT: &str = "a port is a number from 1 to 65535, without leading zeros";

/// Reads `host`, `host:port` or `[v6]:port`, as in a `Host` header, an `:authority` or a CONNECT.
///
/// # Errors
///
/// As [`Host::parse`]; and where there is neither a port nor a default.
pub fn authority(text: &str, default_port: Option<u16>) -> Result<(Host, u16), HostError> {
    if text.contains('@') {
        return Err(HostError::Userinfo);
    }
    let (host, port) = if text.starts_with('[') {
        match text.find(']') {
            Some(end) => match text.split_at(end + 1) {
                (host, "") => (host, None),
                (host, rest) => match rest.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None => return Err(HostError::Brackets),
                },
            },
            None => return Err(HostError::Brackets),
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(HostError::Brackets),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let host = Host::parse(host)?;
    match port {
        Some(port) => Ok((host, port_number(port).ok_or(HostError::Port(BAD_PORT))?)),
        None => Ok((host, default_port.ok_or(HostError::Port(NEEDS_PORT))?)),
    }
}

fn port_number(text: &str) -> Option<u16> {
    let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// What is refused before anything is mapped. The ideographic full stops and other scripts are left to UTS 46.
fn never_in_host(c: char) -> bool {
    c.is_control()
        || c.is_whitespace()
        || matches!(
            c,
            '/' | '\\' | '?' | '#' | '<' | '>' | '^' | '|' | '`' | '{' | '}' | '"' | '\''
        )
}

fn v6(text: &str) -> Result<Host, HostError> {
    let ip = Ipv6Addr::from_str(text).map_err(|_| HostError::Brackets)?;
    Ok(Host::Ip(ip.to_canonical()))
}

fn name(text: &str) -> Result<Host, HostError> {
    let mapped = Uts46::new()
        .to_ascii(
            text.as_bytes(),
            AsciiDenyList::URL,
            Hyphens::Allow,
            DnsLength::Ignore,
        )
        .map_err(|_| HostError::International)?;
    let name = mapped.strip_suffix('.').unwrap_or(&mapped);
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if name.len() > MAX_NAME {
        return Err(HostError::TooLong);
    }
    let labels: Vec<&str> = name.split('.').collect();
    if is_number(labels[labels.len() - 1]) {
        return Err(HostError::OddAddress);
    }
    for (at, label) in labels.iter().enumerate() {
        if label.is_empty() {
            return Err(HostError::EmptyLabel);
        }
        if label.len() > MAX_LABEL {
            return Err(HostError::TooLong);
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(HostError::Hyphen);
        }
        for c in label.chars() {
            match c {
                'a'..='z' | '0'..='9' | '-' => {}
                '_' if at + 2 < labels.len() => {}
                '_' => return Err(HostError::Underscore),
                other => return Err(HostError::Character(other)),
            }
        }
    }
    Ok(Host::Name(name.to_owned()))
}

/// Whether `inet_aton` and URL parsers take a last label as a number: then all of it is an address to them.
fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x");
    !label.is_empty() && label.bytes().all(|b| b.is_ascii_digit())
        || hex.is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}
