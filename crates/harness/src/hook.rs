//! The hook that Claude Code calls before each shell command: it marks the command with the id of the tool call.
//!
//! The model and the transcript keep the original. No permission is decided here: Claude Code goes on to check the
//! marked command by the user's own rules, in which the marker line is allowed (see `claude::settings`).

use protocol::{OpId, shim};
use serde_json::{Value, json};

/// Returns what to print on stdout for what the hook was given on stdin. Whatever it does not understand it leaves alone.
#[must_use]
pub fn claude(stdin: &[u8]) -> String {
    marked(stdin).unwrap_or_else(|| json!({})).to_string()
}

fn marked(stdin: &[u8]) -> Option<Value> {
    let call: Value = serde_json::from_slice(stdin).ok()?;
    if call.get("tool_name")?.as_str()? != "Bash" {
        return None;
    }
    let id: OpId = call.get("tool_use_id")?.as_str()?.parse().ok()?;
    let mut input = call.get("tool_input")?.clone();
    let command = input.get_mut("command")?;
    *command = shim::mark(&id, command.as_str()?).into();
    Some(json!({
        "hookSpecificOutput": { "hookEventName": "PreToolUse", "updatedInput": input }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shell_commands_are_marked_and_nothing_else_of_them_changes() {
        let call = json!({"tool_name": "Bash", "tool_use_id": "toolu_1",
            "tool_input": {"command": "ls", "timeout": 5, "run_in_background": true}});
        let out: Value = serde_json::from_str(&claude(call.to_string().as_bytes())).unwrap();
        assert_eq!(
            out["hookSpecificOutput"]["updatedInput"],
            json!({"command": ": durable-op 'toolu_1'\nls", "timeout": 5, "run_in_background": true})
        );
        assert!(
            out["hookSpecificOutput"]
                .get("permissionDecision")
                .is_none()
        );
        for (key, value) in [("tool_name", "Edit"), ("tool_use_id", "a b")] {
            let mut other = call.clone();
            other[key] = value.into();
            assert_eq!(claude(other.to_string().as_bytes()), "{}");
        }
        assert_eq!(claude(b"nonsense"), "{}");
    }
}
