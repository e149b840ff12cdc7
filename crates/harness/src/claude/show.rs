//! How Claude Code shows the result of a shell command to the model, in the same words and lengths.

use protocol::Outcome;
use serde_json::{Value, json};

use crate::text::{self, head, tail, units};
use crate::words::{self, Told};
use crate::{CallResult, PlanFile, ToolUse, Write};

/// A longer output of a command that succeeded is put into a file and shown by its start.
const INLINE: usize = 30_000;
/// How much of its start is shown.
const PREVIEW: usize = 2000;
/// A longer text of a command that failed is shown by its start and end …
const ERROR: usize = 10_000;
/// … where it is longer by more than this.
const ERROR_SLACK: usize = 1024;

/// A result, the harness's own form of it, and the file that it speaks of.
pub(super) struct Shown {
    pub(super) told: Told,
    pub(super) own: Value,
    pub(super) file: Option<PlanFile>,
}

impl Shown {
    /// Adds what the harness says below the output.
    pub(super) fn add_line(&mut self, line: &str) {
        self.told.text = format!("{}\n{line}", self.told.text);
        if let Some(stderr) = self.own.get_mut("stderr") {
            *stderr = format!("\n{line}").into();
        } else {
            self.own = own(&self.told);
        }
    }
}

/// Tools that change nothing.
const READERS: &[&str] = &[
    "Glob",
    "Grep",
    "LS",
    "Read",
    "TaskOutput",
    "ToolSearch",
    "WebFetch",
    "WebSearch",
];

/// Shows a result. `dir` is where outputs that are too long are put.
pub(super) fn show(call: &ToolUse, result: &CallResult, dir: &str) -> Shown {
    let told = match result {
        CallResult::Settled {
            outcome: Outcome::Lost,
            output,
        }
        | CallResult::Lost { output } => words::lost(&cap(&text::lossy(output))),
        CallResult::Settled { outcome, output } => return settled(call, outcome, output, dir),
        CallResult::Running { output } => words::running(&call.id, &cap(&text::lossy(output))),
        CallResult::NotStarted => words::not_started(),
        CallResult::NotOurs => words::interrupted(READERS.contains(&call.name.as_str())),
    };
    Shown {
        own: own(&told),
        told,
        file: None,
    }
}

fn settled(call: &ToolUse, outcome: &Outcome, output: &[u8], dir: &str) -> Shown {
    let code = words::exit_code(outcome);
    let output = text::lossy(output);
    let command = call
        .input
        .get("command")
        .and_then(Value::as_str)
        .unwrap_or("");
    let meaning = match outcome {
        Outcome::Exited { exit_code: 1 } => meaning_of_one(command),
        _ => None,
    };
    if code != 0 && meaning.is_none() {
        let note = match outcome {
            Outcome::TimedOut => "The command reached its time limit and was stopped.",
            Outcome::Cancelled => "The command was cancelled.",
            Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Lost => "",
        };
        let parts = [
            &format!("Exit code {code}"),
            note,
            head(output.trim_end(), INLINE),
        ];
        let parts: Vec<&str> = parts.into_iter().filter(|p| !p.is_empty()).collect();
        let told = Told::error(cap(parts.join("\n").trim()));
        return Shown {
            own: own(&told),
            told,
            file: None,
        };
    }
    let shown = without_blank_lines(&output);
    let mut file = None;
    let text = if shown.is_empty() {
        "(Bash completed with no output)".to_owned()
    } else if units(shown) <= INLINE {
        shown.to_owned()
    } else {
        let path = format!("{dir}/tool-results/{}.txt", call.id);
        let text = preview(&output, &path);
        file = Some(PlanFile {
            path,
            mode: 0o644,
            bytes: output.clone().into_bytes(),
            write: Write::Replace,
        });
        text
    };
    let told = Told {
        text,
        is_error: false,
    };
    let mut own = json!({
        "stdout": head(shown, INLINE), "stderr": "", "interrupted": false, "isImage": false, "noOutputExpected": false
    });
    if let Some(meaning) = meaning {
        own["returnCodeInterpretation"] = meaning.into();
    }
    if let Some(file) = &file {
        own["persistedOutputPath"] = file.path.clone().into();
        own["persistedOutputSize"] = file.bytes.len().into();
    }
    Shown { told, own, file }
}

fn own(told: &Told) -> Value {
    if told.is_error {
        return format!("Error: {}", told.text).into();
    }
    json!({ "stdout": told.text, "stderr": "", "interrupted": false, "isImage": false })
}

fn preview(output: &str, path: &str) -> String {
    let start = head(output, PREVIEW);
    let cut = start
        .rfind('\n')
        .filter(|at| units(&start[..*at]) > PREVIEW / 2);
    let start = &start[..cut.unwrap_or(start.len())];
    let size = text::kilobytes(output.len()).replace(".0", "");
    format!(
        "<persisted-output>\nOutput too large ({size}). Full output saved to: {path}\n\nPreview (first 2KB):\n{start}\n...\n</persisted-output>"
    )
}

