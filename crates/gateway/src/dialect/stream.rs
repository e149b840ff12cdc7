//! Reads an answer while it passes: which tool calls are in it, and where a client could act on one.

use std::collections::BTreeMap;

use protocol::ToolCall;

use serde_json::Value;

use super::Dialect;

/// The longest event or document that is looked into; what is longer passes and its tool calls stay unknown.
const MAX_DOCUMENT: usize = 32 << 20;

/// Whether bytes may be shown to the client before they are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// At once: they complete nothing.
    Open,
    /// Only when they are durable: a client acts on what they complete.
    Durable,
    /// Only when the whole answer is settled.
    Settled,
}

/// Reads one answer.
pub(crate) struct Scanner {
    dialect: Dialect,
    form: Form,
    calls: BTreeMap<(u64, u64), Call>,
}

enum Form {
    /// Server-sent events: the line that is being read, and the data lines of the event so far.
    Events { line: Vec<u8>, data: Vec<u8> },
    /// One JSON document.
    Document(Vec<u8>),
}

#[derive(Default)]
struct Call {
    id: String,
    name: String,
    input: String,
    complete: bool,
}

impl Scanner {
    /// Starts at the beginning of a body with this content type.
    pub(crate) fn new(dialect: Dialect, headers: &[(String, String)]) -> Self {
        let events = headers.iter().any(|(name, value)| {
            name.eq_ignore_ascii_case("content-type") && value.starts_with("text/event-stream")
        });
        Self {
            dialect,
            form: if events {
                Form::Events {
                    line: Vec::new(),
                    data: Vec::new(),
                }
            } else {
                Form::Document(Vec::new())
            },
            calls: BTreeMap::new(),
        }
    }

    /// Reads on. The answer holds for all of `bytes`.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Gate {
        let mut gate = Gate::Open;
        let mut events = Vec::new();
        match &mut self.form {
            Form::Document(document) => {
                if document.len() + bytes.len() <= MAX_DOCUMENT {
                    document.extend(bytes);
                }
                return Gate::Settled;
            }
            Form::Events { line, data } => {
                for piece in bytes.split_inclusive(|b| *b == b'\n') {
                    if line.len() + data.len() + piece.len() <= MAX_DOCUMENT {
                        line.extend(piece);
                    }
                    if piece.ends_with(b"\n") {
                        let whole = std::mem::take(line);
                        let whole = whole.trim_ascii_end();
                        if let Some(content) = whole.strip_prefix(b"data:") {
                            data.extend(content.trim_ascii_start());
                        } else if whole.is_empty() && !data.is_empty() {
                            events.push(std::mem::take(data));
                        }
                    }
                }
            }
        }
        for event in events {
            if self.event(&event) {
                gate = Gate::Durable;
            }
        }
        gate
    }

    /// Returns the complete tool calls of an answer that came to its end or broke off.
    pub(crate) fn finish(mut self) -> Vec<ToolCall> {
        match std::mem::replace(&mut self.form, Form::Document(Vec::new())) {
            Form::Document(document) => self.document(&document),
            // Some servers leave out the last blank line.
            Form::Events { data, .. } if !data.is_empty() => {
                self.event(&data);
            }
            Form::Events { .. } => {}
        }
        let complete = self.calls.into_values().filter(|call| call.complete);
        complete
            .map(|call| ToolCall {
                id: call.id,
                name: call.name,
                input: if call.input.is_empty() {
                    "{}".to_owned()
                } else {
                    call.input
                },
            })
            .collect()
    }

    /// Returns whether a client acts on this event.
    fn event(&mut self, data: &[u8]) -> bool {
        if data == b"[DONE]" {
            self.complete_all();
            return true;
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            return true;
        };
        match self.dialect {
            Dialect::Anthropic => self.anthropic(&event),
            Dialect::OpenAi => self.openai(&event),
        }
    }

    fn anthropic(&mut self, event: &Value) -> bool {
        let key = (0, event["index"].as_u64().unwrap_or(0));
        match event["type"].as_str().unwrap_or_default() {
            "content_block_start" => {
                let block = &event["content_block"];
                if block["type"] == "tool_use" {
                    self.calls.insert(key, anthropic_call(block));
                }
                false
            }
            "content_block_delta" => {
                let more = event["delta"]["partial_json"].as_str();
                if let (Some(call), Some(more)) = (self.calls.get_mut(&key), more) {
                    call.input.push_str(more);
                }
                false
            }
            "content_block_stop" => {
                if let Some(call) = self.calls.get_mut(&key) {
                    call.complete = true;
                }
                true
            }
            "message_start" | "ping" => false,
            // `message_delta` with its stop reason, `message_stop`, `error`, and whatever comes to be.
            _ => true,
        }
    }

    fn openai(&mut self, event: &Value) -> bool {
        let mut acts = event["choices"].is_null();
        for choice in event["choices"].as_array().into_iter().flatten() {
            let number = choice["index"].as_u64().unwrap_or(0);
            let calls = choice["delta"]["tool_calls"].as_array();
            for part in calls.into_iter().flatten() {
                let index = part["index"].as_u64().unwrap_or(0);
                let call = self.calls.entry((number, index)).or_default();
                let function = &part["function"];
                push(&mut call.id, &part["id"]);
                push(&mut call.name, &function["name"]);
                push(&mut call.input, &function["arguments"]);
            }
            if !choice["finish_reason"].is_null() {
                acts = true;
                for (_, call) in self.calls.range_mut((number, 0)..=(number, u64::MAX)) {
                    call.complete = true;
                }
            }
        }
        acts
    }

    fn document(&mut self, document: &[u8]) {
        let Ok(body) = serde_json::from_slice::<Value>(document) else {
            return;
        };
        let blocks = body["content"].as_array().into_iter().flatten();
        for (index, block) in (0..).zip(blocks.filter(|block| block["type"] == "tool_use")) {
            let call = anthropic_call(block);
            self.calls.insert((0, index), call);
        }
        for choice in body["choices"].as_array().into_iter().flatten() {
            let number = choice["index"].as_u64().unwrap_or(0);
            let calls = choice["message"]["tool_calls"].as_array();
            for (index, part) in (0..).zip(calls.into_iter().flatten()) {
                let call = self.calls.entry((number, index)).or_default();
                push(&mut call.id, &part["id"]);
                push(&mut call.name, &part["function"]["name"]);
                push(&mut call.input, &part["function"]["arguments"]);
            }
        }
        self.complete_all();
    }

    fn complete_all(&mut self) {
        for call in self.calls.values_mut() {
            call.complete = true;
        }
    }
}

