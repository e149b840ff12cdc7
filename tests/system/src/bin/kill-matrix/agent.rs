//! A run with a real harness: a scripted model makes it run commands, somebody is killed, the session ends by itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::model::Model;
use system_tests::{Client, Gate, Res, Rng, World, process, trouble};

use crate::cell::{Cell, Point, Under, Victim, may_lose};
use crate::check::{Story, removed};
use crate::report::{Fault, Verdict};
use crate::stage::Stage;
use crate::strike::{Targets, reached, strike};

/// The key that must reach the model and nothing else.
pub(crate) const KEY: &str = "sk-matrix-0123456789";
/// A session with two steps takes some seconds; a resumed one twice that, on a machine with other work more.
const SESSION: Duration = Duration::from_secs(240);
/// How long a command may take to begin.
const BEGIN: Duration = Duration::from_secs(90);

/// One command of the model's.
struct Call {
    tag: String,
    script: String,
    output: String,
    code: u8,
    gate: Option<Gate>,
}

impl Call {
    fn new(rng: &mut Rng, tag: String, gated: bool, changes: bool, world: &World) -> Res<Self> {
        let code = *rng.pick(&[0, 0, 7, 42]);
        let effects = world.effects();
        let gate = gated
            .then(|| effects.gate(&format!("gate-{tag}")))
            .transpose()?;
        let (first, last) = (1 + rng.below(40), 41 + rng.below(100));
        let mut script = format!("echo '{tag} begin' > {}\n", effects.inside());
        if changes || rng.chance(50) {
            script += &format!("echo {tag} >> /workspace/log\n");
        }
        script += &format!("for i in $(seq {first}); do echo \"{tag} line $i\"; done\n");
        if let Some(gate) = &gate {
            script += &format!("read -r go < {}\n", gate.inside());
        }
        script += &format!(
            "for i in $(seq {} {last}); do echo \"{tag} line $i\"; done\n",
            first + 1
        );
        script += &format!("echo '{tag} end' > {}\nexit {code}", effects.inside());
        let lines = (1..=last).map(|i| format!("{tag} line {i}\n"));
        Ok(Self {
            script,
            output: lines.collect(),
            code,
            gate,
            tag,
        })
    }
}

/// What is to be told of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Ended,
    Lost,
    /// Everybody who knew of it died before it was journaled: it never ran, and that is known.
    NotStarted,
}

/// What a run is about.
struct Plan {
    calls: Vec<Call>,
    /// The call that the point is in.
    at: usize,
    /// The step of the model that is held.
    held: Option<usize>,
    place: Option<&'static str>,
    /// The model's last word.
    last: String,
    relay: bool,
}

impl Plan {
    fn new(rng: &mut Rng, cell: &Cell, sandbox: &str, world: &World) -> Res<Self> {
        let count = 1 + rng.index(2);
        let at = rng.index(count);
        let in_stream = cell.point == Point::MidModelStream;
        let held = match cell.point {
            Point::MidModelStream => Some(rng.index(count + 1)),
            Point::MidOutput => None,
            _ => Some(at),
        };
        let mut calls = Vec::with_capacity(count);
        for number in 0..count {
            let gated = cell.point == Point::MidOutput && number == at;
            let tag = format!("{sandbox}-c{number}");
            let changes = cell.point == Point::MidCut;
            calls.push(Call::new(rng, tag, gated, changes, world)?);
        }
        let places = cell.point.places();
        // The stream itself is held at the model: whether the daemon has journaled of it is one more choice.
        let in_stream_only = in_stream && rng.chance(50);
        let stands = !places.is_empty() && !in_stream_only;
        Ok(Self {
            calls,
            at,
            held,
            place: stands.then(|| *rng.pick(places)),
            last: format!(
                "Everything that was asked for is done now: {:08x}.",
                u32::try_from(rng.draw() >> 32).unwrap_or(0)
            ),
            relay: cell.victim == Victim::All && rng.chance(50),
        })
    }

    fn script(&self, rng: &mut Rng) -> Value {
        let mut turns: Vec<Value> = self
            .calls
            .iter()
            .enumerate()
            .map(|(number, call)| {
                json!({
                    "text": format!("Step {number} is to run a command in the sandbox."),
                    "tools": [{ "command": call.script }],
                })
            })
            .collect();
        turns.push(json!({ "text": self.last }));
        if let Some(held) = self.held {
            turns[held]["hold_after"] = (1 + rng.below(5)).into();
        }
        turns.into()
    }
}

