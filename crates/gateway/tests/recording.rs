//! What is recorded, when it is shown, and when it is served again.

use std::time::Duration;

use protocol::shim::{RESUME_FILLER, RESUME_PROMPT};
use protocol::{Event, ModelOutcome};
use serde_json::json;

use crate::client::Call;
use crate::process::Process;
use crate::world::{World, answers, anthropic, relay_handle, say};

#[test]
fn the_same_request_delivered_twice_is_asked_twice() {
    let world = World::one_command();
    let daemon = world.daemon();
    let (first, connection) = world.post(&say("go")).finish_keeping().unwrap();
    let second = Call::on(connection, "POST", "/v1/messages?beta=true", &say("go"));
    let second = second.unwrap().finish().unwrap();
    let asked = world.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0]["digest"], asked[1]["digest"]);
    assert_eq!(first.digest(), asked[0]["answer"]);
    assert_eq!(second.digest(), asked[1]["answer"]);
    assert_ne!(first.body, second.body, "tool ids differ");
    daemon.settled();
}

#[test]
fn an_answer_is_journaled_as_it_was_sent() {
    let world = World::one_command();
    let daemon = world.daemon();
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(reply.status, 200);
    assert!(
        reply.head.contains("content-type: text/event-stream"),
        "{}",
        reply.head
    );
    assert!(reply.head.contains("request-id: req_"), "{}", reply.head);
    let events = daemon.ledger.events();
    let kinds: Vec<&str> = events.iter().map(Event::kind).collect();
    assert_eq!(kinds.first(), Some(&"model_requested"));
    assert_eq!(kinds.get(1), Some(&"model_responded"));
    let (output, settled) = answers(&events).pop_front().unwrap();
    assert_eq!(output, reply.body);
    let Some(Event::ModelSettled {
        outcome,
        bytes,
        tool_calls,
        ..
    }) = settled
    else {
        panic!("not settled")
    };
    assert_eq!(outcome, ModelOutcome::Complete);
    assert_eq!(bytes.0, reply.body.len() as u64);
    assert_eq!(tool_calls.len(), 1);
    assert_eq!(tool_calls[0].name, "Bash");
    let input: serde_json::Value = serde_json::from_str(&tool_calls[0].input).unwrap();
    assert_eq!(input["command"], "ls");
    assert!(reply.text().contains(&tool_calls[0].id));
    let known = daemon.gateway.inspect(|models| {
        let (_, call) = models.tool_call(&tool_calls[0].id).unwrap();
        call.clone()
    });
    assert_eq!(known, tool_calls[0]);
}

#[test]
fn a_client_that_broke_off_gets_the_whole_answer_and_the_upstream_is_asked_once() {
    let world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    drop(first);
    let mut second = world.post(&say("go"));
    second.read_until("I will look").unwrap();
    world.release();
    let reply = second.finish().unwrap();
    let asked = world.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(reply.digest(), asked[0]["answer"]);
    daemon.settled();
}

#[test]
fn an_answer_is_recorded_to_its_end_without_a_client_and_served_from_the_journal() {
    let mut world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    drop(first);
    world.release();
    let asked = world.wait("finished=1");
    daemon.settled();
    drop(daemon);
    // Neither the model server nor the relay or its file is there any more.
    world.kill_model();
    world.kill_relay();
    std::fs::remove_dir_all(world.path().join("answers")).unwrap();
    let daemon = world.daemon();
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(reply.digest(), asked[0]["answer"]);
    daemon.settled();
}

#[test]
fn the_file_of_a_settled_answer_is_removed() {
    let world = World::one_command();
    let daemon = world.daemon();
    world.post(&say("go")).finish().unwrap();
    daemon.settled();
    drop(daemon);
    world.until(|| world.files().is_empty());
}

#[test]
fn a_file_that_a_killed_daemon_left_is_removed_by_the_next() {
    let world = World::held();
    let daemon = world.daemon();
    let mut call = world.post(&say("go"));
    call.read_until("I will look").unwrap();
    let file = world.files().remove(0);
    let kept = world.path().join("kept");
    std::fs::hard_link(&file, &kept).unwrap();
    world.release();
    call.finish().unwrap();
    drop(daemon);
    world.until(|| world.files().is_empty());
    std::fs::rename(kept, &file).unwrap();
    let _daemon = world.daemon();
    world.until(|| world.files().is_empty());
}

#[test]
fn files_that_no_journal_wants_are_swept() {
    let world = World::held();
    let daemon = world.daemon();
    let mut call = world.post(&say("go"));
    call.read_until("I will look").unwrap();
    drop(daemon);
    let sweep = |wanted: bool| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let relay = relay_handle(world.path());
        runtime.unwrap().block_on(relay.sweep(|_| wanted)).unwrap();
    };
    // It runs: its file goes when it has ended.
    sweep(true);
    sweep(false);
    assert_eq!(world.files().len(), 1);
    world.release();
    world.until(|| world.files().is_empty());

    // It has ended, and its daemon is gone.
    let daemon = world.daemon();
    let mut call = world.post(&say("go on"));
    call.read_until("I will look").unwrap();
    drop(daemon);
    world.release();
    world.until(|| world.files().iter().any(|file| holds(file, "complete")));
    sweep(true);
    assert_eq!(world.files().len(), 1);
    sweep(false);
    world.until(|| world.files().is_empty());
}

