//! The transcript of Pi: a tree of entries, one line each; the last line is where the conversation stands.

use std::collections::BTreeSet;

use protocol::shim::RESUME_PROMPT;
use serde_json::{Value, json};

use super::show;
use crate::jsonl::{self, Line};
use crate::turn::Turn;
use crate::{CallResult, Phase, Repair, ToolUse, ids};

/// The tool whose calls are operations.
const SHELL_TOOL: &str = "bash";

pub(super) fn repair(
    transcript: &[u8],
    turn: Turn<'_>,
    results: &dyn Fn(&ToolUse) -> CallResult,
) -> Repair {
    let (mut lines, mut good) = jsonl::read(transcript);
    if let Some(at) = resumed_in_vain(&lines) {
        lines.retain(|l| l.at < at);
        good = at;
    }
    let told = |bytes: &[u8], phase| Repair {
        bytes: bytes.to_vec(),
        repaired: Vec::new(),
        files: Vec::new(),
        phase,
    };
    if lines.first().and_then(|l| l.text("/type")) != Some("session") {
        // Without its first line it is no session, and Pi would refuse it.
        return told(b"", Phase::Empty);
    }
    let talk: Vec<&Line> = branch(&lines).into_iter().filter(|l| is_talk(l)).collect();
    let Some(last) = talk.last() else {
        return told(&transcript[..good], Phase::Empty);
    };
    if !turn.has_begun(talk.iter().rev().filter_map(|l| prompt(l))) {
        return told(&transcript[..good], Phase::Empty);
    }
    let Some(at) = talk.iter().rposition(|l| role(l) == Some("assistant")) else {
        return told(&transcript[..good], Phase::Interrupted);
    };
    let (answer, after) = (talk[at], &talk[at + 1..]);
    let stop = answer.text("/message/stopReason").unwrap_or_default();
    if after.iter().any(|l| role(l) != Some("toolResult")) {
        return told(&transcript[..good], Phase::Interrupted);
    }
    if stop != "toolUse" && after.is_empty() {
        if turn.headless {
            // What is left may end with a resume that led nowhere.
            return repair(&transcript[..answer.at], turn, results);
        }
        return told(&transcript[..good], Phase::Settled);
    }
    let answered: BTreeSet<&str> = after
        .iter()
        .filter_map(|l| l.text("/message/toolCallId"))
        .collect();
    let mut known: BTreeSet<String> = lines.iter().filter_map(id).map(str::to_owned).collect();
    let mut parent = lines
        .iter()
        .rev()
        .find_map(id)
        .unwrap_or_default()
        .to_owned();
    let mut repair = told(&transcript[..good], Phase::Interrupted);
    for call in tool_uses(answer) {
        if answered.contains(call.id.as_str()) {
            continue;
        }
        // Whatever the journal says or does not say of it: another tool runs inside the harness.
        let result = match call.name.as_str() {
            SHELL_TOOL => results(&call),
            _ => CallResult::NotOurs,
        };
        let shown = show::show(&call, &result);
        let id = new_id(&known, &parent, &call.id);
        let record = json!({
            "type": "message", "id": id, "parentId": parent,
            "timestamp": last.text("/timestamp").unwrap_or_default(),
            "message": {
                "role": "toolResult", "toolCallId": call.id, "toolName": call.name,
                "content": [{ "type": "text", "text": shown.told.text }],
                "isError": shown.told.is_error,
                "timestamp": last.value.pointer("/message/timestamp").cloned().unwrap_or(0.into()),
            },
        });
        jsonl::push(&mut repair.bytes, &record);
        repair.files.extend(shown.file);
        repair.repaired.push(call.id);
        known.insert(id.clone());
        parent = id;
    }
    repair
}

/// Where the words begin with which the session was resumed, if that led to no answer. They are taken back, so that a
/// session which is killed again and again does not collect them.
fn resumed_in_vain(lines: &[Line]) -> Option<usize> {
    let says = |line: &Line| {
        ["/content", "/message/content", "/message/content/0/text"]
            .iter()
            .any(|at| line.text(at) == Some(RESUME_PROMPT))
    };
    let talk = lines.iter().rev().filter(|l| is_talk(l));
    talk.take_while(|l| says(l)).last().map(|l| l.at)
}

fn id(line: &Line) -> Option<&str> {
    line.text("/id")
        .filter(|_| line.text("/type") != Some("session"))
}

fn new_id(known: &BTreeSet<String>, parent: &str, call: &str) -> String {
    let mut id = ids::short(&[parent, call]);
    while known.contains(&id) {
        id = ids::short(&[parent, call, &id]);
    }
    id
}

/// The entries from the root to where the conversation stands.
fn branch(lines: &[Line]) -> Vec<&Line> {
    let mut branch: Vec<&Line> = Vec::new();
    let mut wanted = lines.iter().rev().find_map(id);
    // An entry is always below an earlier one, so one look backwards finds them all, and a circle ends.
    for line in lines.iter().rev() {
        if wanted.is_some() && id(line) == wanted {
            branch.push(line);
            wanted = line.text("/parentId");
        }
    }
    branch.reverse();
    branch
}

fn role(line: &Line) -> Option<&str> {
    match line.text("/type")? {
        "message" => line.text("/message/role"),
        "custom_message" => Some("custom"),
        _ => None,
    }
}

fn is_talk(line: &Line) -> bool {
    matches!(
        role(line),
        Some("user" | "assistant" | "toolResult" | "custom")
    )
}

/// The prompt of the user in an entry.
fn prompt(line: &Line) -> Option<&str> {
    let text = line
        .text("/message/content")
        .or(line.text("/message/content/0/text"))?;
    (role(line) == Some("user") && text != RESUME_PROMPT).then_some(text)
}

/// The last prompt of the user where the conversation stands.
pub(super) fn last_prompt(transcript: &[u8]) -> Option<String> {
    let (lines, _) = jsonl::read(transcript);
    let branch = branch(&lines).into_iter();
    branch.rev().find_map(prompt).map(str::to_owned)
}

fn tool_uses(line: &Line) -> impl Iterator<Item = ToolUse> {
    let content = line
        .value
        .pointer("/message/content")
        .and_then(Value::as_array);
    content.into_iter().flatten().filter_map(|block| {
        (block.get("type")?.as_str()? == "toolCall").then_some(())?;
        Some(ToolUse {
            id: block.get("id")?.as_str()?.to_owned(),
            name: block.get("name")?.as_str()?.to_owned(),
            input: block.get("arguments").cloned().unwrap_or_default(),
        })
    })
}
