//! What the drivers do for the engine, from outside: plans from arguments, and transcripts of the real programs repaired.
//!
//! `fixtures/` was made by Claude Code 2.1.332 and Pi 1.6.0 with a scripted model, killed at known points; system prompts
//! and other attachments are taken out.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "in tests a failed step is a failed test"
)]

mod afresh;
mod cut;
mod plan;
mod repair;

use harness::{Dialect, Program, Start};

/// The session of all fixtures.
const SESSION: &str = "11111111-1111-4111-8111-111111111111";

fn start(args: &[&str], tty: bool) -> Start {
    Start {
        args: args.iter().map(|a| (*a).to_owned()).collect(),
        session: SESSION.parse().unwrap(),
        started: protocol::UnixMillis(1_796_011_203_455),
        cwd: "/workspace".to_owned(),
        home: "/home/agent".to_owned(),
        tty,
        dialect: Dialect::Anthropic,
        model: None,
        program: Program::Layer {
            version: "1.0.0".to_owned(),
        },
    }
}

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

fn lines(bytes: &[u8]) -> Vec<serde_json::Value> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}
