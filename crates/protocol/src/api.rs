//! The bodies of the public HTTP API, as the daemon writes them and every client reads them.
//!
//! A field may be added; none changes its meaning. The OpenAPI document is generated from these types.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Boot, CrashPolicy, CutId, Epoch, Image, Limits, Offset, OpId, Origin, Role, SandboxName, Seq,
    SessionId, StoreAt, UnixMillis,
};

/// Creates a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CreateSandbox {
    /// What to call it; unique among living sandboxes.
    pub name: SandboxName,
    /// `host`, `dir:PATH`, `oci:REF`, `oci-archive:FILE` or `docker-archive:FILE`.
    #[serde(default = "host")]
    pub image: Image,
    /// What it may use.
    #[serde(default)]
    pub limits: Limits,
    /// What its files look like after a crash.
    #[serde(default)]
    pub on_crash: CrashPolicy,
    /// Where every cut goes before anyone hears of the operation that it was taken after.
    #[serde(default)]
    pub replicate: Option<StoreAt>,
    /// What may leave it, as the text of a policy (TOML); none allows nothing.
    #[serde(default)]
    pub policy: Option<String>,
    /// Environment of every operation.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory of an operation that names none; `/workspace` where not given.
    #[serde(default)]
    pub cwd: Option<String>,
}

fn host() -> Image {
    Image::Host
}

/// Whether processes can run in a sandbox now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// No process; the next operation starts it.
    Stopped,
    /// It is being started.
    Starting,
    /// Its supervisor is reachable.
    Running,
    /// It is being stopped.
    Stopping,
    /// Its journal and its supervisor disagree, or the journal is damaged; nothing goes on.
    Damaged,
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxView {
    /// What it is called.
    pub name: SandboxName,
    /// Whether processes can run in it now.
    pub state: SandboxState,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Its image.
    pub image: Image,
    /// When it was created.
    pub created_at_ms: UnixMillis,
    /// Its supervisor's boot, while one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<Boot>,
    /// The journal's last event.
    pub seq: Seq,
    /// The daemon's fencing number.
    pub epoch: Epoch,
    /// Whether it is a fork that goes with the client that asked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bound: bool,
    /// Operations that have not settled.
    pub open_ops: Vec<OpId>,
    /// Operations in all.
    pub ops: u64,
    /// The last cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cut: Option<CutId>,
    /// What its files take on disk, a few seconds late, where it is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_used_bytes: Option<u64>,
    /// What its files may take on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_limit_bytes: Option<u64>,
    /// The session that goes on, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// What it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
}

/// Takes a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TakeCheckpoint {
    /// A name for it; a named one is kept until the label is taken off.
    #[serde(default)]
    pub label: Option<String>,
}

/// One checkpoint: a place in the journal and the files as they were there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CheckpointView {
    /// Its id, which is its cut's.
    pub id: CutId,
    /// Where its cut stands in the journal.
    pub seq: Seq,
    /// When it was taken.
    pub at_ms: UnixMillis,
    /// Its name, where it has one and so is kept for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the files of the sandbox go on from it.
    pub current: bool,
    /// Whether a rewind left it on another branch.
    pub abandoned: bool,
    /// Whether no operation was running at that instant.
    pub quiet: bool,
    /// Whether every process stood still for it, or none was there: all files as they were at one instant.
    #[serde(default)]
    pub still: bool,
    /// What it holds: `files`.
    pub holds: String,
    /// What it survives: `local` is this machine's disk, `replicated` a blob store.
    pub durability: String,
    /// Bytes of file content that were written between the checkpoint before it and this one, where the pool can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_bytes: Option<u64>,
}

/// The most forks of one request. Each has a journal, files and a task of its own; more at once is a mistake more likely than
/// a wish.
pub const MAX_FORKS: usize = 1000;

/// Makes forks of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForkSandbox {
    /// What to call them, one each; 1,000 at most.
    pub names: Vec<SandboxName>,
    /// A checkpoint's id or label, a place in the journal, or `start`; as it is now where not given.
    #[serde(default)]
    pub at: Option<String>,
    /// Begins a fresh session in each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<FlushFork>,
}

