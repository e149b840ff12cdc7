//! Each point at which a harness was killed, and what its transcript is then.

use harness::{CallResult, Phase, Repair, ToolUse, driver};
use protocol::Outcome;
use protocol::shim::RESUME_PROMPT;
use serde_json::{Value, json};

use crate::{fixture, lines, start};

/// The true results of the two commands in the fixtures.
fn truth(call: &ToolUse) -> CallResult {
    let (exit_code, output) = match call.id.rsplit('_').next().unwrap() {
        "0" => (0, "one\ntwo\n"),
        "1" => (3, "cat: notes: No such file or directory\n0\n"),
        other => panic!("no call {other}"),
    };
    CallResult::Settled {
        outcome: Outcome::Exited { exit_code },
        output: output.as_bytes().to_vec(),
    }
}

fn repair(harness: &str, tty: bool, transcript: &[u8]) -> Repair {
    let driver = driver(harness).unwrap();
    driver.repair(&start(&["go"], tty), transcript, &truth)
}

fn added(repair: &Repair, before: &[u8]) -> Vec<Value> {
    assert!(repair.bytes.starts_with(before));
    lines(&repair.bytes[before.len()..])
}

#[test]
fn claude_gets_what_it_would_have_written_itself() {
    let done = lines(&fixture("claude-done"));
    let own: Vec<&Value> = done
        .iter()
        .filter(|r| r.get("toolUseResult").is_some())
        .collect();
    for (name, missing) in [("claude-dangling", 0), ("claude-one-answered", 1)] {
        let before = fixture(name);
        for tty in [false, true] {
            let repair = repair("claude", tty, &before);
            assert_eq!(repair.phase, Phase::Interrupted);
            let added = added(&repair, &before);
            assert_eq!(added.len(), 2 - missing);
            let old = lines(&before);
            for (record, own) in added.iter().zip(&own[missing..]) {
                for at in [
                    "/message/content/0/content",
                    "/message/content/0/is_error",
                    "/toolUseResult/stdout",
                    "/type",
                ] {
                    assert_eq!(record.pointer(at), own.pointer(at), "{name} {at}");
                }
                // Below the very block that asked for it.
                let id = &record["message"]["content"][0]["tool_use_id"];
                let asked = old
                    .iter()
                    .find(|r| &r["message"]["content"][0]["id"] == id)
                    .unwrap();
                assert_eq!(record["parentUuid"], asked["uuid"]);
                assert_eq!(record["sourceToolAssistantUUID"], asked["uuid"]);
                for key in [
                    "sessionId",
                    "cwd",
                    "version",
                    "userType",
                    "entrypoint",
                    "gitBranch",
                    "isSidechain",
                ] {
                    assert_eq!(record[key], asked[key], "{key}");
                }
                assert!(record["promptId"].is_string());
            }
        }
    }
}

#[test]
fn pi_gets_what_it_would_have_written_itself() {
    let done = fixture("pi-done");
    let own = lines(&done);
    let results: Vec<&Value> = own
        .iter()
        .filter(|r| r["message"]["role"] == "toolResult")
        .collect();
    let first = done
        .split_inclusive(|b| *b == b'\n')
        .take(7)
        .map(<[u8]>::len)
        .sum();
    for (before, missing) in [(fixture("pi-dangling"), 0), (done[..first].to_vec(), 1)] {
        let repair = repair("pi", false, &before);
        assert_eq!(repair.phase, Phase::Interrupted);
        let added = added(&repair, &before);
        assert_eq!(added.len(), 2 - missing);
        let mut parent = lines(&before).last().unwrap()["id"].clone();
        for (record, own) in added.iter().zip(&results[missing..]) {
            for at in [
                "/type",
                "/message/role",
                "/message/toolName",
                "/message/content",
                "/message/isError",
            ] {
                assert_eq!(record.pointer(at), own.pointer(at), "{at}");
            }
            assert_eq!(record["parentId"], parent);
            parent = record["id"].clone();
        }
    }
}

#[test]
fn a_session_that_prints_and_exits_is_taken_back_to_before_its_last_answer() {
    for harness in ["claude", "pi"] {
        let done = fixture(&format!("{harness}-done"));
        let told = repair(harness, true, &done);
        assert_eq!((told.phase, &told.bytes), (Phase::Settled, &done));
        let told = repair(harness, false, &done);
        assert_eq!(told.phase, Phase::Interrupted);
        assert!(done.starts_with(&told.bytes) && told.repaired.is_empty());
        assert!(!String::from_utf8_lossy(&told.bytes).contains("All done."));
        assert!(String::from_utf8_lossy(&told.bytes).contains("No such file or directory"));
    }
}