fn holds(file: &std::path::Path, word: &str) -> bool {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes
        .windows(word.len())
        .any(|window| window == word.as_bytes())
}

#[test]
fn parallel_requests_that_are_the_same_get_an_answer_each() {
    let world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    let mut second = world.post(&say("go"));
    world.wait("held=2");
    first.read_until("I will look").unwrap();
    second.read_until("I will look").unwrap();
    world.release();
    let (first, second) = (first.finish().unwrap(), second.finish().unwrap());
    assert_ne!(first.body, second.body);
    assert_eq!(world.asked().len(), 2);
    daemon.settled();
}

#[test]
fn a_document_is_recorded_and_its_calls_are_known() {
    for (path, kind) in [("/v1/messages", "Bash"), ("/v1/chat/completions", "bash")] {
        let world = World::one_command();
        let daemon = world.daemon();
        let tool = json!({ "name": kind, "type": "function", "function": { "name": kind } });
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "go" }], "tools": [tool] });
        let reply = world.post_to(path, &body.to_string()).finish().unwrap();
        assert_eq!(reply.digest(), world.asked()[0]["answer"]);
        let (_, settled) = answers(&daemon.ledger.events()).pop_front().unwrap();
        let Some(Event::ModelSettled { tool_calls, .. }) = settled else {
            panic!("not settled")
        };
        assert_eq!(tool_calls.len(), 1, "{path}");
        assert_eq!(tool_calls[0].name, kind);
        let input: serde_json::Value = serde_json::from_str(&tool_calls[0].input).unwrap();
        assert_eq!(input["command"], "ls");
    }
}

#[test]
fn an_openai_stream_is_recorded_and_served_again() {
    let world = World::held();
    let daemon = world.daemon();
    let tool = json!({ "type": "function", "function": { "name": "bash" } });
    let body = json!({ "model": "m", "stream": true, "messages": [{ "role": "user", "content": "go" }], "tools": [tool] });
    let mut first = world.post_to("/v1/chat/completions", &body.to_string());
    first.read_until("I will look").unwrap();
    drop(first);
    let second = world.post_to("/v1/chat/completions", &body.to_string());
    world.release();
    let reply = second.finish().unwrap();
    let asked = world.asked();
    assert_eq!(
        (asked.len(), reply.digest().as_str()),
        (1, asked[0]["answer"].as_str().unwrap())
    );
    let (_, settled) = answers(&daemon.ledger.events()).pop_front().unwrap();
    let Some(Event::ModelSettled { tool_calls, .. }) = settled else {
        panic!("not settled")
    };
    assert_eq!(tool_calls[0].name, "bash");
    assert!(reply.text().contains(&tool_calls[0].id));
}

#[test]
fn a_tool_call_is_shown_only_when_it_is_durable() {
    let world = World::held();
    let daemon = world.daemon();
    let slow = daemon.ledger.slow.clone();
    let mut call = world.post(&say("go"));
    call.read_until("I will look").unwrap();
    slow.send_replace(true);
    world.release();
    world.wait("finished=1");
    // Text came, what completes a block did not: the disk has not answered.
    call.read_until("by step.").unwrap();
    assert!(
        !call.holds("content_block_stop"),
        "shown before it was durable"
    );
    assert!(!call.holds("tool_use"), "shown before it was durable");
    slow.send_replace(false);
    let reply = call.finish().unwrap();
    assert_eq!(reply.digest(), world.asked()[0]["answer"]);
}

#[test]
fn a_client_that_does_not_read_holds_nothing_up() {
    let text = "x".repeat(4 << 20);
    let world = World::new(&json!([{ "text": text }]).to_string());
    let daemon = world.daemon();
    let call = world.post(&say("go"));
    world.wait("finished=1");
    daemon.settled();
    let (output, settled) = answers(&daemon.ledger.events()).pop_front().unwrap();
    assert!(settled.is_some());
    let delivered = |event: &Event| matches!(event, Event::ModelDelivered { .. });
    assert!(
        !daemon.ledger.events().iter().any(delivered),
        "nobody has read it"
    );
    let reply = call.finish().unwrap();
    assert!(reply.body == output);
    assert_eq!(reply.digest(), world.asked()[0]["answer"]);
}

