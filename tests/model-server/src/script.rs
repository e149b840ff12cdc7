//! What the model says, step by step, and which step a conversation has reached.

use serde::Deserialize;

use crate::request::Asked;

/// One step.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    /// What it says.
    pub text: String,
    /// What it calls, after the text.
    pub tools: Vec<Tool>,
    /// A pause between two pieces of the stream.
    pub delay_ms: u64,
    /// Whether the stream stops in the middle until it is released.
    pub hold: bool,
    /// After how many pieces it stops.
    pub hold_after: Option<usize>,
    /// Answers with this status and an error instead.
    pub status: Option<u16>,
    /// Only so many times, then as usual; always where it is not given.
    pub times: Option<usize>,
    /// The connection is broken off after so many pieces.
    pub break_after: Option<usize>,
}

/// One call of a tool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tool {
    /// Its name; the harness's shell where it is not given.
    pub name: Option<String>,
    /// A shell command.
    pub command: Option<String>,
    /// The input as it stands, instead of a command.
    pub input: Option<serde_json::Value>,
    /// Its id; one of its own for each request where it is not given.
    pub id: Option<String>,
}

/// A list of steps.
#[derive(Debug, Clone)]
pub struct Script(Vec<Turn>);

impl Script {
    /// Reads a JSON list of turns.
    ///
    /// # Errors
    /// Text that is none, or an empty list.
    pub fn parse(text: &str) -> Result<Self, String> {
        let turns: Vec<Turn> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if turns.is_empty() {
            return Err("it has no turn".to_owned());
        }
        Ok(Self(turns))
    }

    /// Returns the usual script: one command, then a last word.
    #[must_use]
    pub fn for_command(command: &str) -> Self {
        let call = Turn {
            text: "Running it.".to_owned(),
            tools: vec![Tool {
                command: Some(command.to_owned()),
                ..Tool::default()
            }],
            ..Turn::default()
        };
        let last = Turn {
            text: "All done.".to_owned(),
            ..Turn::default()
        };
        Self(vec![call, last])
    }

    /// Returns the step that a conversation has reached, and the number of it.
    ///
    /// A turn with tools is over when as many results are there, one without when its text was said; the last one stays.
    pub(crate) fn step(&self, asked: &Asked) -> (usize, &Turn) {
        let mut results = asked.tool_results.len();
        let mut said: Vec<&str> = asked.said.iter().map(String::as_str).collect();
        for (number, turn) in self.0.iter().enumerate() {
            let over = if turn.tools.is_empty() {
                let found = said.iter().position(|text| text.trim() == turn.text.trim());
                found.map(|at| said.drain(..=at)).is_some()
            } else if results >= turn.tools.len() {
                results -= turn.tools.len();
                true
            } else {
                false
            };
            if !over {
                return (number, turn);
            }
        }
        let last = self.0.len() - 1;
        (last, &self.0[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Dialect, ToolResult};

    fn asked(results: usize, said: &[&str]) -> Asked {
        let mut asked = Asked::read(Dialect::OpenAi, b"{}");
        asked.said = said.iter().map(|text| (*text).to_owned()).collect();
        for number in 0..results {
            asked.tool_results.push(ToolResult {
                id: number.to_string(),
                text: String::new(),
            });
        }
        asked
    }

    #[test]
    fn the_conversation_says_which_step_is_next() {
        let script = Script::parse(
            r#"[{"text":"a","tools":[{"command":"1"},{"command":"2"}]},{"text":"b"},{"text":"c","tools":[{"command":"3"}]},{"text":"d"}]"#,
        )
        .unwrap();
        let step = |results, said: &[&str]| script.step(&asked(results, said)).0;
        assert_eq!(step(0, &[]), 0);
        assert_eq!(step(1, &["a"]), 0);
        assert_eq!(step(2, &["a"]), 1);
        assert_eq!(step(2, &["a", "b"]), 2);
        assert_eq!(step(3, &["a", "b", "c"]), 3);
        assert_eq!(step(3, &["a", "b", "c", "d"]), 3);
        assert!(Script::parse("[]").is_err());
        assert!(Script::parse(r#"[{"txt":"a"}]"#).is_err());
    }
}
