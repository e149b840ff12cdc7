//! The events of a sandbox's journal, and the chain that ties them.
//!
//! State is a fold over these and nothing else, so an event says what happened, never what to do. A kind and its fields are
//! never reused for another meaning; a field added later has a default (docs/journal-format.md).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ApprovalId, AskedBody, Boot, CutId, DenyReason, EffectId, EffectKind, Epoch, ModelRequestId,
    Offset, OpId, OpSpec, Origin, Outgoing, Passed, RecordedAnswer, SandboxId, SandboxName,
    SandboxSpec, SecretUse, Seq, SessionId, Settlement, UnixMillis, WorkspaceId, base64_bytes,
};

/// The version written into new events. A reader refuses a higher one.
pub const EVENT_VERSION: u16 = 1;

/// The predecessor hash of a journal's first event.
pub const GENESIS_HASH: [u8; 32] = [0; 32];

/// A random id that resolves a lost reply: the same id at the expected place means "mine, it was written".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub [u8; 16]);

/// The end of a journal: the witness that the supervisor keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The last event's place; 0 where there is none.
    pub seq: Seq,
    /// The last event's chain hash.
    pub hash: [u8; 32],
}

impl Head {
    /// The head of an empty journal.
    pub const EMPTY: Self = Self {
        seq: Seq(0),
        hash: GENESIS_HASH,
    };

    /// Returns the digest of a payload that [`advance`](Self::advance) takes.
    ///
    /// The chain goes over digests so that whoever writes many journals does not have to go over their bytes again.
    #[must_use]
    pub fn digest(payload: &[u8]) -> [u8; 32] {
        *blake3::hash(payload).as_bytes()
    }

    /// Returns the head after one more event.
    #[must_use]
    pub fn advance(self, id: EventId, epoch: Epoch, at: UnixMillis, digest: &[u8; 32]) -> Self {
        let seq = self.seq.next();
        Self {
            seq,
            hash: link(&self.hash, seq, id, epoch, at, digest),
        }
    }
}

/// One event as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its place.
    pub seq: Seq,
    /// Its random id.
    pub id: EventId,
    /// The epoch it was written under.
    pub epoch: Epoch,
    /// When it was written, for people.
    pub at: UnixMillis,
    /// What happened.
    pub event: Event,
    /// The chain hash over it and everything before it.
    pub hash: [u8; 32],
}

/// Returns the chain hash of an event: BLAKE3 over the predecessor's hash, the event's place, id, epoch, time and the
/// BLAKE3 of its payload.
#[must_use]
pub fn chain_hash(
    prev: &[u8; 32],
    seq: Seq,
    id: EventId,
    epoch: Epoch,
    at: UnixMillis,
    payload: &[u8],
) -> [u8; 32] {
    link(prev, seq, id, epoch, at, &Head::digest(payload))
}

fn link(
    prev: &[u8; 32],
    seq: Seq,
    id: EventId,
    epoch: Epoch,
    at: UnixMillis,
    digest: &[u8; 32],
) -> [u8; 32] {
    let mut bytes = [0; 104];
    let mut rest = &mut bytes[..];
    for part in [
        &prev[..],
        &seq.0.to_le_bytes(),
        &id.0,
        &epoch.0.to_le_bytes(),
        &at.0.to_le_bytes(),
        digest,
    ] {
        let (into, after) = rest.split_at_mut(part.len());
        into.copy_from_slice(part);
        rest = after;
    }
    *blake3::hash(&bytes).as_bytes()
}

/// Why a boot of the supervisor ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// It was told to.
    Stopped,
    /// It was lost: killed, or the machine went down.
    Crashed,
}

/// How a request to a model ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ModelOutcome {
    /// The upstream's answer was read to its end.
    Complete,
    /// The upstream could not be reached or broke off.
    Failed {
        /// What went wrong, for people.
        error: String,
    },
    /// The process that held the upstream connection was lost; a prefix may be there.
    Lost,
}

