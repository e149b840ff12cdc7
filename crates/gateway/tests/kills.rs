//! The daemon is killed with `kill -9`, once on purpose and then at two hundred seeded points.

use std::path::Path;

use protocol::{Event, ModelOutcome};
use serde_json::json;

use crate::client::{Call, Reply};
use crate::process::Process;
use crate::world::{FileLedger, Kill, World, answers, kill_relay, say};

fn start(world: &World, dir: &Path, kill: Option<Kill>) -> Process {
    let args = format!("{}\n{}", world.url, Kill::text(kill));
    Process::start("daemon", dir, world.path(), &args)
}

/// Connects as the supervisor would: it holds the request until a daemon is there.
fn send(dir: &Path, body: &str, daemon: &mut Process) -> Option<Call> {
    loop {
        if let Ok(call) = Call::send(&dir.join("gateway.sock"), "POST", "/v1/messages", body) {
            return Some(call);
        }
        if daemon.0.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_daemon_killed_in_mid_stream_costs_nothing() {
    let world = World::held();
    let dir = world.path().to_owned();
    let mut daemon = start(&world, &dir, None);
    let mut first = send(&dir, &say("go"), &mut daemon).unwrap();
    first.read_until("I will look").unwrap();
    daemon.kill_9();
    assert!(first.finish().is_err());
    // While nobody is there, the relay reads on.
    world.release();
    world.wait("finished=1");
    let mut daemon = start(&world, &dir, None);
    let reply = send(&dir, &say("go"), &mut daemon)
        .unwrap()
        .finish()
        .unwrap();
    let asked = world.asked();
    assert_eq!(
        (asked.len(), reply.digest().as_str()),
        (1, asked[0]["answer"].as_str().unwrap())
    );
    drop(daemon);
    let (output, settled) = answers(&FileLedger::open(&dir, None).events())
        .pop_front()
        .unwrap();
    assert!(output == reply.body);
    assert!(matches!(
        settled,
        Some(Event::ModelSettled {
            outcome: ModelOutcome::Complete,
            ..
        })
    ));
}

/// A small generator of our own, so that a seed means the same for ever (xorshift64*).
struct Seed(u64);

impl Seed {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }
}

#[test]
fn two_hundred_seeded_kills_never_ask_twice_nor_lose_a_byte() {
    let text = "word after word of an answer that is long enough to be cut. ".repeat(8);
    let tools = json!([{ "command": "ls" }, { "command": "id" }]);
    let script = json!([{ "text": text, "tools": tools, "delay_ms": 1 }]);
    let world = World::new(&script.to_string());
    let only = std::env::var("GATEWAY_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let seeds = only.map_or(1..=200, |seed: u64| seed..=seed);
    let mut killed = 0;
    for seed in seeds {
        killed += one_seed(&world, seed);
    }
    assert!(
        only.is_some() || killed > 150,
        "only {killed} kills happened"
    );
}

/// Runs one seed; returns how many kills happened. `GATEWAY_SEED=n` runs it alone.
fn one_seed(world: &World, seed: u64) -> u64 {
    let mut random = Seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let dir = world.path().join(format!("seed-{seed}"));
    std::fs::create_dir(&dir).unwrap();
    let said = format!("seed {seed}");
    let body = say(&said);
    let mut kills: Vec<Option<Kill>> = (0..=random.below(3))
        .map(|_| {
            Some(Kill {
                at: 1 + random.below(7),
                before: random.below(2) == 0,
            })
        })
        .collect();
    kills.push(None);
    let relay_dies = seed.is_multiple_of(10);
    let mut relay_deaths = 0;
    let (mut happened, mut drops) = (0, 0);
    let mut reply: Option<Reply> = None;
    for kill in kills {
        let last = kill.is_none();
        let mut daemon = start(world, &dir, kill);
        while reply.is_none() {
            let Some(mut call) = send(&dir, &body, &mut daemon) else {
                break;
            };
            if relay_dies && relay_deaths == 0 && call.read_until("word").is_ok() {
                kill_relay(world.path());
                relay_deaths += 1;
            }
            let drops_out = random.below(4) == 0;
            if drops_out && call.read_until("message_start").is_ok() {
                drops += 1;
                continue;
            }
            reply = call.finish().ok();
        }
        if !last && reply.is_none() {
            daemon.0.wait().unwrap();
            happened += 1;
        }
        if reply.is_some() {
            break;
        }
    }
    let reply = reply.unwrap();
    // One more daemon, which must find everything settled or settle it.
    let ledger = {
        let daemon = world.daemon_in(&dir);
        daemon.settled();
        daemon.ledger.events()
    };
    let asked: Vec<_> = world
        .asked()
        .into_iter()
        .filter(|entry| entry["last_user_text"] == said.as_str())
        .collect();
    let kinds: Vec<&str> = ledger.iter().map(Event::kind).collect();
    let context = format!("GATEWAY_SEED={seed}: {}", kinds.join(" "));
    // A client that broke off when it had been sent everything is asked for again, and rightly.
    let last = kinds
        .iter()
        .rposition(|kind| *kind == "model_requested")
        .unwrap();
    let delivered = kinds[..last]
        .iter()
        .filter(|kind| **kind == "model_delivered")
        .count();
    let again = drops.min(delivered);
    assert!(
        asked.len() <= 1 + relay_deaths + again,
        "{context}: asked {} times",
        asked.len()
    );
    let digest = reply.digest();
    assert!(
        asked.iter().any(|entry| entry["answer"] == digest.as_str()),
        "{context}: not what was sent"
    );
    let answers = answers(&ledger);
    assert!(
        answers.iter().any(|(output, _)| *output == reply.body),
        "{context}: not journaled"
    );
    for (output, settled) in answers {
        let Some(Event::ModelSettled {
            outcome,
            bytes,
            tool_calls,
            ..
        }) = settled
        else {
            panic!("{context}: not settled")
        };
        assert_eq!(bytes.0, output.len() as u64, "{context}");
        if outcome == ModelOutcome::Complete {
            assert_eq!(tool_calls.len(), 2, "{context}");
        } else {
            assert!(
                output.is_empty() || relay_deaths > 0,
                "{context}: {outcome:?}"
            );
        }
    }
    happened
}
