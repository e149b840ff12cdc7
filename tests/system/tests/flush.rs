//! Forks that keep the files and begin a fresh session with a note, with the real Pi and a scripted model.

use std::time::Duration;

use serde_json::{Value, json};
use system_tests::model::Model;
use system_tests::{Res, World, harnesses, process, trouble};

use crate::support::until;

const KEY: &str = "sk-flush-0123456789";
/// A session of two steps takes some seconds, more beside other work.
const SESSION: Duration = Duration::from_secs(240);
/// Settings and memory of a user's, beside what Pi keeps of conversations.
const OF_THE_USER: &str = r#"mkdir -p ~/.pi/agent && echo '{"theme":"light"}' > ~/.pi/agent/settings.json && echo remember > ~/.pi/agent/notes.md"#;
const SESSIONS: &str = "find /root/.pi/agent/sessions -name '*.jsonl'";

fn world(label: &str) -> Res<World> {
    let world = World::new(label)?.with_env("FLUSH_KEY", KEY);
    harnesses::link("pi", &world.data().join("harness"))?;
    world.create("ada", &["--sandbox-env", "HOME=/root"])?;
    world.sh("ada", OF_THE_USER)?.ok()?;
    Ok(world)
}

/// A script of one command and a last word.
fn one_command(command: &str, last: &str) -> Value {
    json!([{ "text": "I am going to run it.", "tools": [{ "command": command }] }, { "text": last }])
}

/// The arguments of a session in `ada` that works on "build it".
fn session(url: &str) -> Vec<&str> {
    let mut args = vec!["run", "--name", "ada", "--model-url", url];
    args.extend(["--model", "scripted", "--model-key-env", "FLUSH_KEY"]);
    args.extend(["--", "pi", "-p", "build it"]);
    args
}

