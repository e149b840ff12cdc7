//! Claude Code, unmodified. Every choice here was made by experiment with the version below; see docs/harnesses.md.
//!
//! Its commands reach the shim through `CLAUDE_CODE_SHELL_PREFIX` and carry the id that our `PreToolUse` hook has put before
//! them. An interrupted turn goes on in two ways: a session that prints and exits only goes on with a prompt, so it gets
//! [`RESUME_PROMPT`]; one in a terminal has a way of its own, whose text we set to the same words.

mod repair;
mod show;

use std::collections::BTreeMap;

use protocol::shim::RESUME_PROMPT;
use protocol::{Outcome, paths};
use serde_json::{Value, json};

use crate::args::{Args, Takes};
use crate::turn::Turn;
use crate::{
    CallResult, Dialect, Driver, Ended, Error, Phase, Plan, PlanFile, Program, Repair, Start,
    ToolUse, TranscriptAt, Write, files, shell,
};

const NAME: &str = "claude";
/// The version that this driver was tested with.
pub(crate) const VERSION: &str = "2.1.332";
/// Stands for the key, which the gateway has. Claude Code asks about a key that it does not know, so it is told.
const DUMMY_KEY: &str = "durable-dummy";

const RESUME: &[&str] = &["-r", "--resume"];
const CONTINUE: &[&str] = &["-c", "--continue"];
const SESSION_ID: &[&str] = &["--session-id"];
const FORK: &[&str] = &["--fork-session"];
const SETTINGS: &[&str] = &["--settings"];
const CHOOSES_SESSION: &[&str] = &[
    "-r",
    "--resume",
    "-c",
    "--continue",
    "--session-id",
    "--fork-session",
    "--settings",
];

/// What chooses a session that was there before, or its name.
const OLD_SESSION: &[&str] = &[
    "-r",
    "--resume",
    "-c",
    "--continue",
    "--session-id",
    "--fork-session",
    "--from-pr",
];
/// What it keeps of conversations below `~/.claude`. The directory of a project also holds its memory, which stays.
const CONVERSATIONS: &[&str] = &[
    "projects/*/*.jsonl",
    "projects/*/sessions-index.json",
    "projects/*/????????-????-????-????-????????????",
    "history.jsonl",
    "file-history/*",
    "paste-cache/*",
    "plans/*",
    "session-env/*",
    "sessions/*",
    "tasks/*",
    "todos/*",
];

const REFUSED: &[(&[&str], &str)] = &[
    (
        &["--bare", "--safe-mode"],
        "it turns off the hook by which commands get their ids",
    ),
    (
        &["--no-session-persistence"],
        "without a transcript the session cannot be resumed",
    ),
    (
        &[
            "--bg",
            "--background",
            "--cloud",
            "--teleport",
            "--desktop",
            "--remote-control",
        ],
        "it moves the session out of this sandbox's sight",
    ),
    (
        &["-w", "--worktree", "--tmux"],
        "it moves the session to another directory; start it there with --dir",
    ),
];

const SUBCOMMANDS: &[&str] = &[
    "agents",
    "attach",
    "auth",
    "auto-mode",
    "doctor",
    "gateway",
    "import",
    "install",
    "logs",
    "mcp",
    "plugin",
    "plugins",
    "purge",
    "respawn",
    "rm",
    "setup-token",
    "stop",
    "kill",
    "ultrareview",
    "update",
    "upgrade",
];

/// The driver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Claude;