/// Begins a session in a fork that knows nothing of the conversations before it: its first input is a note.
///
/// What is not given is as in the last session of the source; the model's endpoint, too.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FlushFork {
    /// The first input, 64 KiB at most. Where not given, one that tells what the journal knows: the last input of the
    /// session before, what changed since it began, and its last commands.
    #[serde(default)]
    pub note: Option<String>,
    /// Another harness: `claude` or `pi`.
    #[serde(default)]
    pub harness: Option<String>,
    /// The arguments of `harness`, without a prompt.
    #[serde(default)]
    pub args: Vec<String>,
    /// A terminal of this size.
    #[serde(default)]
    pub tty: Option<crate::TtySize>,
    /// Where model requests go.
    #[serde(default)]
    pub model_url: Option<String>,
    /// The real key. Kept outside the sandbox, never journaled.
    #[serde(default)]
    pub model_key: Option<String>,
    /// `anthropic` or `openai`: what the endpoint speaks.
    #[serde(default)]
    pub model_api: Option<String>,
    /// The model to ask for.
    #[serde(default)]
    pub model: Option<String>,
    /// Environment added to the harness's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// Bytes of a note that begins a session: it is an argument of the harness, and the kernel takes 128 KiB of one.
pub const MAX_NOTE: usize = 64 << 10;

// The key must not reach a log by way of `{:?}`.
impl std::fmt::Debug for FlushFork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlushFork")
            .field("harness", &self.harness)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// Puts a sandbox into a blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PushSandbox {
    /// Which.
    pub store: StoreAt,
    /// What to call it there; as it is called here where not given.
    #[serde(default, rename = "as")]
    pub name: Option<SandboxName>,
    /// Whether every checkpoint goes along. Without it, the last one does and those with a label.
    #[serde(default)]
    pub all: bool,
}

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PushView {
    /// What the sandbox is called in the store.
    pub name: SandboxName,
    /// The last event that the store has.
    pub seq: Seq,
    /// The checkpoint that the files are of; none where there are none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutId>,
    /// Checkpoints that the store has of it.
    pub checkpoints: u64,
    /// Files that were read, because they changed since the last push from here.
    pub read_files: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Bytes that the store did not have.
    pub new_bytes: u64,
    /// What these take there, compressed.
    pub stored_bytes: u64,
}

/// Brings a sandbox out of a blob store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PullSandbox {
    /// Which.
    pub store: StoreAt,
    /// What it is called there.
    pub from: SandboxName,
    /// What to call it here.
    pub name: SandboxName,
}

/// Where a fork came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ForkedFrom {
    /// What its source was called.
    pub name: SandboxName,
    /// The place in the source's journal.
    pub at: Seq,
    /// The checkpoint that both have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutId>,
}

/// Puts a sandbox back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RewindSandbox {
    /// A checkpoint's id or label, a place in the journal, or `start`.
    pub to: String,
}

/// Pulls an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PullImage {
    /// `oci:REF`, `oci-archive:FILE` or `docker-archive:FILE`.
    pub image: Image,
}

/// One unpacked image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ImageView {
    /// The digest of its manifest.
    pub digest: String,
    /// The names that led to it when they were last pulled.
    pub references: Vec<String>,
    /// What it takes of the disk.
    pub size_bytes: u64,
    /// When it was made, as its maker says (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Sandboxes that stand on it.
    pub used_by: Vec<String>,
}

/// One path that differs between two places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChangeView {
    /// From the root of the sandbox, without a slash in front. Where it is no UTF-8, every odd byte is `\xNN`.
    pub path: String,
    /// The path's bytes as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// `added`, `deleted`, `modified` or `renamed`.
    pub status: String,
    /// Where a renamed one was, written as `path` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The bytes of `from` as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_base64: Option<String>,
    /// `file`, `directory`, `symlink` and so on: what it is, or was.
    pub kind: String,
    /// In what the two differ: `content`, `type`, `mode`, `owner`, `target`, `device`, `xattrs`. Empty for what is new or gone.
    pub what: Vec<String>,
    /// Permission bits after, or before of one that is gone.
    pub mode: u32,
    /// Bytes before; none where it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_before: Option<u64>,
    /// Bytes after; none where it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_after: Option<u64>,
}

/// One path of a sandbox as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileView {
    /// The whole path. Where it is no UTF-8, every odd byte is `\xNN`.
    pub path: String,
    /// The path's bytes as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// In a listing the path from the directory that was listed; else the last part. Written as `path` is.
    pub name: String,
    /// `file`, `directory`, `symlink`, `fifo`, `socket` or `device`.
    pub kind: String,
    /// Bytes of content.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How many names it has.
    pub links: u64,
    /// When its content changed.
    pub modified_ms: UnixMillis,
    /// Differs after every write and every replacement; for `If-Match` and its like.
    pub etag: String,
    /// Where a link leads, written as `path` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The target's bytes as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<String>,
}