#[test]
fn a_turn_from_before_is_not_taken_for_the_one_that_was_lost() {
    for (harness, go_on) in [("claude", "--continue"), ("pi", "--continue")] {
        let driver = driver(harness).unwrap();
        let done = fixture(&format!("{harness}-done"));
        let phase = |prompt: &str, tty| {
            let repair = driver.repair(&start(&[go_on, prompt], tty), &done, &truth);
            (repair.phase, repair.bytes == done)
        };
        for tty in [false, true] {
            assert_eq!(phase("and now something else", tty), (Phase::Empty, true));
        }
        assert_eq!(
            phase("echo one; echo two >&2", false),
            (Phase::Interrupted, false)
        );
        assert_eq!(
            phase("echo one; echo two >&2", true),
            (Phase::Settled, true)
        );
    }
}

#[test]
fn a_prompt_without_an_answer_is_left_as_it_is() {
    for harness in ["claude", "pi"] {
        let prompt = fixture(&format!("{harness}-prompt"));
        let told = repair(harness, false, &prompt);
        assert_eq!((told.phase, told.bytes), (Phase::Interrupted, prompt));
    }
}

#[test]
fn a_transcript_without_a_prompt_is_no_session_yet() {
    let whole = fixture("claude-prompt");
    let notes = whole.split_inclusive(|b| *b == b'\n').next().unwrap();
    for bytes in [&b""[..], notes, &whole[..100]] {
        let told = repair("claude", false, bytes);
        // Claude Code refuses the id of a file that is there, so it must go.
        assert_eq!((told.phase, told.bytes.len()), (Phase::Empty, 0));
    }
    let whole = fixture("pi-prompt");
    let header = whole.split_inclusive(|b| *b == b'\n').next().unwrap();
    let told = repair("pi", false, header);
    assert_eq!((told.phase, told.bytes.as_slice()), (Phase::Empty, header));
    let told = repair("pi", false, &header[..20]);
    assert_eq!((told.phase, told.bytes.len()), (Phase::Empty, 0));
}

#[test]
fn a_resume_that_led_nowhere_leaves_no_trace() {
    for (name, tty) in [
        ("claude-resumed", false),
        ("claude-resumed-tty", true),
        ("pi-resumed", false),
    ] {
        let harness = name.split('-').next().unwrap();
        let whole = fixture(name);
        let text = std::str::from_utf8(&whole).unwrap();
        // Killed again before the answer to the resume came.
        let says = |l: &&str| l.contains(RESUME_PROMPT) && !l.contains("queue-operation");
        let resumed = text.lines().position(|l| says(&l)).unwrap();
        let killed: String = text.split_inclusive('\n').take(resumed + 1).collect();
        let told = repair(harness, tty, killed.as_bytes());
        assert_eq!(told.phase, Phase::Interrupted);
        let left = String::from_utf8(told.bytes).unwrap();
        assert!(killed.starts_with(&left));
        assert!(
            !left
                .lines()
                .any(|l| says(&l) || l.contains("No response requested."))
        );
        assert!(left.contains("tool_result") || left.contains("toolResult"));
        // A resume that was answered is history.
        let told = repair(harness, true, &whole);
        assert_eq!((told.phase, told.bytes), (Phase::Settled, whole));
    }
}

