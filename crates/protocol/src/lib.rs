//! The words every other crate shares: ids, events, frames and the supervisor's table records.
//!
//! What travels between processes or is stored lives here, with its encoding. This crate never does I/O, never reads a
//! clock and never decides anything.

pub mod api;
pub mod caps;
mod codec;
pub mod control;
pub mod egress;
mod error;
mod event;
pub mod files;
mod ids;
mod op;
pub mod paths;
pub mod room;
mod sandbox;
pub mod shim;
pub mod table;

pub use codec::{CodecError, base64_bytes};
pub use egress::{AskedBody, DenyReason, EffectKind, Outgoing, Passed, RecordedAnswer, SecretUse};
pub use error::{ApiError, ErrorCode};
pub use event::{
    EVENT_VERSION, EndReason, Event, EventId, GENESIS_HASH, Head, ModelOutcome, Stored, ToolCall,
    chain_hash,
};
pub use ids::{
    ApprovalId, Boot, CutId, EffectId, Epoch, IdError, ModelRequestId, Offset, OpId, SandboxId,
    SandboxName, Seq, SessionId, UnixMillis, WorkspaceId,
};
pub use op::{OpSpec, Origin, Outcome, Replay, Role, Settlement, Stream, TtySize};
pub use sandbox::{CrashPolicy, Image, Limits, SandboxSpec, StoreAt};