/// A change of files that was made: on disk, in the journal and in a cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileChangedView {
    /// The operation that made it.
    pub op: OpId,
    /// The cut that holds it.
    pub cut: Option<CutId>,
    /// What is there now, or for a removal what was there; none for an archive that was unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
}

/// One line of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileEventView {
    /// `watching` first, once nothing is missed any more; then `create`, `modify`, `attributes`, `delete`, `rename`;
    /// `overflow` where more happened than was kept; `gone` last, where what was watched is gone; `error` last, too.
    pub event: String,
    /// The whole path. Where it is no UTF-8, every odd byte is `\xNN`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The path's bytes as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// What a renamed one was called before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The bytes of `from` as base64, where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_base64: Option<String>,
    /// Whether it is a directory.
    #[serde(default)]
    pub directory: bool,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::ApiError>,
}

/// Brings files of one sandbox into another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ComposeSandbox {
    /// `NAME`, or `NAME@PLACE` with a checkpoint's id or label or a place in its journal.
    pub from: String,
    /// Only what is below these paths; all where empty.
    #[serde(default)]
    pub paths: Vec<String>,
    /// `merge` (the default) applies nothing where both changed the same; `ours` and `theirs` take one side there.
    #[serde(default)]
    pub strategy: Option<String>,
    /// Tells what would be done and does nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a compose did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ComposeView {
    /// Whether the files are in the sandbox now.
    pub applied: bool,
    /// The operation that wrote them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpId>,
    /// The checkpoint before it, to go back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<CutId>,
    /// Every path that is written or removed.
    pub actions: Vec<ActionView>,
    /// Where both changed the same.
    pub conflicts: Vec<ConflictView>,
}

/// One thing that a compose does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ActionView {
    /// Which path.
    pub path: String,
    /// `put`, `merge`, `delete`, or `skip` for a socket, which is not carried.
    pub action: String,
}

/// One path that both sandboxes changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConflictView {
    /// Which path.
    pub path: String,
    /// What is at odds.
    pub kind: String,
    /// The text with both sides marked, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Which operation last changed a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct BlameView {
    /// Which path.
    pub path: String,
    /// The first checkpoint that has it as it is now; none where it is the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<CutId>,
    /// When that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<UnixMillis>,
    /// The operations that ended with it: one, unless several ended at once or checkpoints between were given back.
    pub ops: Vec<OpView>,
    /// Operations that were running meanwhile and may have done it instead.
    pub running: Vec<OpId>,
    /// The source, where a fork had it from the start: ask there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkedFrom>,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpPhase {
    /// Journaled, not known to be started.
    Intended,
    /// Started.
    Running,
    /// Ended.
    Settled,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OpView {
    /// Its id.
    pub id: OpId,
    /// How far it is.
    pub state: OpPhase,
    /// `exited`, `signaled`, `timed_out`, `cancelled` or `lost`, once settled.
    pub outcome: Option<String>,
    /// The true exit status of an `exited` one.
    pub exit_code: Option<u8>,
    /// The signal of a `signaled` one.
    pub signal: Option<u8>,
    /// Bytes of stdout: when it settled, or so far.
    pub stdout_bytes: Offset,
    /// Bytes of stderr: when it settled, or so far.
    pub stderr_bytes: Offset,
    /// The cut taken after it; none where it changed nothing.
    pub cut: Option<CutId>,
    /// What went wrong besides the outcome.
    pub error: Option<String>,
    /// Milliseconds from start to end, once settled.
    pub duration_ms: Option<u64>,
    /// Which run of it this is; more than 1 only where `replay` allowed it.
    pub attempt: u32,
    /// Who asked for it.
    pub origin: Origin,
    /// Which part it plays.
    pub role: Role,
    /// Where its intent stands in the journal.
    pub intent_seq: Seq,
    /// Where its settlement stands in the journal.
    pub settled_seq: Option<Seq>,
    /// When it was asked for.
    pub created_at_ms: UnixMillis,
    /// Program and arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Working directory, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Input that an operation took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StdinView {
    /// The next byte wanted.
    pub offset: Offset,
    /// Whether it takes no more.
    pub closed: bool,
}

