//! Takes the resume prompt out of a request, so that the model sees the conversation that would have been without the loss.
//!
//! Every other byte stays as the harness sent it: providers keep their prompt caches by what they were sent before.

use std::borrow::Cow;
use std::ops::Range;

use protocol::shim::{RESUME_FILLER, RESUME_PROMPT};

use serde::Deserialize;
use serde_json::value::RawValue;

/// A request without the prompt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stripped {
    /// The new body.
    pub(crate) body: Vec<u8>,
    /// Whether the prompt was the last thing said: the harness was resumed just now.
    pub(crate) resumed: bool,
}

/// Returns the body without the resume prompt; `None` where there is none in it, or nothing would be left to answer to.
pub(crate) fn strip(body: &[u8]) -> Option<Stripped> {
    let body = std::str::from_utf8(body).ok()?;
    if !body.contains(RESUME_PROMPT) {
        return None;
    }
    let outer: Outer<'_> = serde_json::from_str(body).ok()?;
    let raw: Vec<&RawValue> = serde_json::from_str(outer.messages.get()).ok()?;
    let mut kept: Vec<Cow<'_, str>> = Vec::new();
    let mut roles: Vec<Cow<'_, str>> = Vec::new();
    let (mut found, mut resumed) = (false, false);
    for message in raw {
        let parsed: Message<'_> = serde_json::from_str(message.get()).ok()?;
        let change = if parsed.role == "user" {
            change(message.get(), parsed.content)
        } else {
            Change::None
        };
        resumed = !matches!(change, Change::None);
        found |= resumed;
        match change {
            Change::None => kept.push(Cow::Borrowed(message.get())),
            Change::Edited(text) => kept.push(Cow::Owned(text)),
            Change::Removed => {
                if kept.last().is_some_and(|last| is_filler(last)) {
                    kept.pop();
                    roles.pop();
                }
                continue;
            }
        }
        roles.push(parsed.role);
    }
    let first = roles
        .iter()
        .find(|role| !matches!(role.as_ref(), "system" | "developer"))?;
    if !found || first != "user" {
        return None;
    }
    let mut out = String::with_capacity(body.len());
    let span = span(body, outer.messages.get());
    out.push_str(&body[..span.start]);
    out.push('[');
    out.push_str(&kept.join(","));
    out.push(']');
    out.push_str(&body[span.end..]);
    Some(Stripped {
        body: out.into_bytes(),
        resumed,
    })
}

#[derive(Deserialize)]
struct Outer<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
}

enum Change {
    None,
    Edited(String),
    Removed,
}

fn change(message: &str, content: Option<&RawValue>) -> Change {
    let Some(content) = content.map(RawValue::get) else {
        return Change::None;
    };
    if content.starts_with('"') {
        return if is_prompt(content) {
            Change::Removed
        } else {
            Change::None
        };
    }
    let Ok(blocks) = serde_json::from_str::<Vec<&RawValue>>(content) else {
        return Change::None;
    };
    let mut kept: Vec<Cow<'_, str>> = Vec::new();
    let mut found = false;
    for block in &blocks {
        let text = text_of(block.get());
        if text.is_some_and(is_prompt) {
            found = true;
            if let Some(last) = kept.pop() {
                kept.push(without_added_line_feed(last));
            }
        } else {
            kept.push(Cow::Borrowed(block.get()));
        }
    }
    if !found {
        Change::None
    } else if kept.is_empty() {
        Change::Removed
    } else {
        let span = span(message, content);
        let (before, after) = (&message[..span.start], &message[span.end..]);
        Change::Edited(format!("{before}[{}]{after}", kept.join(",")))
    }
}

