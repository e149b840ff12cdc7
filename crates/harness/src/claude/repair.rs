//! The transcript of Claude Code: a tree of records, one line each, an answer of the model being one line per block.
//!
//! The lines of an answer are written when it is whole, and each tool result hangs below the block that asked for it.

use protocol::shim::{RESUME_FILLER, RESUME_PROMPT};
use serde_json::{Value, json};

use super::show;
use crate::jsonl::{self, Line};
use crate::turn::Turn;
use crate::{CallResult, Phase, Repair, ToolUse, ids};

/// The tool whose calls are operations.
const SHELL_TOOL: &str = "Bash";

pub(super) fn repair(
    transcript: &[u8],
    project_dir: &str,
    cwd: &str,
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
    let talk: Vec<&Line> = lines.iter().filter(|l| is_talk(l)).collect();
    let Some(last) = talk.last() else {
        // An id is in use as soon as its file is there, even empty. What it holds, if anything, is no conversation.
        return told(b"", Phase::Empty);
    };
    if !turn.has_begun(lines.iter().rev().filter_map(prompt)) {
        return told(&transcript[..good], Phase::Empty);
    }
    let answer = last_answer(&talk);
    let Some(first) = answer.first() else {
        return told(&transcript[..good], Phase::Interrupted);
    };
    let asked = talk
        .iter()
        .rev()
        .take_while(|l| !is(l, "assistant"))
        .any(|l| result_ids(l).next().is_none());
    if asked {
        let settled = last.text("/message/content/0/text").is_some_and(is_stop);
        let phase = if settled {
            Phase::Settled
        } else {
            Phase::Interrupted
        };
        return told(&transcript[..good], phase);
    }
    let calls: Vec<(&Line, ToolUse)> = answer
        .iter()
        .flat_map(|line| tool_uses(line).map(move |call| (*line, call)))
        .collect();
    if calls.is_empty() {
        let whole = match first.text("/message/stop_reason") {
            Some("pause_turn") => return told(&transcript[..good], Phase::Interrupted),
            Some("tool_use") | None => false,
            Some(_) => true,
        };
        if whole && !turn.headless {
            return told(&transcript[..good], Phase::Settled);
        }
        // What is left may end with a resume that led nowhere.
        return repair(&transcript[..first.at], project_dir, cwd, turn, results);
    }
    let answered: Vec<&str> = talk.iter().flat_map(|l| result_ids(l)).collect();
    let mut repair = told(&transcript[..good], Phase::Interrupted);
    for (line, call) in calls {
        if answered.contains(&call.id.as_str()) {
            continue;
        }
        let session = line.text("/sessionId").unwrap_or_default();
        // Whatever the journal says or does not say of it: another tool runs inside the harness.
        let result = match call.name.as_str() {
            SHELL_TOOL => results(&call),
            _ => CallResult::NotOurs,
        };
        let mut shown = show::show(&call, &result, &format!("{project_dir}/{session}"));
        if matches!(result, CallResult::Settled { .. }) && may_have_moved(line, &call, cwd) {
            shown.add_line(&format!("Shell cwd was reset to {cwd}"));
        }
        jsonl::push(
            &mut repair.bytes,
            &record(line, last, &lines, &call, &shown),
        );
        repair.files.extend(shown.file);
        repair.repaired.push(call.id);
    }
    repair
}

/// The record of a tool result, as the harness would have written it.
fn record(asked: &Line, last: &Line, lines: &[Line], call: &ToolUse, shown: &show::Shown) -> Value {
    let parent = asked.text("/uuid").unwrap_or_default();
    let mut record = json!({
        "parentUuid": parent,
        "isSidechain": false,
        "type": "user",
        "message": { "role": "user", "content": [{
            "tool_use_id": call.id, "type": "tool_result", "content": shown.told.text, "is_error": shown.told.is_error
        }] },
        "uuid": ids::uuid(&[parent, &call.id]),
        "timestamp": last.text("/timestamp").unwrap_or_default(),
        "toolUseResult": shown.own,
        "sourceToolAssistantUUID": parent,
    });
    let prompt_id = lines.iter().rev().find_map(|l| l.value.get("promptId"));
    if let Some(id) = prompt_id {
        record["promptId"] = id.clone();
    }
    for key in [
        "userType",
        "entrypoint",
        "cwd",
        "sessionId",
        "version",
        "gitBranch",
    ] {
        if let Some(value) = asked.value.get(key) {
            record[key] = value.clone();
        }
    }
    record
}