pub(crate) fn run(stage: &mut Stage, cell: &Cell, seed: u64) -> Res<Verdict> {
    let mut rng = Rng::named(seed, &cell.to_string());
    let rng = &mut rng;
    stage.link(cell.under.name())?;
    let sandbox = stage.next();
    let world = &stage.world;
    let plan = Plan::new(rng, cell, &sandbox, world)?;
    let model = Model::start(&plan.script(rng))?;
    world.create(&sandbox, &[])?;
    let mut client = start(world, cell.under, &sandbox, &model)?;

    let hit = approach(world, cell, &plan, &model, &mut client)?;
    let harness = harness_of(world, &sandbox, rng)?;
    let targets = Targets {
        world,
        sandbox: &sandbox,
        clients: std::slice::from_mut(&mut client),
        harness,
        relay: plan.relay,
    };
    let killed = strike(cell.victim, targets, rng)?;
    drop(hit);
    model.release()?;
    for call in &plan.calls {
        if let Some(gate) = &call.gate {
            gate.open()?;
        }
    }

    let mut verdict = Verdict::default();
    let over = AtomicBool::new(false);
    let finished = std::thread::scope(|scope| {
        scope.spawn(|| keep_releasing(&model, &over));
        let finished = finish(world, cell, &sandbox, client, &plan, &mut verdict);
        over.store(true, Ordering::Relaxed);
        finished
    });
    finished.map_err(|e| trouble(format!("killed {killed}: {e}")))?;
    judge(world, cell, &sandbox, &plan, &model, &mut verdict)?;
    removed(world, &sandbox, &mut verdict)?;
    Ok(verdict)
}

/// A step that must be asked for again, because nobody was left who had read its answer, is held at the model again.
fn keep_releasing(model: &Model, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        // A model that does not answer is seen by everybody else.
        let _released = model.release();
    }
}

fn start(world: &World, under: Under, sandbox: &str, model: &Model) -> Res<Client> {
    let url = model.url();
    let mut args = vec!["run", "--name", sandbox, "--model-url", &url];
    args.extend(["--model", "scripted", "--model-key-env", "MATRIX_KEY"]);
    args.extend(["--", under.name()]);
    args.extend(["-p", "run the commands"]);
    if under == Under::Claude {
        args.push("--dangerously-skip-permissions");
    }
    world.start(&args)
}

/// Waits until the session stands where the cell wants it; returns the process that was stopped there.
fn approach(
    world: &World,
    cell: &Cell,
    plan: &Plan,
    model: &Model,
    client: &mut Client,
) -> Res<Option<system_tests::Hit>> {
    if cell.point == Point::MidOutput {
        let line = format!("{} begin", plan.calls[plan.at].tag);
        if !world.effects().wait(&line, 1, BEGIN) {
            return Err(trouble(format!(
                "the command never began: {}",
                client.words()
            )));
        }
        return Ok(None);
    }
    let held = plan.held.unwrap_or_default();
    if cell.point == Point::MidModelStream {
        if held > 0 {
            let line = format!("{} end", plan.calls[held - 1].tag);
            if !world.effects().wait(&line, 1, BEGIN) {
                return Err(trouble("the command before the stream never ended"));
            }
        }
        let hit = match plan.place {
            Some(place) => {
                let hits = world.points()?.arm(&[place], 0);
                Some(reached(&hits, world)?)
            }
            None => None,
        };
        model.wait(client, 0, 1, 0)?;
        return Ok(hit);
    }
    model.wait(client, 0, 1, 0)?;
    let place = plan.place.ok_or_else(|| trouble("no place"))?;
    let hits = world.points()?.arm(&[place], 0);
    model.release()?;
    Ok(Some(reached(&hits, world)?))
}