/// Claude Code ends a text block with a line feed where another one follows.
fn without_added_line_feed(block: Cow<'_, str>) -> Cow<'_, str> {
    let edited = text_of(&block).and_then(|text| {
        let shorter = serde_json::from_str::<String>(text).ok()?;
        let shorter = shorter.strip_suffix('\n')?;
        // The usual escape is cut off in place, so that nothing else is written in another way than it was sent.
        let new = match text.strip_suffix("\\n\"") {
            Some(cut) => format!("{cut}\""),
            None => serde_json::to_string(shorter).ok()?,
        };
        let span = span(&block, text);
        Some(format!(
            "{}{new}{}",
            &block[..span.start],
            &block[span.end..]
        ))
    });
    edited.map_or(block, Cow::Owned)
}

fn text_of(block: &str) -> Option<&str> {
    let block: Block<'_> = serde_json::from_str(block).ok()?;
    block.text.map(RawValue::get)
}

fn is_prompt(json: &str) -> bool {
    serde_json::from_str::<String>(json).is_ok_and(|text| text.trim() == RESUME_PROMPT)
}

/// Whether a message is what Claude Code says for the assistant before the prompt.
fn is_filler(message: &str) -> bool {
    let says = |json: &str| serde_json::from_str::<String>(json).is_ok_and(|t| t == RESUME_FILLER);
    let Ok(message) = serde_json::from_str::<Message<'_>>(message) else {
        return false;
    };
    let Some(content) = message.content.filter(|_| message.role == "assistant") else {
        return false;
    };
    says(content.get())
        || serde_json::from_str::<Vec<&RawValue>>(content.get()).is_ok_and(
            |blocks| matches!(blocks.as_slice(), [one] if text_of(one.get()).is_some_and(says)),
        )
}

/// Returns where `part` lies in `whole`, of which it is a slice.
fn span(whole: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: &str = RESUME_PROMPT;

    fn text(body: &str) -> Option<(String, bool)> {
        let stripped = strip(body.as_bytes())?;
        Some((String::from_utf8(stripped.body).unwrap(), stripped.resumed))
    }

    #[test]
    fn a_message_that_is_only_the_prompt_goes() {
        for content in [
            format!("\"{P}\""),
            format!(r#"[ {{"type":"text","text":"{P}","cache_control":{{"type":"ephemeral"}}}} ]"#),
            format!(r#"[{{"type":"text","text":"\n{P}\n"}}]"#),
        ] {
            let body = format!(
                r#"{{"z":1.50, "messages": [ {{"role":"user","content":"go"}} , {{"role":"user","content":{content}}}],"a":"é"}}"#
            );
            let expected = r#"{"z":1.50, "messages": [{"role":"user","content":"go"}],"a":"é"}"#;
            assert_eq!(text(&body), Some((expected.to_owned(), true)));
        }
    }

    #[test]
    fn a_block_goes_with_the_line_feed_before_it() {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"t","content":"x\n"}},{{"type":"text","text":"a\u00e9\\n\n"}},{{"type":"text","text":"{P}"}}]}},{{"role":"assistant","content":"ok"}}]}}"#
        );
        let expected = r#"{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x\n"},{"type":"text","text":"a\u00e9\\n"}]},{"role":"assistant","content":"ok"}]}"#;
        assert_eq!(text(&body), Some((expected.to_owned(), false)));
    }

    #[test]
    fn the_filler_goes_with_the_prompt_and_only_with_it() {
        let filler = format!(
            r#"{{"role":"assistant","content":[{{"type":"text","text":"{RESUME_FILLER}"}}]}}"#
        );
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"go"}},{filler},{{"role":"user","content":"x"}},{filler},{{"role":"user","content":"{P}"}}]}}"#
        );
        let expected = format!(
            r#"{{"messages":[{{"role":"user","content":"go"}},{filler},{{"role":"user","content":"x"}}]}}"#
        );
        assert_eq!(text(&body), Some((expected, true)));
    }

    #[test]
    fn words_that_only_hold_the_prompt_stay() {
        for body in [
            format!(r#"{{"messages":[{{"role":"user","content":"why {P}"}}]}}"#),
            format!(r#"{{"messages":[{{"role":"assistant","content":"{P}"}}]}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":"{P}"}}]}}"#),
            format!(
                r#"{{"messages":[{{"role":"user","content":"{P}"}},{{"role":"assistant","content":"x"}}]}}"#
            ),
            format!(r#"{{"messages":"{P}"}}"#),
            P.to_owned(),
        ] {
            assert_eq!(text(&body), None, "{body}");
        }
    }
}