#[test]
fn a_restarted_harness_gets_what_was_answered_to_the_same_conversation_once() {
    let world = World::one_command();
    let daemon = world.daemon();
    daemon.ledger.sender("s", 1);
    let first = world.post(&say("go")).finish().unwrap();
    daemon.ledger.sender("s", 2);
    let nudged = anthropic(&json!([
        { "role": "user", "content": [{ "type": "text", "text": "<system-reminder>x</system-reminder>" }, { "type": "text", "text": "go" }] },
        { "role": "user", "content": [{ "type": "text", "text": "Continue from where you left off." }] },
    ]));
    let second = world.post(&nudged).finish().unwrap();
    assert_eq!(world.asked().len(), 1);
    assert!(first.body == second.body);
    // It has had it now; asking again means that it wants another answer.
    let third = world.post(&nudged).finish().unwrap();
    assert_eq!(world.asked().len(), 2);
    assert!(first.body != third.body);
    // Also after a restart of the daemon, for an attempt after that; the latest answer is the one that counts.
    drop(daemon);
    let daemon = world.daemon();
    daemon.ledger.sender("s", 3);
    let fourth = world.post(&say("go")).finish().unwrap();
    assert!(fourth.body == third.body);
    assert_eq!(world.asked().len(), 2);
    // Another session has asked nothing yet.
    daemon.ledger.sender("other", 2);
    world.post(&say("go")).finish().unwrap();
    assert_eq!(world.asked().len(), 3);
    daemon.settled();
}

#[test]
fn a_restarted_harness_gets_an_answer_that_is_still_coming() {
    let world = World::held();
    let daemon = world.daemon();
    daemon.ledger.sender("s", 1);
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    daemon.ledger.sender("s", 2);
    // The first client's connection is still open: its process is gone all the same.
    let mut second = world.post(&anthropic(&json!([
        { "role": "user", "content": "go" },
        { "role": "user", "content": RESUME_PROMPT },
    ])));
    second.read_until("I will look").unwrap();
    world.release();
    let reply = second.finish().unwrap();
    let asked = world.asked();
    assert_eq!(
        (asked.len(), reply.digest().as_str()),
        (1, asked[0]["answer"].as_str().unwrap())
    );
    daemon.settled();
}

#[test]
fn the_model_never_sees_the_resume_prompt() {
    let world = World::one_command();
    let daemon = world.daemon();
    let talk = json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "Bash", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "out" }] },
    ]);
    let mut resumed = talk.clone();
    let more = [
        json!({ "role": "assistant", "content": [{ "type": "text", "text": RESUME_FILLER }] }),
        json!({ "role": "user", "content": [{ "type": "text", "text": RESUME_PROMPT }] }),
    ];
    resumed.as_array_mut().unwrap().extend(more);
    let plain = world.post(&anthropic(&talk)).finish().unwrap();
    let stripped = world.post(&anthropic(&resumed)).finish().unwrap();
    assert_eq!((plain.status, stripped.status), (200, 200));
    let asked = world.asked();
    assert_eq!(
        asked[0]["digest"], asked[1]["digest"],
        "the upstream sees the same bytes"
    );
    assert_eq!(asked[1]["messages"], 3);
    assert_eq!(asked[1]["last_user_text"], "go");
    daemon.settled();
}

#[test]
fn a_harness_resumed_after_the_last_word_gets_it_again() {
    let world = World::new(r#"[{"text":"The last word."}]"#);
    let daemon = world.daemon();
    daemon.ledger.sender("s", 1);
    let first = world.post(&say("go")).finish().unwrap();
    daemon.ledger.sender("s", 2);
    let resumed = anthropic(&json!([
        { "role": "user", "content": "go" },
        { "role": "assistant", "content": [{ "type": "text", "text": "The last word." }] },
        { "role": "user", "content": RESUME_PROMPT },
    ]));
    let second = world.post(&resumed).finish().unwrap();
    assert!(first.body == second.body);
    assert_eq!(world.asked().len(), 1);
    daemon.settled();
}

#[test]
fn what_is_no_turn_is_passed_on_and_not_recorded() {
    let world = World::one_command();
    let daemon = world.daemon();
    let reply = world.get("/v1/models");
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains("scripted"), "{}", reply.text());
    let counted = world.post_to("/v1/messages/count_tokens?beta=true", &say("go"));
    assert_eq!(counted.finish().unwrap().text(), r#"{"input_tokens":10}"#);
    assert_eq!(world.get("/v1/nothing").status, 404);
    assert_eq!(daemon.ledger.events(), []);
}

#[test]
fn two_relays_cannot_serve_one_socket_and_an_idle_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a socket address may be.
    let long = dir.path().join("x".repeat(150));
    std::fs::create_dir(&long).unwrap();
    let mut first = Process::start("relay", &long, &long, "200");
    first.line("ready").unwrap();
    let mut second = Process::start("relay", &long, &long, "200");
    assert_eq!(second.line("ready"), None);
    assert!(second.0.wait().unwrap().success());
    let waited = std::time::Instant::now();
    assert!(first.0.wait().unwrap().success());
    assert!(waited.elapsed() < Duration::from_secs(20));
    assert!(!long.join("relay.sock").exists());
}