/// Whether the next command would have started in another directory than it will: a harness that is started anew begins in
/// its first directory, and says so in the words that are added where this is true.
fn may_have_moved(asked: &Line, call: &ToolUse, cwd: &str) -> bool {
    let command = call.input.get("command").and_then(Value::as_str);
    let moves = |word| matches!(word, "cd" | "pushd" | "popd");
    let mut words = command
        .unwrap_or_default()
        .split(|c: char| c.is_whitespace() || ";&|(){}".contains(c));
    asked.text("/cwd").is_some_and(|there| there != cwd) || words.any(moves)
}

/// Where the traces of a resume begin that led to no answer: the words it was resumed with, and the filler before them.
///
/// They are taken back, so that a session which is killed again and again does not collect them, and because Claude Code
/// does not go on by itself where it was told so in vain.
fn resumed_in_vain(lines: &[Line]) -> Option<usize> {
    let says = |line: &Line, text| {
        line.text("/message/content")
            .or(line.text("/message/content/0/text"))
            == Some(text)
    };
    let talk = lines
        .iter()
        .rev()
        .filter(|l| (is(l, "user") || is(l, "assistant")) && !is_sidechain(l));
    talk.take_while(|l| match is(l, "user") {
        true => says(l, RESUME_PROMPT),
        false => says(l, RESUME_FILLER) && l.text("/message/model") == Some("<synthetic>"),
    })
    .last()
    .map(|l| l.at)
}

fn is_sidechain(line: &Line) -> bool {
    line.value.get("isSidechain") == Some(&Value::Bool(true))
}

fn is(line: &Line, kind: &str) -> bool {
    line.text("/type") == Some(kind)
}

/// Whether a line is part of the conversation: not a sub-agent's, not a note of the harness to itself or to the model.
fn is_talk(line: &Line) -> bool {
    let meta = line.value.get("isMeta") == Some(&Value::Bool(true));
    if meta || is_sidechain(line) || !(is(line, "user") || is(line, "assistant")) {
        return false;
    }
    let text = line
        .text("/message/content")
        .or(line.text("/message/content/0/text"));
    !text.is_some_and(|t| t.starts_with("<command-name>") || t.starts_with("<local-command-"))
}

/// The prompt of the user in a line.
fn prompt(line: &Line) -> Option<&str> {
    let text = line
        .text("/message/content")
        .or(line.text("/message/content/0/text"))?;
    let summary = line.value.get("isCompactSummary") == Some(&Value::Bool(true));
    (is(line, "user") && is_talk(line) && !summary && text != RESUME_PROMPT).then_some(text)
}

/// The last prompt of the user that is more than a stop.
pub(super) fn last_prompt(transcript: &[u8]) -> Option<String> {
    let (lines, _) = jsonl::read(transcript);
    let mut prompts = lines.iter().rev().filter_map(prompt);
    prompts.find(|text| !is_stop(text)).map(str::to_owned)
}

/// What it writes as the user when the user stopped the turn.
fn is_stop(text: &str) -> bool {
    text.starts_with("[Request interrupted by user")
}

/// The lines of the last answer of the model.
fn last_answer<'a>(talk: &[&'a Line]) -> Vec<&'a Line> {
    let assistant = || talk.iter().filter(|l| is(l, "assistant"));
    let Some(last) = assistant().next_back() else {
        return Vec::new();
    };
    match last.text("/message/id") {
        Some(id) => assistant()
            .filter(|l| l.text("/message/id") == Some(id))
            .copied()
            .collect(),
        None => vec![last],
    }
}

fn blocks<'a>(line: &'a Line, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let content = line
        .value
        .pointer("/message/content")
        .and_then(Value::as_array);
    content
        .into_iter()
        .flatten()
        .filter(move |b| b.get("type").and_then(Value::as_str) == Some(kind))
}

fn tool_uses(line: &Line) -> impl Iterator<Item = ToolUse> {
    blocks(line, "tool_use").filter_map(|block| {
        Some(ToolUse {
            id: block.get("id")?.as_str()?.to_owned(),
            name: block.get("name")?.as_str()?.to_owned(),
            input: block.get("input").cloned().unwrap_or_default(),
        })
    })
}

fn result_ids(line: &Line) -> impl Iterator<Item = &str> {
    blocks(line, "tool_result").filter_map(|block| block.get("tool_use_id")?.as_str())
}
