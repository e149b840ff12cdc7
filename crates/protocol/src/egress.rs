//! What leaves a sandbox, as it is journaled. No value of a secret is ever in one of these types.

use serde::{Deserialize, Serialize};

use crate::OpId;

/// Whether a request only reads, or may change something outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// Safe to send again: `GET`, `HEAD`, `OPTIONS` without a body, a GraphQL query, a git fetch.
    Read,
    /// May have changed something outside: everything else.
    Write,
}

/// The head of something that was sent, or was to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The operation whose process sent it; none where that process is not known any more, or belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpId>,
    /// `http`, `https`, `ws`, `wss`, `tls` (not looked into), `tcp` or `dns`.
    pub protocol: String,
    /// The name in canonical form, or an address.
    pub host: String,
    /// The port asked for.
    pub port: u16,
    /// The HTTP method, or the DNS type asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Path and query, with the values of secrets and placeholders taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A body that passed: its length and digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// Bytes of it, as far as it came.
    pub bytes: u64,
    /// BLAKE3 of them, in hex; none of something that has no bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A secret that was put into a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretUse {
    /// The name that the policy calls it by.
    pub name: String,
    /// A keyed hash of its value, to tell one version from another and nothing else.
    pub fingerprint: String,
}

/// Why something did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenyReason {
    /// No rule allows it.
    NoRule,
    /// A rule denies it.
    Rule,
    /// The name is none, or written in a way that is not allowed.
    BadName,
    /// The address must not be dialled: private, link-local, metadata …
    Address,
    /// The names of one connection or request do not agree (SNI, Host, CONNECT).
    Mismatch,
    /// The bytes are no protocol that is spoken here, or are malformed.
    Protocol,
    /// A placeholder stood where it must not, or was another sandbox's.
    Placeholder,
    /// The secret cannot be had: gone, revoked, its lease is another's, or its source failed.
    Secret,
    /// The upstream could not be reached or verified.
    Upstream,
    /// A person, or the lack of one in time, said no.
    Approval,
    /// A budget of the rule is used up.
    Budget,
}