/// The harness's process; with some seeds all that it started itself, too. It comes first: one that lives on for a moment sees
/// its shell die of a signal, tells the model so, and that is the truth of another case than this one.
fn harness_of(world: &World, sandbox: &str, rng: &mut Rng) -> Res<Vec<i32>> {
    let supervisor = world.supervisor(sandbox);
    let runs = journal_runs(world, sandbox)?;
    let run = runs.last().ok_or_else(|| trouble("no harness runs"))?;
    let all = world.processes_of(run).into_iter();
    let is_main = |pid: &i32| process::stat(*pid).map(|s| s.parent) == supervisor;
    let (mut harness, rest): (Vec<i32>, Vec<i32>) = all.partition(is_main);
    if rng.chance(50) {
        harness.extend(rest);
    }
    Ok(harness)
}

/// The operations that ran the harness, from the journal: the daemon may stand still.
fn journal_runs(world: &World, sandbox: &str) -> Res<Vec<String>> {
    let rows = system_tests::journal::read(world.data(), sandbox)?;
    let runs = rows
        .iter()
        .map(|row| row.event())
        .filter(|event| event["kind"] == "session_started" || event["kind"] == "session_resumed");
    Ok(runs
        .filter_map(|event| event["op"].as_str().map(str::to_owned))
        .collect())
}

/// Follows the session to its end, as its user would.
fn finish(
    world: &World,
    cell: &Cell,
    sandbox: &str,
    client: Client,
    plan: &Plan,
    verdict: &mut Verdict,
) -> Res<()> {
    let done = if cell.victim.takes_client() {
        drop(client);
        let done = world.start(&["attach", sandbox])?.finish_within(SESSION)?;
        // It may have come to its end before anybody looked.
        let over = done.code == Some(125) && done.err().contains("no session that goes on");
        (!over).then_some(done)
    } else {
        Some(client.finish_within(SESSION)?)
    };
    let Some(done) = done else { return Ok(()) };
    if done.code != Some(0) {
        verdict.find(
            Fault::WrongCode,
            format!(
                "the client ended with {:?}: {}",
                done.code,
                done.err().trim()
            ),
        );
    } else if !done.out().contains(&plan.last) {
        verdict.find(
            Fault::LostOutput,
            format!("the model's last word is not on stdout: {:?}", done.out()),
        );
    }
    Ok(())
}

fn judge(
    world: &World,
    cell: &Cell,
    sandbox: &str,
    plan: &Plan,
    model: &Model,
    verdict: &mut Verdict,
) -> Res<()> {
    let mut api = world.api()?;
    let base = format!("/v1/sandboxes/{sandbox}");
    let sessions = api.get(&format!("{base}/sessions"))?;
    let session = &sessions[0];
    if session["ended"] != true || !session["error"].is_null() {
        verdict.find(
            Fault::WrongCode,
            format!("the session did not end by itself: {session}"),
        );
    }
    let runs = session["runs"].as_array().cloned().unwrap_or_default();
    if let Some(run) = runs.last().and_then(Value::as_str) {
        let view = api.get(&format!("{base}/ops/{run}"))?;
        if view["exit_code"] != 0 {
            verdict.find(Fault::WrongCode, format!("the harness's last run: {view}"));
        }
        let read = world.must(&["read", sandbox, run])?;
        if !read.out().contains(&plan.last) {
            verdict.find(
                Fault::LostOutput,
                "the last run's output lacks the last word",
            );
        }
    }

    let story = Story::read(world, sandbox, verdict)?;
    let mut fates = vec![Fate::Ended; plan.calls.len()];
    for (number, call) in plan.calls.iter().enumerate() {
        let intents: Vec<&Value> = story
            .of("op_intent")
            .filter(|e| e["origin"] == "shim" && e["spec"]["argv"].to_string().contains(&call.tag))
            .collect();
        if intents.is_empty()
            && cell.victim.takes_supervisor()
            && cell.point == Point::BeforeIntent
            && number == plan.at
        {
            fates[number] = Fate::NotStarted;
            effects(world, call, Fate::NotStarted, verdict)?;
            continue;
        }
        let [intent] = intents[..] else {
            verdict.find(
                Fault::Duplicated,
                format!("{} operations for command {}", intents.len(), call.tag),
            );
            continue;
        };
        let op = intent["op"].as_str().unwrap_or_default();
        let view = api.get(&format!("{base}/ops/{op}?wait=true"))?;
        story.operation(op, &view, verdict);
        if view["outcome"] == "lost" {
            fates[number] = Fate::Lost;
            verdict.told_lost += 1;
            let may = cell.victim.takes_supervisor()
                && cell.point != Point::MidModelStream
                && may_lose(plan.place);
            if !may {
                verdict.find(Fault::LostOutput, format!("{}: lost: {view}", call.tag));
            }
        } else if view["outcome"] != "exited" || view["exit_code"] != u64::from(call.code) {
            verdict.find(Fault::WrongCode, format!("{}: {view}", call.tag));
        }
        let read = world.must(&["read", sandbox, op])?;
        if fates[number] == Fate::Ended && read.out() != call.output {
            verdict.find(
                Fault::LostOutput,
                format!("{}: its output is {:?}", call.tag, read.out()),
            );
        }
        effects(world, call, fates[number], verdict)?;
    }
    for run in runs.iter().filter_map(Value::as_str) {
        let view = api.get(&format!("{base}/ops/{run}"))?;
        story.operation(run, &view, verdict);
    }
    drop(api);
    asked(cell, plan, &fates, &model.log()?, verdict);
    story.files(world, verdict)?;
    secret(world, verdict)
}

