//! Which conversation a request is about: a digest that a restarted harness reaches again although its bytes differ.
//!
//! Counted: the messages with their roles, texts, tool calls and tool results; the model; whether the answer is streamed;
//! whether there are tools at all and a fixed output format (a side request for a title differs in those). Not counted:
//! the system prompt, tool descriptions, cache marks, thinking, and what a harness adds by itself when it is resumed.

use serde_json::Value;

use super::Dialect;

/// What Claude Code adds as a user's text when it goes on with an interrupted turn.
const NUDGE: &str = "Continue from where you left off.";
const REMINDER: (&str, &str) = ("<system-reminder>", "</system-reminder>");
/// Parts of a message that carry no meaning of their own.
const SKIPPED_BLOCKS: [&str; 2] = ["thinking", "redacted_thinking"];

/// The digests of one request's conversation, in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// Of the whole.
    pub(crate) digest: String,
    /// Where it ends with an answer that asks for nothing: of what that answer was given to.
    pub(crate) answered: Option<String>,
}

/// Returns the conversation of a request's body; `None` where it is not understood.
pub(crate) fn conversation(dialect: Dialect, body: &[u8]) -> Option<Conversation> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let mut messages: Vec<Message> = Vec::new();
    for message in body["messages"].as_array()? {
        let message = normal(message)?;
        match messages.last_mut() {
            // A harness may send one user message as two, or two as one.
            Some(last) if last.role == message.role => last.parts.extend(message.parts),
            _ if message.parts.is_empty() => {}
            _ => messages.push(message),
        }
    }
    let frame = frame(dialect, &body);
    let ended = messages
        .last()
        .is_some_and(|last| last.role == "assistant" && !last.calls_tools());
    let answered = ended.then(|| digest(&frame, &messages[..messages.len() - 1]));
    Some(Conversation {
        digest: digest(&frame, &messages),
        answered,
    })
}

struct Message {
    role: String,
    parts: Vec<String>,
}

impl Message {
    fn calls_tools(&self) -> bool {
        self.parts.iter().any(|part| part.starts_with(CALL))
    }
}

/// Marks a part that is a tool call.
const CALL: &str = "call:";

fn digest(frame: &str, messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut field = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    field(frame);
    for message in messages {
        field(&message.role);
        field(&message.parts.len().to_string());
        message.parts.iter().for_each(|part| field(part));
    }
    hasher.finalize().to_hex().to_string()
}

/// What besides the messages makes two requests different ones.
fn frame(dialect: Dialect, body: &Value) -> String {
    let tools = body["tools"].as_array().is_some_and(|t| !t.is_empty());
    let format = [
        &body["response_format"],
        &body["output_format"],
        &body["output_config"]["format"],
    ];
    let format: Vec<String> = format.into_iter().map(canonical).collect();
    let streamed = body["stream"].as_bool().unwrap_or(false);
    let model = canonical(&body["model"]);
    format!(
        "{dialect:?}|{model}|{streamed}|{tools}|{}",
        format.join("|")
    )
}

/// Returns a message in its normal form; one of the system has no parts.
fn normal(message: &Value) -> Option<Message> {
    let role = message["role"].as_str()?;
    let mut parts = Vec::new();
    if matches!(role, "system" | "developer") {
        // No part: it neither counts nor stands between two messages of one role.
        return Some(Message {
            role: String::new(),
            parts,
        });
    }
    if let Some(id) = message["tool_call_id"].as_str() {
        parts.push(format!("for:{id}"));
    }
    match &message["content"] {
        Value::Null => {}
        Value::String(text) => push_text(&mut parts, text),
        Value::Array(blocks) => blocks
            .iter()
            .for_each(|block| push_block(&mut parts, block)),
        other => parts.push(canonical(other)),
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let (name, input) = (
            canonical(&function["name"]),
            canonical(&function["arguments"]),
        );
        parts.push(format!("{CALL}{}|{name}|{input}", canonical(&call["id"])));
    }
    Some(Message {
        role: role.to_owned(),
        parts,
    })
}

fn push_block(parts: &mut Vec<String>, block: &Value) {
    let kind = block["type"].as_str().unwrap_or_default();
    if SKIPPED_BLOCKS.contains(&kind) {
        return;
    }
    match kind {
        "text" => push_text(parts, block["text"].as_str().unwrap_or_default()),
        "tool_use" => {
            let (id, name) = (canonical(&block["id"]), canonical(&block["name"]));
            parts.push(format!("{CALL}{id}|{name}|{}", canonical(&block["input"])));
        }
        "tool_result" => {
            let mut inner = Vec::new();
            match &block["content"] {
                Value::String(text) => push_text(&mut inner, text),
                Value::Array(blocks) => blocks.iter().for_each(|b| push_block(&mut inner, b)),
                Value::Null => {}
                other => inner.push(canonical(other)),
            }
            let failed = block["is_error"].as_bool().unwrap_or(false);
            let id = canonical(&block["tool_use_id"]);
            parts.push(format!("result:{id}|{failed}|{inner:?}"));
        }
        _ => parts.push(canonical(block)),
    }
}