/// A tool call that a model asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The model's id of it; our operation id where the tool is a shell.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments as JSON text.
    pub input: String,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The sandbox exists. Always the first event.
    Created {
        /// What it was created with.
        spec: SandboxSpec,
        /// Its writable head in the pool.
        workspace: WorkspaceId,
    },
    /// The sandbox exists as a fork of another. The first event where `created` is not.
    Forked {
        /// What it was created with.
        spec: SandboxSpec,
        /// Its writable head in the pool.
        workspace: WorkspaceId,
        /// What its source is called.
        from: SandboxName,
        /// Its source's number.
        from_id: SandboxId,
        /// The place in the source's journal that it starts at.
        at: Seq,
        /// The cut that it starts from, kept under the same id in both; none where the source was still empty.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<CutId>,
        /// Whether it goes with the client that asked for it, or with the daemon, unless it is kept.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        bound: bool,
    },
    /// A bound fork stays, whatever becomes of the client that asked for it.
    Kept,
    /// A daemon took the right to write.
    LeaseTaken {
        /// Who, for people: host name and process id.
        node: String,
    },
    /// A supervisor runs.
    Started {
        /// Its boot.
        boot: Boot,
    },
    /// A supervisor ended, and every process with it.
    Ended {
        /// Its boot.
        boot: Boot,
        /// Why.
        reason: EndReason,
    },
    /// An operation will be started. Durable before the supervisor hears of it.
    OpIntent {
        /// The caller's id.
        op: OpId,
        /// What was asked for.
        spec: OpSpec,
        /// Who asked.
        origin: Origin,
        /// The workspace's last cut at that moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut_before: Option<CutId>,
    },
    /// The supervisor started it.
    OpStarted {
        /// Which operation.
        op: OpId,
        /// In which boot.
        boot: Boot,
        /// 1 for the first run; more only where `replay` allowed it.
        attempt: u32,
    },
    /// A restarted daemon found it in the supervisor's hands: running, or settled with nobody told.
    OpAdopted {
        /// Which operation.
        op: OpId,
    },
    /// It ended; nobody was told before this was durable.
    OpSettled {
        /// Which operation.
        op: OpId,
        /// How.
        settlement: Settlement,
        /// The cut taken after it; none where it changed nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut: Option<CutId>,
    },
    /// A cut of the workspace.
    CutTaken {
        /// Its id in the pool.
        cut: CutId,
        /// Operations that were running at that instant; empty for a quiet cut.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open: Vec<OpId>,
        /// Whether every process of the sandbox stood still: it shows all files as they were at one instant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        still: bool,
    },
    /// A cut was made a checkpoint with a name: it is kept until the label is taken off.
    CutLabeled {
        /// Which.
        cut: CutId,
        /// Its name; none takes the one it had off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// Older cuts were given back to the pool: by the retention rule, or because somebody removed a checkpoint.
    CutsDropped {
        /// Which.
        cuts: Vec<CutId>,
    },
    /// The workspace was put back.
    RolledBack {
        /// To which cut; none is the empty workspace it was created with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<CutId>,
        /// The new writable head.
        workspace: WorkspaceId,
    },
    /// Files and timeline were put back together: what stands between `at` and here is an abandoned branch.
    Rewound {
        /// The place that the timeline goes on from.
        at: Seq,
        /// The cut that the files were put back to; none is the empty workspace it was created with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<CutId>,
        /// The new writable head.
        workspace: WorkspaceId,
    },
    /// Cuts reached a blob store, and the journal up to a place before this one with them: they survive the machine.
    Replicated {
        /// Where: the store's address and what the sandbox is called there.
        to: String,
        /// The last event that the store has.
        at: Seq,
        /// Cuts that it did not have before.
        cuts: Vec<CutId>,
    },
    /// The journal up to here was copied out of a blob store, and the files put back: the sandbox goes on in another place.
    ///
    /// What was running there is lost: nobody here can see its end.
    Pulled {
        /// From where: the store's address and what the sandbox is called there.
        from: String,
        /// The new writable head, which has the cuts as well.
        workspace: WorkspaceId,
        /// The cuts that came along.
        cuts: Vec<CutId>,
    },
    /// A request to a model was accepted. Durable before the upstream is asked.
    ModelRequested {
        /// Its id.
        request: ModelRequestId,
        /// Path and query, such as `/v1/messages`.
        path: String,
        /// BLAKE3 of method, path and body, in hex.
        digest: String,
        /// BLAKE3 of the conversation in it, without what a resumed harness adds, in hex.
        conversation: String,
        /// The session's attempt that sent it, 0 outside a session.
        attempt: u32,
    },
    /// The upstream answered.
    ModelResponded {
        /// Which request.
        request: ModelRequestId,
        /// HTTP status.
        status: u16,
        /// Headers that a client needs again.
        headers: Vec<(String, String)>,
    },
    /// A piece of the answer, as it arrived.
    ModelOutput {
        /// Which request.
        request: ModelRequestId,
        /// Where in the body it starts.
        offset: Offset,
        /// The bytes.
        #[serde(with = "base64_bytes")]
        data: Bytes,
    },
    /// The answer ended.
    ModelSettled {
        /// Which request.
        request: ModelRequestId,
        /// How.
        #[serde(flatten)]
        outcome: ModelOutcome,
        /// Bytes of the body.
        bytes: Offset,
        /// The tool calls in it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    /// The whole answer was handed to the harness.
    ModelDelivered {
        /// Which request.
        request: ModelRequestId,
        /// The session's attempt that got it, 0 outside a session.
        #[serde(default)]
        attempt: u32,
    },
    /// A harness session began.
    SessionStarted {
        /// Its id, which is also the harness's own session id.
        session: SessionId,
        /// `claude`, `pi` …
        harness: String,
        /// The arguments after the harness's name, as the user wrote them.
        args: Vec<String>,
        /// The operation that runs it first.
        op: OpId,
        /// Everything else its driver must remember, as JSON.
        detail: serde_json::Value,
    },
    /// The harness was lost and is started again.
    SessionResumed {
        /// Which session.
        session: SessionId,
        /// 2 for the first resumption.
        attempt: u32,
        /// The operation that runs it now.
        op: OpId,
        /// Tool calls whose true result was written into the transcript.
        repaired: Vec<OpId>,
    },
    /// The harness ended by itself, or was given up.
    SessionEnded {
        /// Which session.
        session: SessionId,
        /// Why it was given up; none where the harness ended by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A request is about to leave. Durable before its first byte does, where it may change something outside.
    EffectBegun {
        /// Its id.
        effect: EffectId,
        /// What it is.
        #[serde(flatten)]
        request: Outgoing,
        /// Whether it only reads.
        class: EffectKind,
        /// The rule that allowed it.
        rule: String,
        /// Secrets that were put in.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        secrets: Vec<SecretUse>,
        /// BLAKE3 of what a repetition must have in its head, in hex; only where its answer is to be recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<String>,
    },
    /// A piece of an answer that is recorded. In one commit with the `effect_settled` that it belongs to.
    EffectOutput {
        /// Of which request.
        effect: EffectId,
        /// Where in the body it starts.
        offset: Offset,
        /// The bytes, as the sandbox saw them.
        #[serde(with = "base64_bytes")]
        data: Bytes,
    },
    /// It ended, or was broken off.
    EffectSettled {
        /// Which.
        effect: EffectId,
        /// The answer's HTTP status; none where there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        /// What was sent of its body; none where nobody knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sent: Option<Passed>,
        /// What came back of a body; none where nobody knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        received: Option<Passed>,
        /// From begin to end, in milliseconds; none where nobody knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        millis: Option<u64>,
        /// What went wrong, for people; none where it went to its end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// The answer, where it is recorded; its body is in the `effect_output`s before this event.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answer: Option<RecordedAnswer>,
        /// Why it is not, where it should have been.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unrecorded: Option<String>,
    },
    /// A request of an operation that is run again was answered with what is recorded, and did not leave.
    EffectReplayed {
        /// Its id.
        effect: EffectId,
        /// The request of the lost run that it repeats.
        of: EffectId,
        /// What it is.
        #[serde(flatten)]
        request: Outgoing,
    },
    /// An operation that is run again did something else than its lost run: nothing more that may change something leaves from it.
    ReplayDiverged {
        /// What it was about to send.
        #[serde(flatten)]
        request: Outgoing,
        /// What was expected and what came, as the program inside was told.
        message: String,
    },
    /// Something was to leave and did not.
    EgressDenied {
        /// What it was.
        #[serde(flatten)]
        request: Outgoing,
        /// Why.
        reason: DenyReason,
        /// The rule that decided, where one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        /// In words, as the program inside was told.
        message: String,
        /// How often it happened since the last such event: what is repeated is counted.
        times: u32,
    },
    /// A request waits for a person's word.
    ApprovalAsked {
        /// Its id.
        approval: ApprovalId,
        /// What is to leave.
        #[serde(flatten)]
        request: Outgoing,
        /// The rule that wants it asked.
        rule: String,
        /// BLAKE3 of everything that the word is good for, in hex: another request needs another one.
        digest: String,
        /// What is known of its body; none where it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<AskedBody>,
        /// How long the request is held, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// A person gave it.
    ApprovalDecided {
        /// Which.
        approval: ApprovalId,
        /// Whether the request may leave.
        allowed: bool,
    },
    /// The request left (its effect begins in the same append), or was refused, by that word: it is used up.
    ApprovalUsed {
        /// Which.
        approval: ApprovalId,
    },
    /// Nobody gave it while anybody waited for it.
    ApprovalExpired {
        /// Which.
        approval: ApprovalId,
    },
    /// The policy is another from here on.
    PolicySet {
        /// Its text (TOML); empty is the one that allows nothing.
        policy: String,
    },
}

impl Event {
    /// Returns the event's kind as it stands in JSON.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Created { .. } => "created",
            Self::Forked { .. } => "forked",
            Self::Kept => "kept",
            Self::LeaseTaken { .. } => "lease_taken",
            Self::Started { .. } => "started",
            Self::Ended { .. } => "ended",
            Self::OpIntent { .. } => "op_intent",
            Self::OpStarted { .. } => "op_started",
            Self::OpAdopted { .. } => "op_adopted",
            Self::OpSettled { .. } => "op_settled",
            Self::CutTaken { .. } => "cut_taken",
            Self::CutLabeled { .. } => "cut_labeled",
            Self::CutsDropped { .. } => "cuts_dropped",
            Self::RolledBack { .. } => "rolled_back",
            Self::Rewound { .. } => "rewound",
            Self::Replicated { .. } => "replicated",
            Self::Pulled { .. } => "pulled",
            Self::ModelRequested { .. } => "model_requested",
            Self::ModelResponded { .. } => "model_responded",
            Self::ModelOutput { .. } => "model_output",
            Self::ModelSettled { .. } => "model_settled",
            Self::ModelDelivered { .. } => "model_delivered",
            Self::SessionStarted { .. } => "session_started",
            Self::SessionResumed { .. } => "session_resumed",
            Self::SessionEnded { .. } => "session_ended",
            Self::EffectBegun { .. } => "effect_begun",
            Self::EffectOutput { .. } => "effect_output",
            Self::EffectSettled { .. } => "effect_settled",
            Self::EffectReplayed { .. } => "effect_replayed",
            Self::ReplayDiverged { .. } => "replay_diverged",
            Self::EgressDenied { .. } => "egress_denied",
            Self::ApprovalAsked { .. } => "approval_asked",
            Self::ApprovalDecided { .. } => "approval_decided",
            Self::ApprovalUsed { .. } => "approval_used",
            Self::ApprovalExpired { .. } => "approval_expired",
            Self::PolicySet { .. } => "policy_set",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_advances_along_the_chain() {
        let (id, epoch, at) = (EventId([7; 16]), Epoch(3), UnixMillis(9));
        let first = Head::EMPTY.advance(id, epoch, at, &Head::digest(b"one"));
        let hash = chain_hash(&GENESIS_HASH, Seq(1), id, epoch, at, b"one");
        assert_eq!(first, Head { seq: Seq(1), hash });
        for other in [
            chain_hash(&hash, Seq(1), id, epoch, at, b"one"),
            chain_hash(&GENESIS_HASH, Seq(2), id, epoch, at, b"one"),
            chain_hash(&GENESIS_HASH, Seq(1), EventId([8; 16]), epoch, at, b"one"),
            chain_hash(&GENESIS_HASH, Seq(1), id, Epoch(4), at, b"one"),
            chain_hash(&GENESIS_HASH, Seq(1), id, epoch, UnixMillis(8), b"one"),
            chain_hash(&GENESIS_HASH, Seq(1), id, epoch, at, b"two"),
        ] {
            assert_ne!(other, hash);
        }
    }

    #[test]
    fn a_kind_in_json_is_what_kind_says() {
        let events = [
            Event::LeaseTaken { node: "n".into() },
            Event::OpAdopted {
                op: "a".parse().unwrap(),
            },
            Event::ModelOutput {
                request: "m1".parse().unwrap(),
                offset: Offset(3),
                data: Bytes::from_static(b"\0\xff"),
            },
        ];
        for event in events {
            let json = serde_json::to_value(&event).unwrap();
            assert_eq!(json["kind"], event.kind());
            assert_eq!(serde_json::from_value::<Event>(json).unwrap(), event);
        }
    }
}