impl Driver for Claude {
    fn name(&self) -> &'static str {
        NAME
    }

    fn default_version(&self) -> &'static str {
        VERSION
    }

    fn start(&self, start: &Start) -> Result<Plan, Error> {
        let args = parse(start);
        check(start, &args)?;
        if !is_session(&args) {
            return Ok(plan(start, &args, start.args.clone(), Vec::new()));
        }
        let mut words = match session(start, &args) {
            Session::New(id) => vec!["--session-id".to_owned(), id],
            Session::Old(_) | Session::Latest => Vec::new(),
        };
        words.extend(["--settings".to_owned(), settings_path(start)]);
        words.extend(args.words_without(SETTINGS));
        // After `--`, so that an option which takes many values leaves it alone.
        if !args.rest.is_empty() {
            words.push("--".to_owned());
            words.extend(args.rest.iter().cloned());
        }
        let files = our_files(start, &args)?;
        Ok(plan(start, &args, words, files))
    }

    fn resume(&self, start: &Start, phase: Phase) -> Result<Plan, Error> {
        let args = parse(start);
        if phase == Phase::Empty || !is_session(&args) {
            return self.start(start);
        }
        check(start, &args)?;
        let mut words = match session(start, &args) {
            Session::New(id) | Session::Old(id) => vec!["--resume".to_owned(), id],
            Session::Latest => vec!["--continue".to_owned()],
        };
        words.extend(["--settings".to_owned(), settings_path(start)]);
        words.extend(args.words_without(CHOOSES_SESSION));
        let mut env = BTreeMap::new();
        if headless(start, &args) {
            words.extend(["--".to_owned(), RESUME_PROMPT.to_owned()]);
        } else if phase == Phase::Interrupted {
            // The turn goes on by itself, and the words are hidden from the user.
            env.insert(
                "CLAUDE_CODE_RESUME_INTERRUPTED_TURN".to_owned(),
                "1".to_owned(),
            );
            env.insert(
                "CLAUDE_CODE_RESUME_PROMPT".to_owned(),
                RESUME_PROMPT.to_owned(),
            );
        }
        let mut plan = plan(start, &args, words, our_files(start, &args)?);
        plan.env.extend(env);
        plan.stdin = start.tty;
        Ok(plan)
    }

    fn transcript(&self, start: &Start) -> Option<TranscriptAt> {
        let args = parse(start);
        is_session(&args).then(|| TranscriptAt {
            dir: project_dir(start),
            suffix: match session(start, &args) {
                Session::New(id) | Session::Old(id) => format!("{id}.jsonl"),
                Session::Latest => ".jsonl".to_owned(),
            },
        })
    }

    fn repair(
        &self,
        start: &Start,
        transcript: &[u8],
        results: &dyn Fn(&ToolUse) -> CallResult,
    ) -> Repair {
        let args = parse(start);
        let has_past = args.has(RESUME) || args.has(CONTINUE);
        let turn = Turn::new(headless(start, &args), &args, has_past);
        let mut repair = repair::repair(transcript, &project_dir(start), &start.cwd, turn, results);
        // A copy that has not begun is made again, for which its id must be free.
        if repair.phase == Phase::Empty && matches!(session(start, &args), Session::New(_)) {
            repair.bytes.clear();
        }
        repair
    }

    fn ended(&self, start: &Start, outcome: &Outcome) -> Ended {
        crate::driver::ended(is_session(&parse(start)), outcome)
    }

    fn afresh(&self, start: &Start, note: &str) -> Vec<String> {
        let mut words = parse(start).words_without(OLD_SESSION);
        words.extend(["--".to_owned(), crate::words::literal(note)]);
        words
    }

    fn conversations(&self, start: &Start) -> Vec<String> {
        let of_claude = |what| format!("{}/.claude/{what}", start.home);
        CONVERSATIONS.iter().map(of_claude).collect()
    }

    fn last_input(&self, start: &Start, transcript: Option<&[u8]>) -> Option<String> {
        let given = parse(start).rest.pop();
        transcript.and_then(repair::last_prompt).or(given)
    }
}

fn parse(start: &Start) -> Args {
    Args::parse(&start.args, |name| {
        Some(match name {
            "--agent"
            | "--agents"
            | "--append-system-prompt"
            | "--append-system-prompt-file"
            | "--autocompact"
            | "--debug-file"
            | "--effort"
            | "--environment"
            | "--fallback-model"
            | "--input-format"
            | "--json-schema"
            | "--max-budget-usd"
            | "--max-turns"
            | "--model"
            | "-n"
            | "--name"
            | "--output-format"
            | "--permission-mode"
            | "--permission-prompt-tool"
            | "--permission-prompts"
            | "--plugin-dir"
            | "--plugin-url"
            | "--session-id"
            | "--setting-sources"
            | "--settings"
            | "--system-prompt"
            | "--system-prompt-file"
            | "--system-prompt-snapshot"
            | "--remote-control-session-name-prefix" => Takes::One,
            "-r"
            | "--resume"
            | "-d"
            | "--debug"
            | "--from-pr"
            | "--prompt-suggestions"
            | "-w"
            | "--worktree"
            | "--cloud"
            | "--teleport"
            | "--remote-control" => Takes::Maybe,
            "--add-dir" | "--allowedTools" | "--allowed-tools" | "--betas"
            | "--disallowedTools" | "--disallowed-tools" | "--file" | "--mcp-config"
            | "--tools" => Takes::Many,
            _ => return None,
        })
    })
}

/// Refuses what would lose commands or the session.
fn check(start: &Start, args: &Args) -> Result<(), Error> {
    let refuse = |arg: &str, why| Error::Argument {
        harness: NAME,
        arg: arg.to_owned(),
        why,
    };
    if start.dialect != Dialect::Anthropic {
        return Err(Error::Model {
            harness: NAME,
            why: "it speaks Anthropic Messages only; give the URL of an endpoint that does, too",
        });
    }
    for (names, why) in REFUSED {
        if let Some(opt) = args.get(names) {
            return Err(refuse(&opt.name, why));
        }
    }
    if args.value(&["--input-format"]) == Some("stream-json") {
        return Err(refuse(
            "--input-format stream-json",
            "a conversation over stdin cannot be resumed; give the prompt as an argument",
        ));
    }
    if let Some(word) = args
        .rest
        .first()
        .filter(|w| SUBCOMMANDS.contains(&w.as_str()))
    {
        return Err(refuse(
            word,
            "only sessions are run; use `durable exec` for other commands of it",
        ));
    }
    Ok(())
}

/// Whether the arguments start a session at all.
fn is_session(args: &Args) -> bool {
    !args.has(&["-h", "--help", "-v", "--version"])
}

/// Whether it answers one prompt and exits.
fn headless(start: &Start, args: &Args) -> bool {
    !start.tty || args.has(&["-p", "--print"])
}