fn push_text(parts: &mut Vec<String>, text: &str) {
    let text = without_reminders(text);
    let text = text.trim();
    if !text.is_empty() && text != NUDGE {
        parts.push(format!("text:{text}"));
    }
}

fn without_reminders(text: &str) -> String {
    let (open, close) = REMINDER;
    let (mut rest, mut out) = (text, String::new());
    while let Some((before, inside)) = rest.split_once(open) {
        let Some((_, after)) = inside.split_once(close) else {
            break;
        };
        out.push_str(before);
        rest = after;
    }
    out + rest
}

/// Returns JSON text with sorted keys and without cache marks.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields
                .iter()
                .filter(|(name, _)| *name != "cache_control")
                .map(|(name, value)| format!("{name:?}:{}", canonical(value)))
                .collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn anthropic(messages: &Value) -> String {
        of(&json!({ "model": "m", "stream": true, "messages": messages }))
    }

    fn of(body: &Value) -> String {
        conversation(Dialect::Anthropic, body.to_string().as_bytes())
            .unwrap()
            .digest
    }

    fn talk() -> Value {
        json!([
            { "role": "user", "content": "go" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "text", "text": "Running." },
                { "type": "tool_use", "id": "t1", "name": "Bash", "input": { "a": 1, "b": 2 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": "out", "is_error": false },
            ] },
        ])
    }

    #[test]
    fn what_a_resumed_harness_adds_does_not_count() {
        let resumed = json!([
            { "role": "user", "content": [
                { "type": "text", "text": "<system-reminder>\ndate\n</system-reminder>" },
                { "type": "text", "text": "go<system-reminder>x</system-reminder>", "cache_control": { "type": "ephemeral" } },
            ] },
            { "role": "assistant", "content": [{ "type": "text", "text": "Running." }] },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "t1", "name": "Bash", "input": { "b": 2, "a": 1 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "out" }], "is_error": false },
            ] },
            { "role": "user", "content": [{ "type": "text", "text": "Continue from where you left off." }] },
        ]);
        assert_eq!(anthropic(&talk()), anthropic(&resumed));
    }

    #[test]
    fn what_the_model_would_answer_differently_counts() {
        let same = anthropic(&talk());
        for (pointer, value) in [
            ("/0/content", json!("stop")),
            ("/1/content/2/input/a", json!(9)),
            ("/1/content/2/id", json!("t2")),
            ("/2/content/0/content", json!("other")),
            ("/2/content/0/is_error", json!(true)),
        ] {
            let mut other = talk();
            *other.pointer_mut(pointer).unwrap() = value;
            assert_ne!(anthropic(&other), same, "{pointer}");
        }
    }

    #[test]
    fn a_side_request_is_another_conversation() {
        let main = json!({ "model": "m", "stream": true, "tools": [{ "name": "Bash" }], "messages": talk() });
        let base = of(&main);
        for (field, value) in [
            ("model", json!("small")),
            ("stream", json!(false)),
            ("tools", json!([])),
            (
                "output_config",
                json!({ "format": { "type": "json_schema" } }),
            ),
        ] {
            let mut side = main.clone();
            side[field] = value;
            assert_ne!(of(&side), base, "{field}");
        }
        let mut described = main.clone();
        described["tools"][0]["description"] = json!("changed");
        described["system"] = json!("changed");
        assert_eq!(of(&described), base);
    }

    #[test]
    fn openai_calls_and_results_count() {
        let body = |arguments: &str, result: &str| {
            let body = json!({ "model": "m", "stream": true, "messages": [
                { "role": "system", "content": arguments },
                { "role": "user", "content": [{ "type": "text", "text": "go" }] },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "c", "type": "function", "function": { "name": "bash", "arguments": "{}" } },
                ] },
                { "role": "tool", "tool_call_id": "c", "content": result },
            ] });
            conversation(Dialect::OpenAi, body.to_string().as_bytes()).unwrap()
        };
        assert_eq!(body("a", "out"), body("b", "out"));
        assert_ne!(body("a", "out"), body("a", "other"));
        assert_eq!(body("a", "out").answered, None);
    }

    #[test]
    fn a_conversation_that_ended_knows_what_was_answered() {
        let asked = json!([{ "role": "user", "content": "go" }]);
        let ended = json!([
            { "role": "user", "content": "go" },
            { "role": "assistant", "content": [{ "type": "text", "text": "Done." }] },
        ]);
        let body = json!({ "model": "m", "stream": true, "messages": ended });
        let ended = conversation(Dialect::Anthropic, body.to_string().as_bytes()).unwrap();
        assert_eq!(ended.answered, Some(anthropic(&asked)));
    }
}