fn effects(world: &World, call: &Call, fate: Fate, verdict: &mut Verdict) -> Res<()> {
    for label in ["begin", "end"] {
        let times = world
            .effects()
            .lines(&format!("{} {label}", call.tag))?
            .len();
        if times > 1 || (fate == Fate::NotStarted && times > 0) {
            verdict.find(
                Fault::Duplicated,
                format!("{}: effect `{label}` happened {times} times", call.tag),
            );
        }
        if fate == Fate::Ended && times == 0 {
            verdict.find(
                Fault::LostOutput,
                format!("{}: effect `{label}` did not happen", call.tag),
            );
        }
    }
    Ok(())
}

/// Checks what the model was asked: each step once, with the true results of the steps before.
fn asked(cell: &Cell, plan: &Plan, fates: &[Fate], log: &[Value], verdict: &mut Verdict) {
    let main: Vec<&Value> = log.iter().filter(|entry| entry["side"] == false).collect();
    for step in 0..=plan.calls.len() {
        let entries: Vec<_> = main.iter().filter(|e| e["step"] == step).collect();
        let torn = plan.relay && cell.point == Point::MidModelStream && plan.held == Some(step);
        // The process that held the connection was killed too: what it had not read is gone, and must be asked again.
        let most = if torn { 2 } else { 1 };
        if entries.is_empty() || entries.len() > most {
            verdict.find(
                Fault::Duplicated,
                format!(
                    "the model was asked {} times for step {step}",
                    entries.len()
                ),
            );
        }
        let Some(entry) = entries.last() else {
            continue;
        };
        if entry["key"] != KEY {
            verdict.find(Fault::Disagreement, "the model did not get the key");
        }
        let results = entry["tool_results"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if results.len() != step {
            verdict.find(
                Fault::Disagreement,
                format!("step {step} was asked with {} results", results.len()),
            );
            continue;
        }
        for ((call, fate), result) in plan.calls.iter().zip(fates).zip(&results) {
            let text = result["text"].as_str().unwrap_or_default();
            let is_true = match fate {
                Fate::Lost => text.contains("unknown"),
                Fate::NotStarted => text.contains("was not started"),
                Fate::Ended => {
                    text.contains(call.output.trim_end())
                        && (call.code == 0 || text.contains(&call.code.to_string()))
                }
            };
            if !is_true {
                verdict.find(
                    Fault::Disagreement,
                    format!(
                        "{}: the model is told {:?}",
                        call.tag,
                        text.chars().take(300).collect::<String>()
                    ),
                );
            }
        }
    }
}

/// The key must be in no file that a sandbox or a log could show.
fn secret(world: &World, verdict: &mut Verdict) -> Res<()> {
    for name in ["daemon.log", "journal/journal.db", "journal/journal.db-wal"] {
        let content = std::fs::read(world.data().join(name)).unwrap_or_default();
        let key = KEY.as_bytes();
        if content.windows(key.len()).any(|w| w == key) {
            verdict.find(Fault::Disagreement, format!("the key is in {name}"));
        }
    }
    Ok(())
}
