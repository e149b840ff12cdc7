//! What goes wrong, and what is made of it.

use std::sync::atomic::Ordering;

use protocol::{Event, ModelOutcome};
use serde_json::json;

use crate::world::{World, answers, say};

fn outcomes(events: &[Event]) -> Vec<ModelOutcome> {
    let settled = answers(events)
        .into_iter()
        .filter_map(|(_, settled)| settled);
    settled
        .map(|event| match event {
            Event::ModelSettled { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_killed_relay_is_told_as_lost_and_the_upstream_is_asked_again_once() {
    let world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    world.kill_relay();
    assert!(
        first.finish().is_err(),
        "a part was passed off as the whole"
    );
    daemon.settled();
    assert_eq!(outcomes(&daemon.ledger.events()), [ModelOutcome::Lost]);
    let mut second = world.post(&say("go"));
    second.read_until("I will look").unwrap();
    world.release();
    let reply = second.finish().unwrap();
    let asked = world.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(reply.digest(), asked[1]["answer"]);
    let lost = [ModelOutcome::Lost, ModelOutcome::Complete];
    assert_eq!(outcomes(&daemon.ledger.events()), lost);
}

#[test]
fn a_relay_and_a_daemon_lost_together_are_told_as_lost() {
    let world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    drop(daemon);
    world.kill_relay();
    let daemon = world.daemon();
    daemon.settled();
    assert_eq!(outcomes(&daemon.ledger.events()), [ModelOutcome::Lost]);
}

#[test]
fn a_finished_answer_outlives_its_relay() {
    let world = World::held();
    let daemon = world.daemon();
    let mut first = world.post(&say("go"));
    first.read_until("I will look").unwrap();
    drop(daemon);
    world.release();
    world.wait("finished=1");
    // The relay ends the file after the model server has ended its answer.
    world.until(|| ended(&world));
    world.kill_relay();
    let daemon = world.daemon();
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(reply.digest(), world.asked()[0]["answer"]);
    assert_eq!(world.asked().len(), 1);
    assert_eq!(outcomes(&daemon.ledger.events()), [ModelOutcome::Complete]);
}

fn ended(world: &World) -> bool {
    let bytes = std::fs::read(&world.files()[0]).unwrap();
    bytes.windows(8).any(|window| window == b"complete")
}

#[test]
fn an_error_of_the_upstream_is_delivered_once_and_never_again() {
    for status in [400, 429, 529] {
        let script = json!([{ "text": "Hello.", "status": status, "times": 1 }]);
        let world = World::new(&script.to_string());
        let daemon = world.daemon();
        let first = world.post(&say("go")).finish().unwrap();
        assert_eq!(first.status, status);
        assert!(first.text().contains("scripted_error"));
        let second = world.post(&say("go")).finish().unwrap();
        assert_eq!(second.status, 200);
        assert_eq!(second.digest(), world.asked()[1]["answer"]);
        daemon.settled();
    }
}

#[test]
fn an_answer_that_broke_off_is_failed_and_asked_for_again() {
    let world =
        World::new(r#"[{"text":"one two three four five six","break_after":3,"delay_ms":5}]"#);
    let daemon = world.daemon();
    assert!(world.post(&say("go")).finish().is_err());
    daemon.settled();
    let outcomes = outcomes(&daemon.ledger.events());
    assert!(
        matches!(outcomes.as_slice(), [ModelOutcome::Failed { .. }]),
        "{outcomes:?}"
    );
    assert!(world.post(&say("go")).finish().is_err());
    assert_eq!(world.asked().len(), 2);
}

#[test]
fn an_upstream_that_is_not_there_is_told_with_its_reason() {
    let mut world = World::one_command();
    let daemon = world.daemon();
    world.kill_model();
    let reply = world.post(&say("go")).finish().unwrap();
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("refused"), "{}", reply.text());
    let told: serde_json::Value = serde_json::from_str(&reply.text()).unwrap();
    assert_eq!(told["type"], "error");
    assert_eq!(told["error"]["type"], "api_error");
    let outcomes = outcomes(&daemon.ledger.events());
    assert!(
        matches!(outcomes.as_slice(), [ModelOutcome::Failed { .. }]),
        "{outcomes:?}"
    );
}

#[test]
fn without_an_endpoint_the_client_is_told_how_to_name_one() {
    let world = World::one_command();
    let daemon = world.daemon_with("");
    let openai = world
        .post_to("/v1/chat/completions", "{}")
        .finish()
        .unwrap();
    for reply in [world.post(&say("go")).finish().unwrap(), openai] {
        assert_eq!(reply.status, 503);
        let body: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("--model-url"), "{message}");
    }
    assert_eq!(daemon.ledger.events(), []);
    daemon.gateway.configure(crate::world::upstream(&world.url));
    assert_eq!(world.post(&say("go")).finish().unwrap().status, 200);
}

#[test]
fn nothing_is_asked_that_could_not_be_journaled() {
    let world = World::one_command();
    let daemon = world.daemon();
    daemon.ledger.broken.store(true, Ordering::SeqCst);
    assert_eq!(world.post(&say("go")).finish().unwrap().status, 503);
    assert_eq!(world.asked().len(), 0);
    daemon.ledger.broken.store(false, Ordering::SeqCst);
    assert_eq!(world.post(&say("go")).finish().unwrap().status, 200);
    assert_eq!(world.asked().len(), 1);
}

#[test]
fn a_tool_call_is_not_shown_when_the_journal_fails() {
    let world = World::held();
    let daemon = world.daemon();
    let mut call = world.post(&say("go"));
    call.read_until("I will look").unwrap();
    daemon.ledger.broken.store(true, Ordering::SeqCst);
    world.release();
    assert!(call.read_until("content_block_stop").is_err());
    let (output, settled) = answers(&daemon.ledger.events()).pop_front().unwrap();
    assert_eq!(settled, None);
    assert!(!String::from_utf8(output).unwrap().contains("tool_use"));
}

#[test]
fn odd_requests_are_refused_or_passed_as_they_are() {
    let world = World::one_command();
    let daemon = world.daemon();
    assert_eq!(world.get("/v1/../../etc/passwd").status, 400);
    // Not JSON: the upstream says what it thinks of it.
    assert_eq!(world.post("not json").finish().unwrap().status, 200);
    assert_eq!(world.asked().len(), 1);
    daemon.settled();
}