fn events(world: &World, name: &str) -> Res<Vec<Value>> {
    let log = world.must(&["log", name, "--json"])?.out();
    log.lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

/// Waits until the only session of a fork has ended, and returns it.
fn ended(world: &World, name: &str) -> Res<Value> {
    let mut api = world.api()?;
    let list = api.get(&format!("/v1/sandboxes/{name}/sessions"))?;
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    let id = list[0]["id"].as_str().unwrap_or_default().to_owned();
    let begun = std::time::Instant::now();
    let mut attempt = 0;
    loop {
        // Answered when something happens.
        let url = format!("/v1/sandboxes/{name}/sessions/{id}?after={attempt}");
        let view = api.get(&url)?;
        if view["ended"] == true {
            return Ok(view);
        }
        attempt = view["attempt"].as_u64().unwrap_or_default();
        if begun.elapsed() > SESSION {
            return Err(trouble(format!("{name}: {view}\n{}", world.daemon_log())));
        }
    }
}

/// What a model was asked, besides titles and the like.
fn asked(model: &Model) -> Res<Vec<Value>> {
    let log = model.log()?;
    Ok(log
        .into_iter()
        .filter(|entry| entry["side"] == false)
        .collect())
}

#[test]
fn a_fresh_session_knows_the_files_and_the_note_and_nothing_else() -> Res<()> {
    let world = world("flush")?;
    let gate = world.effects().gate("flush")?;
    let command = format!(
        "mkdir -p build && echo built > build/out && echo begun > {} && read -r x < {} && echo went-on",
        world.effects().inside(),
        gate.inside()
    );
    let model = Model::start(&one_command(&command, "All built."))?;
    let running = world.start(&session(&model.url()))?;
    if !world.effects().wait("begun", 1, Duration::from_secs(90)) {
        return Err(trouble(running.words()));
    }
    // In the middle of a command of the source's session.
    let other = Model::start(&one_command("cat build/out; hostname", "I have seen it."))?;
    let note = "Look at build/out.\nThen say what is in it.";
    std::fs::write(world.root().join("note.md"), format!("{note}\n"))?;
    let mut args = vec![
        "fork",
        "ada",
        "--name",
        "fresh",
        "--flush",
        "--handoff",
        "note.md",
    ];
    let url = other.url();
    args.extend(["--model-url", &url, "--model-key-env", "FLUSH_KEY"]);
    let forked = world.must(&args)?;
    assert_eq!(forked.out(), "fresh\n");
    assert!(
        forked.err().contains("durable attach fresh"),
        "{}",
        forked.err()
    );
    let view = ended(&world, "fresh")?;
    assert!(view["error"].is_null(), "{view}");
    assert_eq!(view["args"], json!(["-p", "--", note]));

    let talk = asked(&other)?;
    assert_eq!(talk.len(), 2, "{talk:?}");
    for entry in &talk {
        assert_eq!(
            entry["user_texts"],
            json!([note]),
            "the only thing it was told"
        );
        assert_eq!(
            (&entry["key"], &entry["model"]),
            (&json!(KEY), &json!("scripted"))
        );
    }
    assert_eq!(talk[0]["tool_results"], json!([]));
    let result = talk[1]["tool_results"][0]["text"]
        .as_str()
        .unwrap_or_default();
    assert!(result.starts_with("built\nfresh"), "{result:?}");

    // One append made the fork and the session; the conversation before is gone, what is the user's stays.
    let events = events(&world, "fresh")?;
    assert_eq!(events[0]["kind"], "forked");
    assert_eq!(events[1]["kind"], "session_started");
    assert_eq!(events[1]["args"][2], note);
    assert_eq!(events[0]["at_ms"], events[1]["at_ms"]);
    let transcripts = world.sh("fresh", SESSIONS)?.ok()?.out();
    let id = view["id"].as_str().unwrap_or_default();
    assert!(
        transcripts.lines().count() == 1 && transcripts.contains(id),
        "{transcripts}"
    );
    let kept = world.sh(
        "fresh",
        "cat ~/.pi/agent/settings.json ~/.pi/agent/notes.md",
    )?;
    assert!(
        kept.out().contains("light") && kept.out().ends_with("remember\n"),
        "{}",
        kept.out()
    );
    let run = view["runs"][0].as_str().unwrap_or_default();
    let said = world.must(&["read", "fresh", run])?.out();
    assert!(said.contains("I have seen it."), "{said}");

    // The source has noticed nothing.
    gate.open()?;
    let done = running.finish_within(SESSION)?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    assert!(done.out().contains("All built."), "{}", done.out());
    let talk = asked(&model)?;
    assert_eq!(talk.len(), 2, "{talk:?}");
    let result = talk[1]["tool_results"][0]["text"]
        .as_str()
        .unwrap_or_default();
    assert!(result.contains("went-on"), "{result:?}");
    world.end_clean()
}

#[test]
fn without_a_note_the_journal_tells_and_each_fork_has_a_session() -> Res<()> {
    let world = world("flush-count")?;
    let command = "mkdir -p build && echo built > build/out; (exit 3)";
    let model = Model::start(&one_command(command, "All built."))?;
    let done = world
        .start(&session(&model.url()))?
        .finish_within(SESSION)?;
    assert_eq!(done.code, Some(0), "{}", done.err());
    world.must(&["checkpoint", "ada", "--label", "then"])?;
    world.sh("ada", "echo later > later; rm build/out")?.ok()?;
    let asked_before = asked(&model)?.len();
    let mut args = vec!["fork", "ada", "--name", "try", "--count", "2", "--flush"];
    args.extend(["--at", "then"]);
    assert_eq!(world.must(&args)?.out(), "try-1\ntry-2\n");
    for name in ["try-1", "try-2"] {
        let view = ended(&world, name)?;
        assert!(view["error"].is_null(), "{view}");
        let files = world.sh(name, "cat build/out; ls")?.ok()?.out();
        assert_eq!(files, "built\nbuild\n");
    }
    let talk = asked(&model)?;
    let fresh = &talk[asked_before..];
    // The endpoint and its key are the source's; the conversation is not, or the gateway would have known it.
    assert_eq!(fresh.len(), 4, "{fresh:?}");
    for entry in fresh {
        assert_eq!(entry["key"], KEY);
        let told = entry["user_texts"].as_array().cloned().unwrap_or_default();
        assert_eq!(told.len(), 1, "{told:?}");
        let note = told[0].as_str().unwrap_or_default();
        for fact in [
            "    build it\n",
            "added     /workspace/build/out",
            "$ mkdir -p build",
            "exited with 3",
        ] {
            assert!(note.contains(fact), "no {fact:?} in {note}");
        }
        assert!(!note.contains("later"), "it came after that place: {note}");
    }
    let sessions = [&fresh[0], &fresh[1]].map(|entry| entry["step"].clone());
    assert!(sessions.contains(&json!(0)), "{fresh:?}");
    world.end_clean()
}

#[test]
fn a_daemon_killed_between_fork_and_session_leaves_the_next_one_to_start_it_once() -> Res<()> {
    // With the fork only in the journal; with all of it there.
    for point in ["after_forked", "before_flushed_start"] {
        killed_at(point).map_err(|e| trouble(format!("{point}: {e}")))?;
    }
    Ok(())
}

fn killed_at(point: &str) -> Res<()> {
    let world = World::new("flush-kill")?
        .with_points()?
        .with_env("FLUSH_KEY", KEY);
    harnesses::link("pi", &world.data().join("harness"))?;
    world.create("ada", &[])?;
    let model = Model::start(&one_command("echo built > out", "All built."))?;
    let done = world
        .start(&session(&model.url()))?
        .finish_within(SESSION)?;
    assert_eq!(done.code, Some(0), "{}", done.err());

    let other = Model::start(&one_command("cat out", "Seen."))?;
    let url = other.url();
    std::fs::write(world.root().join("note"), "look at out")?;
    let hits = world.points()?.arm(&[point], 0);
    let mut args = vec![
        "fork",
        "ada",
        "--name",
        "fresh",
        "--flush",
        "--handoff",
        "note",
    ];
    args.extend(["--model-url", &url, "--model-key-env", "FLUSH_KEY"]);
    let client = world.start(&args)?;
    let hit = hits
        .recv_timeout(Duration::from_secs(60))
        .map_err(|_| trouble(format!("nobody came there: {}", client.words())))?;
    process::kill(world.daemon().ok_or_else(|| trouble("no daemon"))?);
    drop(hit);
    let _whatever = client.finish()?;
    assert!(other.log()?.is_empty(), "nothing was started yet");
    // The next command starts a daemon, and that the session.
    let view = ended(&world, "fresh")?;
    assert!(view["error"].is_null() && view["attempt"] == 1, "{view}");
    let talk = asked(&other)?;
    assert_eq!(talk.len(), 2, "{talk:?}");
    assert_eq!(talk[0]["user_texts"], json!(["look at out"]));
    assert_eq!(
        (&talk[0]["key"], &talk[0]["step"]),
        (&json!(KEY), &json!(0))
    );
    let events = events(&world, "fresh")?;
    let of = |kind: &str, role: &str| {
        let wanted =
            |e: &&Value| e["kind"] == kind && (role.is_empty() || e["spec"]["role"] == role);
        events.iter().filter(wanted).count()
    };
    assert_eq!(
        (of("session_started", ""), of("op_intent", "harness")),
        (1, 1)
    );
    // The key is kept for the sandbox now, and nowhere else.
    let secrets = std::fs::read_dir(world.data().join("secrets"))?;
    let names: Vec<_> = secrets
        .filter_map(Result::ok)
        .map(|e| e.file_name())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    world.end_clean()
}

#[test]
fn what_cannot_be_flushed_is_told_before_anything_is_made() -> Res<()> {
    let world = World::new("flush-refused")?;
    world.create("ada", &[])?;
    world.sh("ada", "echo 1 > f")?.ok()?;
    let root = world.root();
    for (name, content) in [
        ("empty", &b" \n"[..]),
        ("binary", b"\xff\xfe"),
        ("nul", b"a\0b"),
        ("large", &[b'x'; 65 * 1024]),
        ("good", b"go on with it"),
    ] {
        std::fs::write(root.join(name), content)?;
    }
    let before = events(&world, "ada")?.len();
    let pi = ["--", "pi", "-p"];
    for (args, why) in [
        (&["--flush"][..], "no session ever ran in sandbox `ada`"),
        (&["--flush", "--handoff", "good"], "no session ever ran"),
        (&["--flush", "--handoff", "empty"], "it is empty"),
        (&["--flush", "--handoff", "binary"], "it is no UTF-8 text"),
        (
            &["--flush", "--handoff", "large"],
            "it is larger than 65536 bytes",
        ),
        (&["--flush", "--handoff", "missing"], "missing"),
        (&["--handoff", "good"], "--flush"),
        (&["--model", "m"], "none is started without --flush"),
        (
            &["--flush", "--handoff", "nul", "--", "pi", "-p"],
            "a NUL byte",
        ),
        (
            &["--flush", "--", "pi", "-p", "do it"],
            "names a prompt or an old session",
        ),
        (
            &["--flush", "--", "pi", "--continue"],
            "names a prompt or an old session",
        ),
        (&["--flush", "--", "codex"], "no harness is called `codex`"),
        (&["--flush", "--", "claude"], "`claude` is not installed"),
        (
            &["--flush", "--", "pi", "--mode", "rpc"],
            "cannot be run with",
        ),
        (&["--flush", "--", "pi", "-p"], "name the model"),
        (
            &["--flush", "--at", "nowhere", "--", "pi", "-p"],
            "no checkpoint",
        ),
        (
            &["--flush", "--model-key-env", "HOME", pi[0], pi[1], pi[2]],
            "without a model URL",
        ),
    ] {
        let mut command = vec!["fork", "ada"];
        command.extend(args);
        let done = world.run(&command)?;
        assert_eq!(done.code, Some(125), "{args:?}: {}", done.err());
        assert!(done.err().contains(why), "{args:?}: {}", done.err());
    }
    let new = world.run(&["run", "--name", "new", "--", "claude", "-p", "hello"])?;
    assert_eq!(new.code, Some(125), "{}", new.err());
    assert!(
        new.err().contains("durable harness install claude"),
        "{}",
        new.err()
    );
    assert_eq!(
        events(&world, "ada")?.len(),
        before,
        "not even a cut was taken"
    );
    let all = world
        .json(&["ps", "--json"])
        .map(|view| view["name"].clone());
    assert_eq!(all?, "ada", "and nothing was made");
    until("no key is kept", || {
        std::fs::read_dir(world.data().join("secrets")).map_or(true, |mut dir| dir.next().is_none())
    })?;
    world.end_clean()
}