/// Shortens the text of an error from its middle.
fn cap(text: &str) -> String {
    let total = units(text);
    if total <= ERROR + ERROR_SLACK {
        return text.to_owned();
    }
    format!(
        "{}\n\n... [{} characters truncated] ...\n\n{}",
        head(text, ERROR / 2),
        total - ERROR,
        tail(text, ERROR - ERROR / 2)
    )
}

/// Takes leading blank lines and trailing white space away.
fn without_blank_lines(text: &str) -> &str {
    let text = text.trim_end();
    let blank = text.len() - text.trim_start().len();
    let from = text[..blank].rfind('\n').map_or(0, |at| at + 1);
    &text[from..]
}

/// What exit status 1 says of the commands where it is no failure; none where it is one.
fn meaning_of_one(command: &str) -> Option<&'static str> {
    let last = last_command(command)?;
    let mut words = last.split_whitespace();
    Some(match words.next()? {
        "grep" | "rg" | "egrep" | "fgrep" => "No matches found",
        "find" => "Some directories were inaccessible",
        "diff" => "Files differ",
        "test" | "[" => "Condition is false",
        "git" => match git_command(words)? {
            "diff" => "Files differ",
            "grep" => "No matches found",
            _ => return None,
        },
        _ => return None,
    })
}

fn git_command<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    loop {
        match words.next()? {
            "-C" | "-c" => {
                words.next()?;
            }
            word if word.starts_with('-') => {}
            word => return Some(word),
        }
    }
}

/// Returns the last simple command of a line of shell.
fn last_command(command: &str) -> Option<&str> {
    let (mut from, mut last, mut quote, mut before) = (0, None, None, ' ');
    let mut chars = command.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None | Some('"'), '\\') => {
                chars.next();
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ';' | '|' | '\n') => {
                last = nonempty(&command[from..at]).or(last);
                from = at + 1;
            }
            // Not the `&` of `2>&1` and `&>`.
            (None, '&') if before != '>' && chars.peek().is_none_or(|(_, next)| *next != '>') => {
                last = nonempty(&command[from..at]).or(last);
                from = at + 1;
            }
            _ => {}
        }
        before = c;
    }
    nonempty(command.get(from..)?).or(last)
}

fn nonempty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(command: &str, code: u8, output: &str) -> Shown {
        let call = ToolUse {
            id: "toolu_1".to_owned(),
            name: "Bash".to_owned(),
            input: json!({ "command": command }),
        };
        let result = CallResult::Settled {
            outcome: Outcome::Exited { exit_code: code },
            output: output.as_bytes().to_vec(),
        };
        show(&call, &result, "/h/p/s")
    }

    /// Each pair was seen from Claude Code 2.1.332.
    #[test]
    fn results_read_as_from_the_harness() {
        for (command, code, output, shown, is_error) in [
            ("printf ''", 0, "", "(Bash completed with no output)", false),
            ("printf 'a\\n\\n\\n'", 0, "a\n\n\n", "a", false),
            ("x", 0, "\n\n  a  \n", "  a", false),
            ("x", 0, " \t\n x \n \n", " x", false),
            ("exit 7", 7, "", "Exit code 7", true),
            ("echo out; exit 7", 7, "out\n", "Exit code 7\nout", true),
            ("x; exit 2", 2, "\n\n  a\n", "Exit code 2\n\n\n  a", true),
            ("x", 0, "a\rb\r\n", "a\rb", false),
            (
                "grep zzz f",
                1,
                "",
                "(Bash completed with no output)",
                false,
            ),
            ("grep zzz f", 2, "no f\n", "Exit code 2\nno f", true),
            ("seq 1 3 | diff - /dev/null", 1, "1,3d0\n", "1,3d0", false),
            ("git -C x diff --no-index a b", 1, "d\n", "d", false),
            (
                "ls && grep q 'a;b' 2>&1",
                1,
                "",
                "(Bash completed with no output)",
                false,
            ),
            ("grep q f; false", 1, "", "Exit code 1", true),
        ] {
            let told = bash(command, code, output).told;
            assert_eq!(
                (told.text.as_str(), told.is_error),
                (shown, is_error),
                "{command}"
            );
        }
    }

    #[test]
    fn long_results_are_shortened_as_by_the_harness() {
        let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
        let shown = bash("seq 1 20000", 0, &numbers);
        assert!(shown.told.text.starts_with(
            "<persisted-output>\nOutput too large (106.3KB). Full output saved to: /h/p/s/tool-results/toolu_1.txt\n\n\
             Preview (first 2KB):\n1\n2\n"
        ));
        assert!(
            shown
                .told
                .text
                .ends_with("\n526\n527\n...\n</persisted-output>")
        );
        assert_eq!(shown.file.unwrap().bytes, numbers.as_bytes());
        let failed = bash("seq 1 20000; exit 2", 2, &numbers).told.text;
        assert!(failed.starts_with("Exit code 2\n1\n2\n"));
        assert!(failed.contains("\n1219\n\n\n... [20012 characters truncated] ...\n\n"));
        assert!(failed.ends_with("\n6221\n62"));
    }
}