#[test]
fn a_turn_that_the_user_stopped_is_not_gone_on_with() {
    let mut stopped = String::from_utf8(fixture("claude-dangling")).unwrap();
    let results: String = String::from_utf8(fixture("claude-done")).unwrap();
    let results = results.lines().filter(|l| l.contains("\"toolUseResult\""));
    stopped.extend(results.map(|l| format!("{l}\n")));
    assert_eq!(
        repair("claude", true, stopped.as_bytes()).phase,
        Phase::Interrupted
    );
    let stop = json!({"type": "user", "uuid": "u", "message": {"role": "user", "content": [
        {"type": "text", "text": "[Request interrupted by user for tool use]"}]}});
    let stopped = format!("{stopped}{stop}\n");
    assert_eq!(
        repair("claude", true, stopped.as_bytes()).phase,
        Phase::Settled
    );

    let done = String::from_utf8(fixture("pi-done")).unwrap();
    let stopped = done.replace(r#""stopReason":"stop""#, r#""stopReason":"aborted""#);
    assert_ne!(done, stopped);
    assert_eq!(repair("pi", true, stopped.as_bytes()).phase, Phase::Settled);
}

#[test]
fn what_is_not_known_is_told_in_plain_words() {
    let long = "x".repeat(100_000).into_bytes();
    for harness in ["claude", "pi"] {
        let driver = driver(harness).unwrap();
        let dangling = fixture(&format!("{harness}-dangling"));
        let tell = |result: CallResult| {
            let repair = driver.repair(&start(&["go"], false), &dangling, &|_| result.clone());
            assert_eq!(repair.repaired.len(), 2);
            let record = lines(&repair.bytes).pop().unwrap();
            let block = &record["message"]["content"][0];
            let (text, error) = match harness {
                "claude" => (&block["content"], &block["is_error"]),
                _ => (&block["text"], &record["message"]["isError"]),
            };
            (text.as_str().unwrap().to_owned(), error.as_bool().unwrap())
        };
        let (text, error) = tell(CallResult::Lost {
            output: b"half\0\xff".to_vec(),
        });
        assert!(
            error
                && text.contains("unknown")
                && text.contains("may or may not")
                && text.ends_with("half\u{FFFD}\u{FFFD}")
        );
        let (text, error) = tell(CallResult::Lost { output: Vec::new() });
        assert!(error && text.ends_with("It had written no output."));
        let (text, error) = tell(CallResult::NotStarted);
        assert!(error && text.contains("was not started"));
        let (text, error) = tell(CallResult::Running {
            output: b"on".to_vec(),
        });
        assert!(!error && text.contains("still running") && text.ends_with("on"));
        let (text, error) = tell(CallResult::NotOurs);
        assert!(error && text.contains("may or may not"));
        let (text, error) = tell(CallResult::Settled {
            outcome: Outcome::Signaled { signal: 9 },
            output: Vec::new(),
        });
        assert!(error && text.contains("code 137"));
        let (text, _) = tell(CallResult::Settled {
            outcome: Outcome::Lost,
            output: long.clone(),
        });
        assert!(text.contains("unknown") && text.len() < 60_000);
        let (text, _) = tell(CallResult::Settled {
            outcome: Outcome::Cancelled,
            output: long.clone(),
        });
        assert!(text.contains("cancelled") || text.contains("aborted"));
    }
}

#[test]
fn a_tool_inside_the_harness_is_never_said_not_to_have_started() {
    for (harness, shell, edit, read) in [
        (
            "claude",
            r#""name":"Bash""#,
            r#""name":"Edit""#,
            r#""name":"Read""#,
        ),
        (
            "pi",
            r#""name":"bash""#,
            r#""name":"edit""#,
            r#""name":"read""#,
        ),
    ] {
        let dangling = String::from_utf8(fixture(&format!("{harness}-dangling"))).unwrap();
        for (tool, words) in [(edit, "may or may not"), (read, "changes nothing")] {
            let old = dangling.replace(shell, tool);
            let asked = |call: &ToolUse| panic!("asked for {}", call.name);
            let repair =
                driver(harness)
                    .unwrap()
                    .repair(&start(&["go"], true), old.as_bytes(), &asked);
            let added = String::from_utf8(repair.bytes[old.len()..].to_vec()).unwrap();
            assert_eq!(
                (repair.repaired.len(), added.matches(words).count() >= 2),
                (2, true),
                "{added}"
            );
        }
    }
}

#[test]
fn claude_is_told_that_the_next_command_starts_in_the_first_directory() {
    let moved = String::from_utf8(fixture("claude-dangling"))
        .unwrap()
        .replace("echo one;", "cd src &&");
    let repair = repair("claude", false, moved.as_bytes());
    let texts: Vec<Value> = added(&repair, moved.as_bytes())
        .iter()
        .map(|r| r["message"]["content"][0]["content"].clone())
        .collect();
    assert_eq!(
        texts[0],
        json!("one\ntwo\nShell cwd was reset to /workspace")
    );
    assert!(!texts[1].as_str().unwrap().contains("Shell cwd"));
}
