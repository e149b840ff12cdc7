//! The note that a session begins with where nobody wrote one: what the journal and the files tell of the session before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Read as _;

use harness::{Driver, Start, TranscriptAt};
use protocol::api::{ChangeView, OpView};
use protocol::{ApiError, ErrorCode, Role, Seq};
use tree::{Kind, View};

use crate::engine::Engine;
use crate::sandbox::{Handle, Place};
use crate::session::Detail;
use crate::trees::{blocking, unreadable};

/// The longest last input that is told whole.
const MAX_INPUT: usize = 16 << 10;
/// Lines of changes; where there are more, directories are told.
const MAX_CHANGES: usize = 40;
/// Commands that are told.
const MAX_COMMANDS: usize = 10;
/// Characters of a command.
const MAX_COMMAND: usize = 200;
/// The largest transcript that is looked into.
const MAX_TRANSCRIPT: u64 = 256 << 20;

/// How a note of ours begins, and its last input: a session that began with one is told of by what is in it.
const OPENING: &str = "This is a fresh session in a copy of a sandbox.";
const INPUT: &str = "The last input of the session before:";
const INDENT: &str = "    ";

/// A session of the source that a fork goes on from.
#[derive(Clone)]
pub(crate) struct Before {
    pub(crate) driver: &'static dyn Driver,
    pub(crate) start: Start,
    pub(crate) detail: Detail,
    pub(crate) began: Seq,
}

/// Writes the note for a fork at a place.
pub(crate) async fn write(
    engine: &Engine,
    source: &Handle,
    place: &Place,
    before: Option<&Before>,
) -> Result<String, ApiError> {
    let mut note = format!(
        "{OPENING} Its files are as they were in `{}`; the conversation held there is not part of this one, and processes \
         that ran there do not run here.\n",
        source.name
    );
    let here = format!("{}@{}", source.name, place.at);
    if let Some(before) = before {
        if let Some(input) = last_input(engine, &here, before).await? {
            let input = shorten(original(&input).trim(), MAX_INPUT);
            let lines: Vec<String> = input.lines().map(|l| format!("{INDENT}{l}")).collect();
            let _infallible = write!(note, "\n{INPUT}\n\n{}\n", lines.join("\n"));
        }
        note += &changes(engine, source, &here, place.at, before).await?;
    }
    note += &commands(source, place.at).await?;
    note += "\nGo on with this work; look at the files before you rely on what is said above.\n";
    Ok(note)
}

async fn last_input(
    engine: &Engine,
    here: &str,
    before: &Before,
) -> Result<Option<String>, ApiError> {
    let transcript = match before.driver.transcript(&before.start) {
        Some(at) => {
            let side = engine.side(here).await?;
            let view = side.view.clone();
            // One that cannot be read says nothing; the arguments still do.
            let read = blocking(move || newest(&view, &at)).await;
            drop(side);
            read.unwrap_or_default()
        }
        None => None,
    };
    let said = before
        .driver
        .last_input(&before.start, transcript.as_deref());
    Ok(said.filter(|text| !text.trim().is_empty()))
}

/// Reads the transcript in a cut: no process can swap it meanwhile.
fn newest(view: &View, at: &TranscriptAt) -> Result<Option<Vec<u8>>, ApiError> {
    let dir = at.dir.trim_matches('/').as_bytes();
    let list = view.list(dir).map_err(|e| unreadable(&e))?;
    let files = list.into_iter().flatten().filter(|(name, entry)| {
        let fits = name.ends_with(at.suffix.as_bytes()) && entry.size <= MAX_TRANSCRIPT;
        fits && entry.kind == Kind::File
    });
    let Some((name, entry)) = files.max_by_key(|(name, entry)| (entry.mtime, name.clone())) else {
        return Ok(None);
    };
    let path = [dir, b"/", &name].concat();
    let file = view.content(&path, &entry).map_err(|e| unreadable(&e))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_TRANSCRIPT).read_to_end(&mut bytes);
    Ok(read.is_ok().then_some(bytes))
}

/// What was asked for in a note of ours, so that notes do not pile up in notes.
fn original(input: &str) -> String {
    let asked = input
        .starts_with(OPENING)
        .then(|| input.split_once(&format!("{INPUT}\n\n")))
        .flatten();
    let Some((_, asked)) = asked else {
        return input.to_owned();
    };
    let lines = asked.lines().map_while(|line| line.strip_prefix(INDENT));
    lines.collect::<Vec<_>>().join("\n")
}

/// Both ends of a text that is too long.
fn shorten(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(most / 2);
    let tail = text.ceil_char_boundary(text.len() - most / 2);
    format!("{}\n[…]\n{}", &text[..head], &text[tail..])
}

async fn changes(
    engine: &Engine,
    source: &Handle,
    here: &str,
    at: Seq,
    before: &Before,
) -> Result<String, ApiError> {
    if before.began > at {
        return Ok(String::new());
    }
    let base = match engine
        .side(&format!("{}@{}", source.name, before.began))
        .await
    {
        Ok(base) => base,
        // Its cut was given back by the retention rule.
        Err(gone) if gone.code == ErrorCode::NotFound => {
            return Ok("\nWhich files changed since it began is not known any more.\n".to_owned());
        }
        Err(other) => return Err(other),
    };
    let (mut changes, _) = engine.diff(base, engine.side(here).await?).await?;
    // Neither the harness's own, nor what a shell leaves at home, nor what is only for a while; files say enough of their
    // directories.
    let home = before.start.home.trim_start_matches('/');
    let passing = [&format!("{home}/."), "tmp/", "var/tmp/"];
    changes.retain(|change| {
        change.kind != "directory" && !passing.iter().any(|dir| change.path.starts_with(*dir))
    });
    if changes.is_empty() {
        return Ok("\nNo file changed since it began.\n".to_owned());
    }
    let lines = listed(&changes);
    Ok(format!(
        "\nFiles changed since it began:\n\n{INDENT}{}\n",
        lines.join(&format!("\n{INDENT}"))
    ))
}