/// Which session the arguments mean.
enum Session {
    /// One to be made under this id.
    New(String),
    /// One that exists under this id.
    Old(String),
    /// The last one in this directory, or one that the user will choose.
    Latest,
}

fn session(start: &Start, args: &Args) -> Session {
    let ours = || {
        let given = args.value(SESSION_ID);
        given.unwrap_or(start.session.as_str()).to_owned()
    };
    if args.has(FORK) && (args.has(RESUME) || args.has(CONTINUE)) {
        return Session::New(ours());
    }
    match args.get(RESUME) {
        Some(opt) => match opt.values.first().filter(|id| is_uuid(id)) {
            Some(id) => Session::Old(id.clone()),
            None => Session::Latest,
        },
        None if args.has(CONTINUE) => Session::Latest,
        None => Session::New(ours()),
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// Where it keeps the transcripts of sessions in this directory.
fn project_dir(start: &Start) -> String {
    const LONGEST: usize = 200;
    let units = || start.cwd.encode_utf16();
    let plain = |unit| match u8::try_from(unit) {
        Ok(b) if b.is_ascii_alphanumeric() => char::from(b),
        _ => '-',
    };
    let mut name: String = units().map(plain).collect();
    if name.len() > LONGEST {
        let hash = units().fold(0_i32, |h, c| {
            h.wrapping_mul(31)
                .wrapping_add(i32::from(c.cast_signed()) & 0xFFFF)
        });
        name.truncate(LONGEST);
        name.push('-');
        name.push_str(&base36(hash.unsigned_abs()));
    }
    format!("{}/.claude/projects/{name}", start.home)
}

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.extend(char::from_digit(number % 36, 36));
        number /= 36;
    }
    digits.iter().rev().collect()
}

fn settings_path(start: &Start) -> String {
    format!("{}/{}/claude-settings.json", start.home, files::OURS)
}

fn bash_env_path(start: &Start) -> String {
    format!("{}/{}/bash_env", start.home, files::OURS)
}

/// The settings by which commands come to us: the hook, and leave for the marker line that it adds. What the command itself
/// may do is for the user's own rules to say.
fn settings() -> Value {
    json!({
        "permissions": { "allow": ["Bash(: durable-op:*)"] },
        "hooks": { "PreToolUse": [{
            "matcher": "Bash",
            "hooks": [{ "type": "command", "command": format!("{} __hook claude", paths::BIN) }]
        }] }
    })
}

fn our_files(start: &Start, args: &Args) -> Result<Vec<PlanFile>, Error> {
    let mut settings = settings();
    // Of several `--settings` it reads the last only, so the user's must be part of ours.
    if let Some(theirs) = args.value(SETTINGS) {
        let Ok(mut both @ Value::Object(_)) = serde_json::from_str(theirs) else {
            return Err(Error::Argument {
                harness: NAME,
                arg: "--settings FILE".to_owned(),
                why: "one settings file is ours; give JSON, or put yours into ~/.claude/settings.json",
            });
        };
        files::lay_over(&mut both, settings);
        settings = both;
    }
    let state = json!({
        "hasCompletedOnboarding": true,
        "customApiKeyResponses": { "approved": [DUMMY_KEY], "rejected": [] },
    });
    Ok(vec![
        PlanFile::json(format!("{}/.claude.json", start.home), Write::Merge, &state),
        PlanFile::json(settings_path(start), Write::Replace, &settings),
        PlanFile::text(bash_env_path(start), shell::BASH_ENV),
    ])
}

fn plan(start: &Start, args: &Args, words: Vec<String>, files: Vec<PlanFile>) -> Plan {
    let program = match &start.program {
        Program::Layer { version } => format!("{}/{NAME}/{version}/{NAME}", paths::HARNESS),
        Program::Path => NAME.to_owned(),
    };
    let url = format!("http://127.0.0.1:{}", paths::MODEL_PORT);
    // `IS_SANDBOX` lets root use --dangerously-skip-permissions. The shell is pinned to the one that operations run in.
    let mut env: BTreeMap<String, String> = [
        ("HOME", start.home.as_str()),
        ("ANTHROPIC_BASE_URL", &url),
        ("ANTHROPIC_API_KEY", DUMMY_KEY),
        ("CLAUDE_CODE_SHELL_PREFIX", &format!("{} -c", paths::SHELL)),
        (shell::BASH_ENV_AT, &bash_env_path(start)),
        ("CLAUDE_CODE_SHELL", "/bin/bash"),
        ("SHELL", "/bin/bash"),
        ("IS_SANDBOX", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_TELEMETRY", "1"),
        ("DISABLE_ERROR_REPORTING", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    if let Some(model) = &start.model {
        env.insert("ANTHROPIC_MODEL".to_owned(), model.clone());
        env.insert("ANTHROPIC_SMALL_FAST_MODEL".to_owned(), model.clone());
    }
    Plan {
        argv: std::iter::once(program).chain(words).collect(),
        env,
        files,
        stdin: start.tty || (is_session(args) && args.rest.is_empty()),
    }
}
