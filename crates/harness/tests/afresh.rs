//! A session that begins with a note and knows nothing of the ones before.

use harness::driver;
use protocol::shim::RESUME_PROMPT;

use crate::{SESSION, fixture, start};

#[test]
fn options_stay_and_what_chooses_a_session_goes_with_the_prompt() {
    let old = "22222222-2222-4222-8222-222222222222";
    for (harness, args, want) in [
        (
            "pi",
            &["-p", "--session", "x", "--model", "m", "@file", "do it"][..],
            &["-p", "--model", "m"][..],
        ),
        ("pi", &["-c", "--session-dir", "d"], &["--session-dir", "d"]),
        (
            "claude",
            &["-p", "--resume", old, "--allowedTools", "A", "B", "--", "x"],
            &["-p", "--allowedTools", "A", "B"],
        ),
        (
            "claude",
            &["--session-id", old, "--settings", "{}", "x"],
            &["--settings", "{}"],
        ),
        ("claude", &["-c", "--fork-session"], &[]),
    ] {
        let driver = driver(harness).unwrap();
        let words = driver.afresh(&start(args, false), " go on\nwith it\n");
        let want = [want, &["--", "go on\nwith it"]].concat();
        assert_eq!(words, want, "{harness} {args:?}");
        // It is one that can be started, under the id that it will have.
        let mut fresh = start(&[], false);
        fresh.args = words;
        let at = driver.transcript(&fresh).unwrap();
        assert!(at.suffix.contains(SESSION), "{at:?}");
        assert!(driver.start(&fresh).is_ok());
        assert_eq!(driver.last_input(&fresh, None).unwrap(), "go on\nwith it");
    }
}

#[test]
fn a_note_is_words_whatever_it_begins_with() {
    for note in [
        "/compact now",
        "@secret is in it",
        "!ls -l",
        "-p is an option",
        "update",
    ] {
        for harness in ["pi", "claude"] {
            let driver = driver(harness).unwrap();
            let words = driver.afresh(&start(&["-p"], false), note);
            let said = words.last().unwrap();
            assert_eq!(*said, format!("Hand-off note:\n\n{note}"), "{harness}");
            let mut fresh = start(&[], false);
            fresh.args = words;
            assert!(driver.start(&fresh).is_ok(), "{harness}: {note}");
        }
    }
}

#[test]
fn the_last_input_is_the_transcripts_or_the_arguments() {
    for (harness, args) in [
        ("pi", &["-p", "@a", "asked", "@b"][..]),
        ("claude", &["-p", "asked"]),
    ] {
        let driver = driver(harness).unwrap();
        let s = start(args, false);
        assert_eq!(driver.last_input(&s, None).unwrap(), "asked");
        assert_eq!(driver.last_input(&s, Some(b"torn")).unwrap(), "asked");
        for name in ["dangling", "done", "prompt", "resumed"] {
            let said = driver.last_input(&s, Some(&fixture(&format!("{harness}-{name}"))));
            let said = said.unwrap();
            assert!(said.starts_with("RUN:") && said != RESUME_PROMPT, "{said}");
        }
        assert_eq!(driver.last_input(&start(&["-p"], false), None), None);
    }
}

#[test]
fn conversations_are_known_by_where_they_are_and_nothing_else_is() {
    let pi = driver("pi").unwrap();
    let old = pi.conversations(&start(&["--session-dir", "mine", "x"], false));
    assert_eq!(
        old,
        [
            "/home/agent/.pi/agent/sessions/*",
            "/home/agent/.pi/agent/*.jsonl",
            "/workspace/mine/????-??-??T??-??-??-???Z_*.jsonl",
        ]
    );
    let old = pi.conversations(&start(&["--session", "a/b.jsonl"], false));
    assert!(old.contains(&"/workspace/a/b.jsonl".to_owned()), "{old:?}");
    let claude = driver("claude")
        .unwrap()
        .conversations(&start(&["x"], false));
    for kept in [
        "CLAUDE.md",
        "settings.json",
        "projects/*/memory",
        "plugins",
        "agents",
        "commands",
        "skills",
    ] {
        let kept = format!("/home/agent/.claude/{kept}");
        assert!(!claude.contains(&kept), "{kept}");
    }
    assert!(claude.contains(&"/home/agent/.claude/projects/*/*.jsonl".to_owned()));
}