/// One line for each change; where these are too many, one for each directory, as deep as there is room for.
fn listed(changes: &[ChangeView]) -> Vec<String> {
    if changes.len() <= MAX_CHANGES {
        let line = |c: &ChangeView| format!("{:<9} /{}", c.status, c.path.escape_debug());
        return changes.iter().map(line).collect();
    }
    let at_depth = |depth: usize| {
        let mut dirs: BTreeMap<String, usize> = BTreeMap::new();
        for change in changes {
            let parts: Vec<&str> = change.path.split('/').collect();
            let dir = parts[..(parts.len() - 1).min(depth)].join("/");
            *dirs.entry(dir).or_default() += 1;
        }
        dirs
    };
    let deep = (1..=8).rev().map(at_depth);
    let mut dirs = deep
        .filter(|dirs| dirs.len() <= MAX_CHANGES)
        .max_by_key(BTreeMap::len)
        .unwrap_or_else(|| at_depth(1));
    let mut left = 0;
    while dirs.len() > MAX_CHANGES {
        left += dirs.pop_last().map_or(0, |(_, count)| count);
    }
    let line = |(dir, count): (&String, &usize)| {
        let s = if *count == 1 { "" } else { "s" };
        format!("/{} ({count} file{s})", dir.escape_debug())
    };
    let mut lines: Vec<String> = dirs.iter().map(line).collect();
    if left > 0 {
        lines.push(format!("and {left} more"));
    }
    lines
}

async fn commands(source: &Handle, at: Seq) -> Result<String, ApiError> {
    let mut ops = source.ops().await?;
    ops.retain(|op| op.role == Role::Command && op.intent_seq <= at);
    let from = ops.len().saturating_sub(MAX_COMMANDS);
    let mut lines = String::new();
    for op in ops.split_off(from) {
        let view = source.attach(op.id).await?.view;
        let _infallible = write!(
            lines,
            "{INDENT}{}\n{INDENT}  {}\n",
            command(&view),
            end(&view, at)
        );
    }
    if lines.is_empty() {
        return Ok(lines);
    }
    Ok(format!(
        "\nThe last commands, and how they ended:\n\n{lines}"
    ))
}

/// A command as it was meant, on one line.
fn command(view: &OpView) -> String {
    let text = match view.argv.as_slice() {
        [shell, flag, script] if shell.ends_with("sh") && flag == "-c" => script.clone(),
        words => words.join(" "),
    };
    let line = text.trim().replace('\n', "; ");
    let cut: String = line.chars().take(MAX_COMMAND).collect();
    if cut.len() < line.len() {
        format!("$ {cut} […]")
    } else {
        format!("$ {cut}")
    }
}

fn end(view: &OpView, at: Seq) -> String {
    if view.settled_seq.is_none_or(|settled| settled > at) {
        return "was running when this copy was made; it does not run here".to_owned();
    }
    match (view.outcome.as_deref(), view.exit_code, view.signal) {
        (Some("exited"), Some(code), _) => format!("exited with {code}"),
        (Some("signaled"), _, Some(signal)) => format!("ended by signal {signal}"),
        (Some("timed_out"), ..) => "timed out".to_owned(),
        (Some("cancelled"), ..) => "was cancelled".to_owned(),
        _ => "its end is unknown; it may or may not have taken effect".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str) -> ChangeView {
        ChangeView {
            path: path.to_owned(),
            path_base64: None,
            status: "added".to_owned(),
            from: None,
            from_base64: None,
            kind: "file".to_owned(),
            what: Vec::new(),
            mode: 0o644,
            size_before: None,
            size_after: Some(1),
        }
    }

    #[test]
    fn many_changes_are_told_by_directory() {
        let few = [change("workspace/a"), change("workspace/b\n")];
        assert_eq!(
            listed(&few),
            ["added     /workspace/a", "added     /workspace/b\\n"]
        );
        let many: Vec<_> = (0..2000)
            .map(|n| change(&format!("workspace/target/{}/{n}", n % 50)))
            .chain([change("workspace/a"), change("workspace/src/b")])
            .collect();
        assert_eq!(
            listed(&many),
            [
                "/workspace (1 file)",
                "/workspace/src (1 file)",
                "/workspace/target (2000 files)"
            ]
        );
        let wide: Vec<_> = (0..100).map(|n| change(&format!("{n}/x"))).collect();
        assert_eq!(listed(&wide).len(), MAX_CHANGES + 1);
    }

    #[test]
    fn notes_do_not_pile_up() {
        let note =
            format!("{OPENING} More.\n\n{INPUT}\n\n{INDENT}fix it\n{INDENT}\n{INDENT}now\n\nFiles");
        assert_eq!(original(&note), "fix it\n\nnow");
        assert_eq!(original("fix it"), "fix it");
        let long = "ä".repeat(MAX_INPUT);
        let short = shorten(&long, MAX_INPUT);
        assert!(short.len() < MAX_INPUT + 16 && short.contains("[…]"));
    }
}