fn anthropic_call(block: &Value) -> Call {
    let mut call = Call::default();
    push(&mut call.id, &block["id"]);
    push(&mut call.name, &block["name"]);
    // A streamed call starts with `{}` and gets its input in pieces.
    let input = &block["input"];
    if input.as_object().is_some_and(|input| !input.is_empty()) {
        call.input = input.to_string();
    }
    call
}

fn push(text: &mut String, more: &Value) {
    text.push_str(more.as_str().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANTHROPIC: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_1\",\"name\":\"Bash\",\"input\":{}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"command\\\":\"}}\n\n",
        "event: content_block_delta\r\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"\\\"ls\\\"}\"}}\r\n\r\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    const OPENAI: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"bash\",\"arguments\":\"\"}}]},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"command\\\":\"}}]},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"ls\\\"}\"}},{\"index\":1,\"id\":\"call_2\",\"function\":{\"name\":\"bash\",\"arguments\":\"{}\"}}]},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
        "data: [DONE]\n\n",
    );

    fn sse() -> Vec<(String, String)> {
        vec![(
            "Content-Type".into(),
            "text/event-stream; charset=utf-8".into(),
        )]
    }

    fn call(id: &str, name: &str, input: &str) -> ToolCall {
        ToolCall {
            id: id.into(),
            name: name.into(),
            input: input.into(),
        }
    }

    fn expected(dialect: Dialect) -> Vec<ToolCall> {
        let ls = r#"{"command":"ls"}"#;
        match dialect {
            Dialect::Anthropic => vec![call("toolu_1", "Bash", ls)],
            Dialect::OpenAi => vec![call("call_1", "bash", ls), call("call_2", "bash", "{}")],
        }
    }

    #[test]
    fn tool_calls_are_found_at_any_split() {
        for (dialect, text) in [(Dialect::Anthropic, ANTHROPIC), (Dialect::OpenAi, OPENAI)] {
            for size in [1, 2, 7, 64, text.len()] {
                let mut scanner = Scanner::new(dialect, &sse());
                for piece in text.as_bytes().chunks(size) {
                    scanner.feed(piece);
                }
                assert_eq!(scanner.finish(), expected(dialect), "{dialect:?} by {size}");
            }
        }
    }

    #[test]
    fn only_what_completes_something_waits_for_the_disk() {
        for (dialect, text) in [(Dialect::Anthropic, ANTHROPIC), (Dialect::OpenAi, OPENAI)] {
            let mut scanner = Scanner::new(dialect, &sse());
            for event in text.split_inclusive("\n\n") {
                let acts = [
                    "content_block_stop",
                    "message_stop",
                    "\"tool_calls\"}",
                    "[DONE]",
                ];
                let expected = if acts.iter().any(|word| event.contains(word)) {
                    Gate::Durable
                } else {
                    Gate::Open
                };
                assert_eq!(scanner.feed(event.as_bytes()), expected, "{event}");
            }
        }
    }

    #[test]
    fn a_call_that_broke_off_is_no_call() {
        let cut = ANTHROPIC
            .find("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1")
            .unwrap();
        let mut scanner = Scanner::new(Dialect::Anthropic, &sse());
        scanner.feed(&ANTHROPIC.as_bytes()[..cut]);
        assert_eq!(scanner.finish(), []);
    }

    #[test]
    fn documents_hold_calls_too() {
        let anthropic = r#"{"content":[{"type":"text","text":"x"},{"type":"tool_use","id":"toolu_1","name":"Bash","input":{"command":"ls"}}]}"#;
        let openai = r#"{"choices":[{"index":0,"message":{"tool_calls":[{"id":"call_1","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}},{"id":"call_2","function":{"name":"bash","arguments":"{}"}}]}}]}"#;
        for (dialect, text) in [(Dialect::Anthropic, anthropic), (Dialect::OpenAi, openai)] {
            let mut scanner = Scanner::new(dialect, &[]);
            assert_eq!(scanner.feed(text.as_bytes()), Gate::Settled);
            assert_eq!(scanner.finish(), expected(dialect));
        }
    }
}
