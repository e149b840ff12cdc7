//! How Pi shows the result of a shell command to the model, in the same words and lengths.

use protocol::Outcome;

use crate::text::{self, kilobytes, tail_bytes};
use crate::words::{self, Told};
use crate::{CallResult, PlanFile, ToolUse, Write};

/// Only this many lines from the end are shown …
const LINES: usize = 2000;
/// … and only this many bytes.
const BYTES: usize = 50 * 1024;

/// A result and the file that it speaks of.
pub(super) struct Shown {
    pub(super) told: Told,
    pub(super) file: Option<PlanFile>,
}

/// Tools that change nothing.
const READERS: &[&str] = &["find", "grep", "ls", "read", "tool_search"];

/// Shows a result.
pub(super) fn show(call: &ToolUse, result: &CallResult) -> Shown {
    let (outcome, output) = match result {
        CallResult::Settled { outcome, output } if *outcome != Outcome::Lost => (outcome, output),
        CallResult::Settled { output, .. } | CallResult::Lost { output } => {
            let (text, file) = cut(call, output);
            return Shown {
                told: words::lost(&text),
                file,
            };
        }
        CallResult::Running { output } => {
            let (text, file) = cut(call, output);
            return Shown {
                told: words::running(&call.id, &text),
                file,
            };
        }
        CallResult::NotStarted => {
            return Shown {
                told: words::not_started(),
                file: None,
            };
        }
        CallResult::NotOurs => {
            let told = words::interrupted(READERS.contains(&call.name.as_str()));
            return Shown { told, file: None };
        }
    };
    let (text, file) = cut(call, output);
    let status = match (outcome, words::exit_code(outcome)) {
        (Outcome::Exited { exit_code: 0 }, _) => None,
        (Outcome::TimedOut, _) => Some(match call.input.get("timeout").filter(|t| t.is_number()) {
            Some(seconds) => format!("Command timed out after {seconds} seconds"),
            None => "Command timed out".to_owned(),
        }),
        (Outcome::Cancelled, _) => Some("Command aborted".to_owned()),
        (_, code) => Some(format!("Command exited with code {code}")),
    };
    let exited = matches!(outcome, Outcome::Exited { .. } | Outcome::Signaled { .. });
    let mut told = if text.is_empty() && exited {
        "(no output)".to_owned()
    } else {
        text
    };
    let is_error = status.is_some();
    if let Some(status) = status {
        if !told.is_empty() {
            told.push_str("\n\n");
        }
        told.push_str(&status);
    }
    Shown {
        told: Told {
            text: told,
            is_error,
        },
        file,
    }
}

/// Returns the end of an output that is shown, and the file with all of it where that is not all.
fn cut(call: &ToolUse, output: &[u8]) -> (String, Option<PlanFile>) {
    let text = text::lossy(output);
    let mut lines: Vec<&str> = text.split('\n').collect();
    if text.ends_with('\n') || text.is_empty() {
        lines.pop();
    }
    if lines.len() <= LINES && text.len() <= BYTES {
        return (text, None);
    }
    let total = lines.len();
    let id: String = call
        .id
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    let path = format!("/tmp/pi-bash-{id}.log");
    let (mut first, mut bytes) = (total, 0);
    while first > 0 && total - first < LINES {
        let line = lines[first - 1].len() + usize::from(first < total);
        if bytes + line > BYTES {
            break;
        }
        bytes += line;
        first -= 1;
    }
    let shown = if first == total {
        let line = lines[total - 1];
        let part = tail_bytes(line, BYTES);
        format!(
            "{part}\n\n[Showing last {} of line {total} (line is {}). Full output: {path}]",
            kilobytes(part.len()),
            kilobytes(line.len())
        )
    } else {
        let limit = match total - first {
            LINES => String::new(),
            _ => format!(" ({} limit)", kilobytes(BYTES)),
        };
        format!(
            "{}\n\n[Showing lines {}-{total} of {total}{limit}. Full output: {path}]",
            lines[first..].join("\n"),
            first + 1
        )
    };
    let file = PlanFile {
        path,
        mode: 0o600,
        bytes: text.clone().into_bytes(),
        write: Write::Replace,
    };
    (shown, Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bash(outcome: Outcome, output: &str) -> Shown {
        let call = ToolUse {
            id: "call_1|x".to_owned(),
            name: "bash".to_owned(),
            input: json!({ "command": "x", "timeout": 2.5 }),
        };
        show(
            &call,
            &CallResult::Settled {
                outcome,
                output: output.as_bytes().to_vec(),
            },
        )
    }

    /// Each was seen from Pi 1.6.0.
    #[test]
    fn results_read_as_from_the_harness() {
        for (outcome, output, shown) in [
            (Outcome::Exited { exit_code: 0 }, "", "(no output)"),
            (Outcome::Exited { exit_code: 0 }, "hi\n", "hi\n"),
            (
                Outcome::Exited { exit_code: 3 },
                "hi\nerr\n",
                "hi\nerr\n\n\nCommand exited with code 3",
            ),
            (
                Outcome::Exited { exit_code: 3 },
                "",
                "(no output)\n\nCommand exited with code 3",
            ),
            (
                Outcome::Signaled { signal: 9 },
                "",
                "(no output)\n\nCommand exited with code 137",
            ),
            (Outcome::TimedOut, "", "Command timed out after 2.5 seconds"),
            (Outcome::Cancelled, "a\n", "a\n\n\nCommand aborted"),
        ] {
            let told = bash(outcome, output).told;
            assert_eq!(told.text, shown);
            assert_eq!(told.is_error, outcome != Outcome::Exited { exit_code: 0 });
        }
    }

    #[test]
    fn long_results_are_shortened_as_by_the_harness() {
        let ok = Outcome::Exited { exit_code: 0 };
        let numbers: String = (1..=3000).map(|n| format!("{n}\n")).collect();
        let shown = bash(ok, &numbers);
        assert!(shown.told.text.starts_with("1001\n1002\n"));
        assert!(shown.told.text.ends_with(
            "\n3000\n\n[Showing lines 1001-3000 of 3000. Full output: /tmp/pi-bash-call1x.log]"
        ));
        assert_eq!(shown.file.unwrap().bytes, numbers.as_bytes());
        let wide = format!("{}\n", "x".repeat(99)).repeat(600);
        let text = bash(ok, &wide).told.text;
        assert!(text.ends_with(
            "[Showing lines 89-600 of 600 (50.0KB limit). Full output: /tmp/pi-bash-call1x.log]"
        ));
        let text = bash(ok, &"y".repeat(60_000)).told.text;
        assert!(
            text.contains("\n\n[Showing last 50.0KB of line 1 (line is 58.6KB). Full output: ")
        );
        assert_eq!(text.matches('y').count(), 51_200);
    }
}