/// Starts a harness session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StartSession {
    /// `claude` or `pi`.
    pub harness: String,
    /// The harness's own arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Working directory; the sandbox's default where not given.
    #[serde(default)]
    pub cwd: Option<String>,
    /// A terminal of this size.
    #[serde(default)]
    pub tty: Option<crate::TtySize>,
    /// Where model requests go, such as `https://api.anthropic.com`; as before where not given.
    #[serde(default)]
    pub model_url: Option<String>,
    /// The real key, read on the host. Kept outside the sandbox, never journaled.
    #[serde(default)]
    pub model_key: Option<String>,
    /// `anthropic` or `openai`: what the endpoint speaks. The harness's own where not given.
    #[serde(default)]
    pub model_api: Option<String>,
    /// The model to ask for.
    #[serde(default)]
    pub model: Option<String>,
    /// Environment added to the harness's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

// The key must not reach a log by way of `{:?}`.
impl std::fmt::Debug for StartSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartSession")
            .field("harness", &self.harness)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// Which harness.
    pub harness: String,
    /// The harness's arguments.
    pub args: Vec<String>,
    /// 1 plus the number of resumptions.
    pub attempt: u32,
    /// The operations that ran it, in order; the last one runs it now.
    pub runs: Vec<OpId>,
    /// Whether it ended.
    pub ended: bool,
    /// Why it was given up.
    pub error: Option<String>,
}

/// One event as clients see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventView {
    /// Its place.
    pub seq: Seq,
    /// The epoch it was written under.
    pub epoch: Epoch,
    /// When it was written.
    pub at_ms: UnixMillis,
    /// The chain hash over it and everything before it, in hex.
    pub hash: String,
    /// What happened: `kind` and its fields.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub event: serde_json::Value,
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Health {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Which pool keeps the workspaces: `btrfs` or `copy`.
    pub pool: String,
    /// Sandboxes it owns.
    pub sandboxes: u64,
}

/// The frames of a followed operation: `u8 kind | u64 offset (LE) | u32 length (LE) | bytes`.
///
/// Made for clients that want both streams, exact bytes and the settlement over one connection.
pub mod frames {
    use bytes::{Buf, BufMut, Bytes, BytesMut};

    /// Bytes in front of each frame's content.
    pub const HEADER: usize = 13;
    /// The longest content.
    pub const MAX: usize = 8 << 20;

    /// What a frame holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        /// Bytes of stdout from `offset` on.
        Stdout,
        /// Bytes of stderr from `offset` on.
        Stderr,
        /// An [`super::OpView`] as JSON: the operation is known; the first frame.
        Known,
        /// An [`super::OpView`] as JSON: it settled; the last frame.
        Settled,
        /// A [`crate::ApiError`] as JSON; the last frame.
        Error,
    }

    impl Kind {
        fn number(self) -> u8 {
            match self {
                Self::Stdout => 1,
                Self::Stderr => 2,
                Self::Known => 3,
                Self::Settled => 4,
                Self::Error => 5,
            }
        }

        fn of(number: u8) -> Option<Self> {
            Some(match number {
                1 => Self::Stdout,
                2 => Self::Stderr,
                3 => Self::Known,
                4 => Self::Settled,
                5 => Self::Error,
                _ => return None,
            })
        }
    }

    /// Returns the header of a frame; its content follows.
    #[must_use]
    pub fn header(kind: Kind, offset: u64, length: u32) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = kind.number();
        out[1..9].copy_from_slice(&offset.to_le_bytes());
        out[9..].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// Returns a whole frame.
    #[must_use]
    pub fn frame(kind: Kind, offset: u64, content: &[u8]) -> Bytes {
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let mut out = BytesMut::with_capacity(HEADER + content.len());
        out.put_slice(&header(kind, offset, length));
        out.put_slice(content);
        out.freeze()
    }

    /// Takes one frame off the front; `Ok(None)` while it is incomplete.
    ///
    /// # Errors
    /// An unknown kind or a length over [`MAX`]: the peer is no daemon of ours.
    pub fn take(input: &mut BytesMut) -> Result<Option<(Kind, u64, Bytes)>, crate::CodecError> {
        let Some(head) = input.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let Some(kind) = Kind::of(head[0]) else {
            return Err(crate::CodecError::Content(format!(
                "frame kind {}",
                head[0]
            )));
        };
        let mut rest = &head[1..];
        let (offset, length) = (rest.get_u64_le(), rest.get_u32_le() as usize);
        if length > MAX {
            return Err(crate::CodecError::TooLong(length));
        }
        if input.len() < HEADER + length {
            return Ok(None);
        }
        input.advance(HEADER);
        Ok(Some((kind, offset, input.split_to(length).freeze())))
    }
}
