//! Turns a step of the script into the bytes of an answer.

use serde_json::{Value, json};

use crate::request::{Asked, Dialect};
use crate::script::{Tool, Turn};

/// Characters of text in one piece of a stream.
const PIECE: usize = 12;

struct Call {
    id: String,
    name: String,
    input: Value,
}

/// Returns the pieces of an answer; `unique` goes into its ids. One piece where it is not streamed.
pub(crate) fn pieces(asked: &Asked, turn: &Turn, unique: &str) -> Vec<String> {
    let calls: Vec<Call> = turn
        .tools
        .iter()
        .enumerate()
        .map(|(number, tool)| call(asked, tool, &format!("{unique}{number:02}")))
        .collect();
    match (asked.dialect, asked.stream) {
        (Dialect::Anthropic, true) => anthropic_events(asked, &turn.text, &calls, unique),
        (Dialect::Anthropic, false) => vec![anthropic_document(asked, &turn.text, &calls, unique)],
        (Dialect::OpenAi, true) => openai_events(asked, &turn.text, &calls, unique),
        (Dialect::OpenAi, false) => vec![openai_document(asked, &turn.text, &calls, unique)],
    }
}

/// Returns an error in the dialect's shape.
pub(crate) fn error(dialect: Dialect, message: &str) -> String {
    let inner = json!({ "type": "scripted_error", "message": message });
    match dialect {
        Dialect::Anthropic => json!({ "type": "error", "error": inner }),
        Dialect::OpenAi => json!({ "error": inner }),
    }
    .to_string()
}

fn call(asked: &Asked, tool: &Tool, unique: &str) -> Call {
    let offered = |name: &str| asked.tools.iter().any(|tool| tool == name);
    let name = tool.name.clone().unwrap_or_else(|| {
        let shell = ["Bash", "bash"].into_iter().find(|name| offered(name));
        shell.map_or_else(
            || asked.tools.first().cloned().unwrap_or_default(),
            str::to_owned,
        )
    });
    let command = tool.command.as_deref().unwrap_or_default();
    let input = tool.input.clone().unwrap_or_else(|| match name.as_str() {
        "Bash" => json!({ "command": command, "description": "Run the scripted command" }),
        _ => json!({ "command": command }),
    });
    let prefix = match asked.dialect {
        Dialect::Anthropic => "toolu_",
        Dialect::OpenAi => "call_",
    };
    let id = tool
        .id
        .clone()
        .unwrap_or_else(|| format!("{prefix}{unique}"));
    Call { id, name, input }
}

fn split(text: &str, size: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters
        .chunks(size)
        .map(|piece| piece.iter().collect())
        .collect()
}

fn anthropic_events(asked: &Asked, text: &str, calls: &[Call], unique: &str) -> Vec<String> {
    let mut events = Vec::new();
    let mut event = |kind: &str, mut fields: Value| {
        fields["type"] = json!(kind);
        events.push(format!("event: {kind}\ndata: {fields}\n\n"));
    };
    let usage = json!({ "input_tokens": 10, "output_tokens": 1 });
    event(
        "message_start",
        json!({ "message": {
        "id": format!("msg_{unique}"), "type": "message", "role": "assistant", "model": asked.model,
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
    } }),
    );
    let mut index = 0;
    if !text.is_empty() || calls.is_empty() {
        event(
            "content_block_start",
            json!({ "index": 0, "content_block": { "type": "text", "text": "" } }),
        );
        for piece in split(text, PIECE) {
            event(
                "content_block_delta",
                json!({ "index": 0, "delta": { "type": "text_delta", "text": piece } }),
            );
        }
        event("content_block_stop", json!({ "index": 0 }));
        index = 1;
    }
    for call in calls {
        let block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
        event(
            "content_block_start",
            json!({ "index": index, "content_block": block }),
        );
        let input = call.input.to_string();
        for piece in split(&input, input.len().div_ceil(3).max(1)) {
            let delta = json!({ "type": "input_json_delta", "partial_json": piece });
            event(
                "content_block_delta",
                json!({ "index": index, "delta": delta }),
            );
        }
        event("content_block_stop", json!({ "index": index }));
        index += 1;
    }
    let delta = json!({ "stop_reason": anthropic_stop(calls), "stop_sequence": null });
    event(
        "message_delta",
        json!({ "delta": delta, "usage": { "output_tokens": 20 } }),
    );
    event("message_stop", json!({}));
    events
}

fn anthropic_document(asked: &Asked, text: &str, calls: &[Call], unique: &str) -> String {
    let mut content = Vec::new();
    if !text.is_empty() || calls.is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    content.extend(calls.iter().map(
        |call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.input }),
    ));
    json!({
        "id": format!("msg_{unique}"), "type": "message", "role": "assistant", "model": asked.model,
        "content": content, "stop_reason": anthropic_stop(calls), "stop_sequence": null,
        "usage": { "input_tokens": 10, "output_tokens": 20 },
    })
    .to_string()
}

fn anthropic_stop(calls: &[Call]) -> &'static str {
    if calls.is_empty() {
        "end_turn"
    } else {
        "tool_use"
    }
}

fn openai_events(asked: &Asked, text: &str, calls: &[Call], unique: &str) -> Vec<String> {
    let mut events = Vec::new();
    let mut chunk = |delta: Value, finish: Option<&str>| {
        let chunk = json!({
            "id": format!("chatcmpl-{unique}"), "object": "chat.completion.chunk", "created": 0, "model": asked.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
        });
        events.push(format!("data: {chunk}\n\n"));
    };
    chunk(json!({ "role": "assistant", "content": "" }), None);
    for piece in split(text, PIECE) {
        chunk(json!({ "content": piece }), None);
    }
    for (index, call) in calls.iter().enumerate() {
        let start = json!({
            "index": index, "id": call.id, "type": "function", "function": { "name": call.name, "arguments": "" },
        });
        chunk(json!({ "tool_calls": [start] }), None);
        let input = call.input.to_string();
        for piece in split(&input, input.len().div_ceil(3).max(1)) {
            let more = json!({ "index": index, "function": { "arguments": piece } });
            chunk(json!({ "tool_calls": [more] }), None);
        }
    }
    chunk(json!({}), Some(openai_finish(calls)));
    let usage = json!({
        "id": format!("chatcmpl-{unique}"), "object": "chat.completion.chunk", "created": 0, "model": asked.model,
        "choices": [], "usage": { "prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30 },
    });
    events.push(format!("data: {usage}\n\n"));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn openai_document(asked: &Asked, text: &str, calls: &[Call], unique: &str) -> String {
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            json!({
                "id": call.id, "type": "function",
                "function": { "name": call.name, "arguments": call.input.to_string() },
            })
        });
        message["tool_calls"] = calls.collect();
    }
    json!({
        "id": format!("chatcmpl-{unique}"), "object": "chat.completion", "created": 0, "model": asked.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": openai_finish(calls) }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30 },
    })
    .to_string()
}

fn openai_finish(calls: &[Call]) -> &'static str {
    if calls.is_empty() {
        "stop"
    } else {
        "tool_calls"
    }
}
