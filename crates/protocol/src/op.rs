//! An operation: what was asked for, and what became of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Offset;

/// What may be done when the outcome of an operation is lost (docs/design.md §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// `lost` is reported.
    #[default]
    Never,
    /// Run again; the caller says that this does no harm.
    Safe,
    /// Put the workspace back to the cut before it, then run again, with the recorded answers for the requests that had left;
    /// `lost` where that is impossible.
    Rollback,
}

/// Which part an operation plays in its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A command of a user or of a harness.
    #[default]
    Command,
    /// A harness: its loss is answered by a resumed session, not by `lost` alone.
    Harness,
    /// Our own work inside the sandbox (copying files, reading a transcript).
    Internal,
}

/// Who asked for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A client of the API.
    #[default]
    Api,
    /// The shim inside the sandbox, for a harness's tool call.
    Shim,
    /// The daemon.
    Daemon,
}

/// The size of a terminal in character cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// What a caller asked for. Two specs that are equal are the same operation; see [`OpSpec::same_command`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OpSpec {
    /// Program and arguments; a program without `/` is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Working directory; the sandbox's default where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// A name of the image's `/etc/passwd`, `uid` or `uid:gid`; root where not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Wall-clock limit in milliseconds; the whole process group is killed at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// A terminal of this size instead of pipes; stdout and stderr are then one stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Whether the caller will send input; without it the operation reads end of file at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// What may be done when the outcome is lost.
    #[serde(default)]
    pub replay: Replay,
    /// Which part it plays.
    #[serde(default)]
    pub role: Role,
}

impl OpSpec {
    /// Returns whether `other`, sent under the same id, asks for the same command: attach instead of refuse.
    ///
    /// The terminal's size and the replay policy may differ between two attempts to attach.
    #[must_use]
    pub fn same_command(&self, other: &Self) -> bool {
        self.argv == other.argv
            && self.cwd == other.cwd
            && self.env == other.env
            && self.user == other.user
    }

    /// Returns the command as one line for people, cut to `max` characters.
    #[must_use]
    pub fn command_line(&self, max: usize) -> String {
        let line = self
            .argv
            .iter()
            .map(|a| a.escape_debug().to_string())
            .collect::<Vec<_>>()
            .join(" ");
        if line.chars().count() <= max {
            line
        } else {
            line.chars()
                .take(max.saturating_sub(1))
                .chain(['…'])
                .collect()
        }
    }
}

/// How an operation ended, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It ended by itself.
    Exited {
        /// The true exit status, 0 to 255.
        exit_code: u8,
    },
    /// A signal ended it, not one of ours.
    Signaled {
        /// The signal's number.
        signal: u8,
    },
    /// Its time ran out and we killed it.
    TimedOut,
    /// It was cancelled, or could not be started; `error` says which.
    Cancelled,
    /// It was started, and how it ended is unknown.
    Lost,
}

impl Outcome {
    /// Returns its name as it stands in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signaled { .. } => "signaled",
            Self::TimedOut => "timed_out",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// The durable end of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Settlement {
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Bytes of stdout (or of the terminal) spooled when it ended.
    pub stdout_bytes: Offset,
    /// Bytes of stderr spooled when it ended.
    pub stderr_bytes: Offset,
    /// Wall-clock milliseconds from start to end.
    pub duration_ms: u64,
    /// What went wrong besides the outcome, in words for people (quota reached, could not be started …).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One of an operation's output streams. A terminal has only `Stdout`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Descriptor 1, or the terminal.
    Stdout,
    /// Descriptor 2.
    Stderr,
}

impl Stream {
    /// Returns its name as it stands in paths and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}
