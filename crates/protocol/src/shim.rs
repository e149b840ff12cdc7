//! What the shim inside a sandbox and the supervisor say to each other.
//!
//! A harness runs its shell commands through the shim: `durable-shell -c 'COMMAND'`. A command that starts with the marker
//! line of [`mark`] becomes an operation of its own under the id in it; any other is executed in place. The shim sends one
//! [`Exec`] as a control frame; the supervisor answers with [`Reply`] frames until the settlement.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Offset, OpId, Settlement, Stream, base64_bytes};

/// Starts the first line of a marked command. A shell that is not ours sees a no-op.
pub const MARKER: &str = ": durable-op ";

/// Marks a command so that the shim runs it as operation `id`. Undone by [`unmark`].
#[must_use]
pub fn mark(id: &OpId, command: &str) -> String {
    format!("{MARKER}'{id}'\n{command}")
}

/// Splits a marked command into its operation id and the command as the model wrote it.
#[must_use]
pub fn unmark(text: &str) -> Option<(OpId, &str)> {
    let (first, command) = text.strip_prefix(MARKER)?.split_once('\n')?;
    let id = first.strip_prefix('\'')?.strip_suffix('\'')?;
    Some((id.parse().ok()?, command))
}

/// The prompt with which a harness is resumed after it was lost. The gateway takes it out of every request, so that the
/// model never sees it and the conversation is the one that would have been without the loss.
pub const RESUME_PROMPT: &str =
    "[durable-sandbox] The harness was restarted; go on with the interrupted turn.";

/// What Claude Code says as the assistant, in a message of its own, right before [`RESUME_PROMPT`] where the turn had ended
/// with a user record. The gateway takes it out together with the prompt. Where the prompt is not a message of its own but
/// follows a text block, Claude Code has added one line feed to that block, which goes too.
pub const RESUME_FILLER: &str = "No response requested.";

/// Asks for an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Its id.
    pub op: OpId,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
}

/// From the supervisor to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Reply {
    /// Output, in order for each stream.
    Output {
        /// Which stream.
        stream: Stream,
        /// Where `data` starts.
        offset: Offset,
        /// The bytes.
        #[serde(with = "base64_bytes")]
        data: Bytes,
    },
    /// It ended, and that is durable in the journal. The last frame.
    Settled {
        /// How.
        settlement: Settlement,
    },
    /// It was not run. The last frame.
    Refused {
        /// Why, for the model to read.
        message: String,
    },
}

/// From the shim to the supervisor after its [`Exec`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// The harness told its shell to end: cancel the operation.
    Cancel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmark_undoes_mark() {
        let id: OpId = "toolu_01|x".parse().unwrap();
        for command in ["ls", "a\nb", "", "cat <<'E'\nx"] {
            assert_eq!(unmark(&mark(&id, command)), Some((id.clone(), command)));
        }
        assert_eq!(unmark("ls"), None);
        assert_eq!(unmark(": durable-op 'a b'\nls"), None);
    }
}
