//! What leaves a sandbox, as it is journaled and as the API tells of it. No value of a secret is ever in one of these types.

use serde::{Deserialize, Serialize};

use crate::{ApprovalId, EffectId, OpId, Seq, UnixMillis};

/// Whether a request only reads, or may change something outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// Safe to send again: `GET`, `HEAD`, `OPTIONS` without a body, a GraphQL query, a git fetch.
    Read,
    /// May have changed something outside: everything else.
    Write,
}

/// The head of something that was sent, or was to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Passed {
    /// Bytes of it, as far as it came.
    pub bytes: u64,
    /// BLAKE3 of them, in hex; none of something that has no bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// The head of an answer that is recorded, as the sandbox saw it. Its body is in events of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedAnswer {
    /// HTTP status.
    pub status: u16,
    /// Headers, in their order.
    pub headers: Vec<(String, String)>,
    /// Bytes of the body.
    pub bytes: u64,
    /// What came behind the body.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trailers: Vec<(String, String)>,
}

/// A secret that was put into a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SecretUse {
    /// The name that the policy calls it by.
    pub name: String,
    /// A keyed hash of its value, to tell one version from another and nothing else.
    pub fingerprint: String,
}

/// Why something did not leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
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
    /// An operation that is run again sends something else than its lost run did, or nobody knows whether it does.
    Diverged,
}

/// A policy as it is set: its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PolicyText {
    /// TOML; empty allows nothing.
    pub policy: String,
    /// Leave out the rules that answers of people were made, which are kept else.
    #[serde(default)]
    pub forget: bool,
}

/// A policy that is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PolicyView {
    /// Its text; empty allows nothing.
    pub policy: String,
    /// BLAKE3 of the text, in hex.
    pub digest: String,
    /// The rules in it that answers of people were made.
    #[serde(default)]
    pub remembered: Vec<String>,
    /// Such rules that this change left out, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forgotten: Vec<String>,
}

/// Asks what a policy says of a request, without making it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CheckRequest {
    /// Where to: `https://host/path`.
    pub url: String,
    /// `GET` where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

/// How far an effect is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffectState {
    /// It goes on.
    Open,
    /// It went to its end.
    Done,
    /// It was broken off: the other side may have seen all of it, or a part.
    Broken,
    /// It did not leave: an operation that was run again got the answer that its lost run had got.
    Replayed,
}

/// One request that left a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectView {
    /// Its id.
    pub id: EffectId,
    /// Where it begins in the journal.
    pub seq: Seq,
    /// When it began.
    pub at_ms: UnixMillis,
    /// What it is.
    #[serde(flatten)]
    pub request: Outgoing,
    /// Whether it only reads.
    pub class: EffectKind,
    /// The rule that allowed it; empty for one that did not leave.
    pub rule: String,
    /// Secrets that were put in, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// How far it is.
    pub state: EffectState,
    /// The answer's HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What was sent of its body; none while it goes on, or where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Passed>,
    /// What came back of a body; none while it goes on, or where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Passed>,
    /// From begin to end, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its answer is recorded, for a run of its operation after this one was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// Why it is not, where it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<String>,
    /// The effect whose answer it got, where it did not leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<EffectId>,
}

/// Something that was to leave a sandbox and did not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DenialView {
    /// Its place in the journal.
    pub seq: Seq,
    /// When.
    pub at_ms: UnixMillis,
    /// What it was.
    #[serde(flatten)]
    pub request: Outgoing,
    /// Why not.
    pub reason: DenyReason,
    /// The rule that decided, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// In words.
    pub message: String,
    /// How often.
    pub times: u32,
}

/// A body that a person is asked about, before any of it has left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AskedBody {
    /// Its length; none where it is streamed and nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// BLAKE3 of it, in hex, where it was short enough to be read before: then the word is for this body and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How it begins, where it was read: at most 1 KiB of it, with whatever a terminal could take for a command escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beginning: Option<String>,
}

/// A request that waits for a person's word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ApprovalView {
    /// Its id.
    pub id: ApprovalId,
    /// When it was asked.
    pub at_ms: UnixMillis,
    /// What is to leave.
    #[serde(flatten)]
    pub request: Outgoing,
    /// What is known of its body; none where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<AskedBody>,
    /// The command of the operation that sends it, the first 4096 characters; none where that has ended or is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The rule that wants it asked.
    pub rule: String,
    /// How long it is held for a word, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The word, where it was given and is not used yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<bool>,
    /// Whether the request is held open for it now.
    pub held: bool,
}

/// Gives the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DecideApproval {
    /// Whether the request may leave.
    pub allow: bool,
    /// Make it a rule: the same method, host, port and path is not asked again.
    #[serde(default)]
    pub remember: bool,
}

/// A secret in the daemon's own store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SecretView {
    /// What policies call it.
    pub name: String,
    /// When its value was last set.
    pub changed_at_ms: UnixMillis,
    /// A keyed hash of its value.
    pub fingerprint: String,
}
