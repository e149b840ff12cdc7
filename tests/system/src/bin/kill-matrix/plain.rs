//! A run without a harness: clients run commands, somebody is killed, the user asks again.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use system_tests::{Client, Done, Res, Rng, World, trouble};

use crate::cell::{Cell, Point, may_lose};
use crate::check::{Story, removed};
use crate::program::{Needs, Program};
use crate::report::{Fault, Verdict};
use crate::stage::Stage;
use crate::strike::{Targets, reached, strike};

/// The exit code that tells of an unknown outcome (`durable --help`).
const LOST: i32 = 123;
/// How long output may take to reach the client.
const OUTPUT: Duration = Duration::from_secs(60);

pub(crate) fn run(stage: &mut Stage, cell: &Cell, seed: u64) -> Res<Verdict> {
    let mut rng = Rng::named(seed, &cell.to_string());
    let rng = &mut rng;
    let sandbox = stage.next();
    let Stage { world, blob, .. } = stage;
    let needs = Needs {
        output: cell.point == Point::MidOutput,
        changes: cell.point == Point::MidCut,
    };
    let count = if rng.chance(30) { 2 + rng.index(3) } else { 1 };
    let mut programs = Vec::with_capacity(count);
    for number in 0..count {
        let op = format!("{sandbox}-op{number}");
        programs.push(Program::new(rng, op, needs, blob, world.effects())?);
    }
    world.create(&sandbox, &[])?;
    if rng.chance(60) {
        let path = format!("/v1/sandboxes/{sandbox}/start");
        world.api()?.call("POST", &path, &Value::Null)?;
    }

    let places = cell.point.places();
    let place = (!places.is_empty()).then(|| *rng.pick(places));
    let hits = match place {
        Some(place) => Some(world.points()?.arm(&[place], 0)),
        None => None,
    };
    let mut clients = Vec::with_capacity(count);
    for program in &programs {
        clients.push(start(world, &sandbox, program)?);
    }
    let hit = match &hits {
        Some(hits) => Some(reached(hits, world)?),
        None => {
            watch(&clients, &programs, rng)?;
            None
        }
    };
    let targets = Targets {
        world,
        sandbox: &sandbox,
        clients: &mut clients,
        harness: Vec::new(),
        relay: false,
    };
    strike(cell.victim, targets, rng)?;
    drop(hit);
    for program in &programs {
        if let Some(gate) = &program.gate {
            gate.open()?;
        }
    }

    let mut verdict = Verdict::default();
    let lose = cell.victim.takes_supervisor() && (may_lose(place) || count > 1);
    let mut judge = Judge {
        world,
        sandbox: &sandbox,
        may_lose: lose,
        verdict: &mut verdict,
    };
    // What a user does: the same again. All at once, as before.
    let mut again = Vec::with_capacity(count);
    for program in &programs {
        again.push(start(world, &sandbox, program)?);
    }
    let mut answers = Vec::with_capacity(count);
    for (client, program) in again.into_iter().zip(&programs) {
        let done = client.finish()?;
        judge.answer("asked again", program, &done);
        answers.push(done);
    }
    if !cell.victim.takes_client() {
        for ((client, program), answer) in clients.into_iter().zip(&programs).zip(&answers) {
            let done = client.finish()?;
            judge.answer("the first client", program, &done);
            if done.code != answer.code || done.stdout != answer.stdout {
                judge.find(Fault::Disagreement, program, "two clients hear two answers");
            }
        }
    }
    let mut views = Vec::with_capacity(count);
    for (program, answer) in programs.iter().zip(&answers) {
        views.push(judge.settled(program, answer)?);
    }
    let story = Story::read(world, &sandbox, &mut verdict)?;
    for (program, view) in programs.iter().zip(&views) {
        story.operation(&program.op, view, &mut verdict);
        if count == 1 && program.changes() && view["outcome"] == "exited" && view["cut"].is_null() {
            verdict.find(
                Fault::Disagreement,
                format!("{}: it changed files and has no cut", program.op),
            );
        }
    }
    let head = story.files(world, &mut verdict)?;
    for (program, view) in programs.iter().zip(&views) {
        files(&head, program, view["outcome"] == "exited", &mut verdict);
    }
    removed(world, &sandbox, &mut verdict)?;
    Ok(verdict)
}

fn start(world: &World, sandbox: &str, program: &Program) -> Res<Client> {
    world.start(&[
        "exec",
        sandbox,
        "--op",
        &program.op,
        "--",
        "bash",
        "-c",
        &program.script,
    ])
}

/// Waits until each command's output is on its way.
fn watch(clients: &[Client], programs: &[Program], rng: &mut Rng) -> Res<()> {
    // One of them is caught at its byte; the others are wherever they are then.
    let caught = rng.index(clients.len());
    let (client, program) = (&clients[caught], &programs[caught]);
    if client.wait_out(program.watch, OUTPUT) {
        return Ok(());
    }
    Err(trouble(format!(
        "{} of {} bytes of output came",
        client.so_far().len(),
        program.watch
    )))
}

