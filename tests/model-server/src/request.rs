//! What a request holds, in either dialect.

use serde::Serialize;
use serde_json::Value;

/// A model API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    #[serde(rename = "openai")]
    OpenAi,
}

/// A tool's result as the harness reports it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolResult {
    /// The call's id.
    pub(crate) id: String,
    /// All of its text.
    pub(crate) text: String,
}

/// One request, read.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) dialect: Dialect,
    pub(crate) digest: String,
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Names of the tools that are offered.
    pub(crate) tools: Vec<String>,
    /// Whether an answer of a fixed JSON form is wanted.
    pub(crate) json: bool,
    pub(crate) messages: usize,
    pub(crate) tool_results: Vec<ToolResult>,
    /// What the user said, message by message, without what the harness adds.
    pub(crate) user_texts: Vec<String>,
    /// What the assistant said so far, text only.
    pub(crate) said: Vec<String>,
}

impl Asked {
    pub(crate) fn read(dialect: Dialect, body: &[u8]) -> Self {
        let digest = blake3::hash(body).to_hex().to_string();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let messages = list(&body["messages"]);
        let mut asked = Self {
            dialect,
            digest,
            model: body["model"].as_str().unwrap_or("scripted").to_owned(),
            stream: body["stream"].as_bool().unwrap_or(false),
            tools: list(&body["tools"]).iter().map(tool_name).collect(),
            json: !body["response_format"].is_null()
                || !body["output_format"].is_null()
                || !body["output_config"]["format"].is_null(),
            messages: messages.len(),
            tool_results: Vec::new(),
            user_texts: Vec::new(),
            said: Vec::new(),
        };
        for message in &messages {
            asked.message(message);
        }
        asked
    }

    /// Whether it is a request beside the conversation, such as one for a title.
    pub(crate) fn is_side(&self) -> bool {
        self.tools.is_empty()
    }

    fn message(&mut self, message: &Value) {
        let content = &message["content"];
        match message["role"].as_str().unwrap_or_default() {
            "user" => {
                for block in content.as_array().into_iter().flatten() {
                    if block["type"] == "tool_result" {
                        self.tool_results.push(ToolResult {
                            id: block["tool_use_id"].as_str().unwrap_or_default().to_owned(),
                            text: text(&block["content"]),
                        });
                    }
                }
                let said = without_reminders(&text(content));
                if !said.is_empty() {
                    self.user_texts.push(said);
                }
            }
            "tool" => self.tool_results.push(ToolResult {
                id: message["tool_call_id"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                text: text(content),
            }),
            "assistant" => {
                let said = text(content);
                if !said.is_empty() {
                    self.said.push(said);
                }
            }
            _ => {}
        }
    }
}

/// Leaves out what Claude Code adds to a user's words.
fn without_reminders(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once("<system-reminder>") {
        out.push_str(before);
        rest = inside
            .split_once("</system-reminder>")
            .map_or("", |(_, after)| after);
    }
    (out + rest).trim().to_owned()
}

fn tool_name(tool: &Value) -> String {
    let name = tool["name"].as_str().or(tool["function"]["name"].as_str());
    name.unwrap_or_default().to_owned()
}

/// Returns the text of a content: a string, or the text blocks of a list.
fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks
                .iter()
                .filter(|block| block["type"] == "text")
                .filter_map(|block| block["text"].as_str())
                .collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}