struct Judge<'a> {
    world: &'a World,
    sandbox: &'a str,
    may_lose: bool,
    verdict: &'a mut Verdict,
}

impl Judge<'_> {
    fn find(&mut self, fault: Fault, program: &Program, words: &str) {
        self.verdict.find(fault, format!("{}: {words}", program.op));
    }

    /// Judges what a client said and printed.
    fn answer(&mut self, who: &str, program: &Program, done: &Done) {
        let code = done.code;
        if code == Some(LOST) {
            let told = done.err().contains("lost");
            if !self.may_lose || !told {
                let words = format!(
                    "{who}: lost, {}; stderr: {}",
                    if told {
                        "where nothing could be lost"
                    } else {
                        "and not told so"
                    },
                    tail(&done.stderr)
                );
                self.find(Fault::LostOutput, program, &words);
            }
            if !program.stdout.starts_with(&done.stdout) {
                self.find(
                    Fault::LostOutput,
                    program,
                    &format!("{who}: the output so far is not what was written"),
                );
            }
            return;
        }
        if code != Some(i32::from(program.code)) {
            let words = format!(
                "{who}: exit code {code:?} for {}; stderr: {}",
                program.code,
                tail(&done.stderr)
            );
            self.find(Fault::WrongCode, program, &words);
            return;
        }
        for (stream, got, wanted) in [
            ("stdout", &done.stdout, &program.stdout),
            ("stderr", &done.stderr, &program.stderr),
        ] {
            if got != wanted {
                self.find(
                    Fault::LostOutput,
                    program,
                    &format!("{who}: {stream} {}", differs(got, wanted)),
                );
            }
        }
    }

    /// Judges the settlement, the kept output and the effects.
    fn settled(&mut self, program: &Program, answer: &Done) -> Res<Value> {
        let view = self
            .world
            .json(&["op", self.sandbox, &program.op, "--wait", "--json"])?;
        let outcome = view["outcome"].as_str().unwrap_or_default();
        let agree = match outcome {
            "exited" => view["exit_code"].as_i64() == answer.code.map(i64::from),
            "lost" => answer.code == Some(LOST),
            _ => false,
        };
        if !agree {
            let words = format!(
                "`op` says {outcome} {} and `exec` ended with {:?}: {}",
                view["exit_code"], answer.code, view["error"]
            );
            self.find(Fault::WrongCode, program, &words);
        }
        for (stream, wanted) in [("stdout", &program.stdout), ("stderr", &program.stderr)] {
            let read = self
                .world
                .must(&["read", self.sandbox, &program.op, "--stream", stream])?;
            let whole = outcome == "exited" && read.stdout == *wanted;
            let part = outcome == "lost" && wanted.starts_with(&read.stdout);
            let length = view[format!("{stream}_bytes")].as_u64();
            if !(whole || part) || length != Some(read.stdout.len() as u64) {
                let words = format!(
                    "kept {stream} {}, told {length:?}",
                    differs(&read.stdout, wanted)
                );
                self.find(Fault::LostOutput, program, &words);
            }
        }
        self.effects(program, outcome)?;
        Ok(view)
    }

    fn effects(&mut self, program: &Program, outcome: &str) -> Res<()> {
        for label in ["begin", "end"] {
            let line = format!("{} {label}", program.op);
            let times = self.world.effects().lines(&line)?.len();
            if times > 1 {
                self.find(
                    Fault::Duplicated,
                    program,
                    &format!("effect `{label}` happened {times} times"),
                );
            }
            if outcome == "exited" && times == 0 {
                self.find(
                    Fault::LostOutput,
                    program,
                    &format!("it is told to have exited and effect `{label}` did not happen"),
                );
            }
        }
        if outcome == "lost" {
            self.verdict.told_lost += 1;
        }
        Ok(())
    }
}

/// Checks the files of a command in the head.
fn files(head: &Path, program: &Program, whole: bool, verdict: &mut Verdict) {
    let dir = head.join("workspace").join(&program.op);
    for (name, wanted) in &program.files {
        let got = fs::read(dir.join(name));
        // How far a command that was cut short got in its file nobody knows.
        if whole && got.as_ref().ok() != Some(wanted) {
            let words = match &got {
                Ok(got) => differs(got, wanted),
                Err(error) => error.to_string(),
            };
            verdict.find(
                Fault::Disagreement,
                format!("{}: file {name}: {words}", program.op),
            );
        }
    }
    if !program.changes() && dir.exists() {
        verdict.find(
            Fault::Disagreement,
            format!("{}: it has files that it did not make", program.op),
        );
    }
}

fn differs(got: &[u8], wanted: &[u8]) -> String {
    let same = got.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    format!(
        "has {} bytes, the first {same} of {} right",
        got.len(),
        wanted.len()
    )
}

fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(400)..]).into_owned();
    text.trim().escape_debug().to_string()
}
