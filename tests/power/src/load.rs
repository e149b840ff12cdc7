//! What clients do while the power goes, and what they were told: only what they saw is held against the daemon later.
//!
//! Each client runs operations one after another. Operation `OP` writes `OP` to a file of that name, a line `OP` to the
//! client's log, and `OP` to its output: whether it ran, and how often, can be read from the files afterwards.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bench::api::command;
use bench::{Api, Failure};
use protocol::api::{EventView, OpView, PushView, SandboxView};
use protocol::{Image, OpId, Seq};

use crate::tape::{Mark, Tape};

/// When something was announced.
///
/// While the file system is being shut down, a sync that has begun may return as if it had done its work (ext4 in 6.18; the
/// control that syncs shows it): what was told from then on is looked at, and held against nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Before the power went.
    Before,
    /// While it went, or after.
    While,
}

/// What tells when something was announced.
pub(crate) enum Power {
    /// A file system that is shut down: 0 before it begins, 1 from then on.
    Cut(AtomicBool),
    /// A disk that is recorded: the place on the tape.
    Taped(Arc<Tape>),
}

impl Power {
    /// A file system that will be shut down.
    pub(crate) fn to_be_cut() -> Self {
        Self::Cut(AtomicBool::new(false))
    }

    /// The power begins to go.
    pub(crate) fn goes(&self) {
        if let Self::Cut(gone) = self {
            gone.store(true, Ordering::SeqCst);
        }
    }

    /// To be asked once something was announced.
    pub(crate) fn mark(&self) -> Mark {
        match self {
            Self::Cut(gone) => gone.load(Ordering::SeqCst).into(),
            Self::Taped(tape) => tape.mark(),
        }
    }
}

/// Which power cut what was announced is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// The file system was shut down.
    Shutdown,
    /// The disk is a copy as of this mark: what was announced later never happened there.
    Copied(Mark),
}

impl Cut {
    /// Returns when something was announced; `None` where it was after the cut.
    pub(crate) fn when(self, mark: Mark) -> Option<When> {
        match self {
            Self::Shutdown if mark == 0 => Some(When::Before),
            Self::Shutdown => Some(When::While),
            Self::Copied(at) => (mark <= at).then_some(When::Before),
        }
    }
}

/// What was announced of one sandbox, and when.
#[derive(Debug, Default)]
pub(crate) struct Seen<W> {
    pub(crate) sandbox: String,
    /// When its creation was announced.
    pub(crate) created: Option<W>,
    /// Events that a follower of the journal was sent.
    pub(crate) events: Vec<(W, EventView)>,
    /// Operations that were asked for, whatever became of them.
    pub(crate) asked: Vec<(W, String)>,
    /// Operations of which the intent was announced, and its place.
    pub(crate) intents: Vec<(W, OpId, Seq)>,
    /// Operations that settled as far as a client was told, and their output.
    pub(crate) settled: Vec<(W, OpView, Vec<u8>)>,
    /// Forks that were announced, and an operation whose file each must hold.
    pub(crate) forks: Vec<(W, String, String)>,
    /// Pushes that were announced: up to which event, and an operation whose file must be in the store.
    pub(crate) pushes: Vec<(W, Seq, String)>,
    /// Answers that were wrong in themselves.
    pub(crate) wrong: Vec<String>,
}

impl Seen<Mark> {
    /// Returns what had been announced when the power went.
    pub(crate) fn as_of(&self, cut: Cut) -> Seen<When> {
        macro_rules! told {
            ($all:ident, $($part:ident),+) => {
                self.$all
                    .iter()
                    .filter_map(|(mark, $($part),+)| Some((cut.when(*mark)?, $($part.clone()),+)))
                    .collect()
            };
        }
        Seen {
            sandbox: self.sandbox.clone(),
            created: self.created.and_then(|mark| cut.when(mark)),
            events: told!(events, event),
            asked: told!(asked, op),
            intents: told!(intents, op, seq),
            settled: told!(settled, view, output),
            forks: told!(forks, fork, op),
            pushes: told!(pushes, seq, op),
            wrong: self.wrong.clone(),
        }
    }

    /// Returns when anything was announced that must last.
    pub(crate) fn marks(&self) -> impl Iterator<Item = Mark> {
        let events = self.events.iter().map(|(mark, _)| mark);
        let intents = self.intents.iter().map(|(mark, ..)| mark);
        let settled = self.settled.iter().map(|(mark, ..)| mark);
        let forks = self.forks.iter().map(|(mark, ..)| mark);
        let pushes = self.pushes.iter().map(|(mark, ..)| mark);
        let all = events.chain(intents).chain(settled).chain(forks);
        all.chain(pushes).chain(&self.created).copied()
    }
}

/// Forks of one sandbox in one run: each is a sandbox more to look at afterwards.
const MAX_FORKS: u64 = 6;

/// How much goes on in one sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Clients that keep a connection.
    pub(crate) clients: u64,
    /// Whether one more uses the command line.
    pub(crate) command_line: bool,
    /// Bytes that each operation writes besides.
    pub(crate) ballast: u64,
}

/// Returns the command of an operation.
pub(crate) fn script(op: &str, client: &str, ballast: u64) -> String {
    format!(
        "echo {op} > {op}; echo {op} >> log-{client}; head -c {ballast} /dev/zero > ballast-{client}; echo {op}"
    )
}

/// Creates a sandbox and works in it until the daemon is gone.
pub(crate) fn work(
    program: &Path,
    data: &Path,
    store: &Path,
    sandbox: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
) -> Seen<Mark> {
    let mut seen = Seen {
        sandbox: sandbox.to_owned(),
        ..Seen::default()
    };
    let made = Api::connect(data).and_then(|mut api| api.create(sandbox, Image::Host));
    match made {
        Ok(_) => seen.created = Some(power.mark()),
        Err(failure) => {
            seen.note(&failure);
            return seen;
        }
    }
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| follow(data, sandbox, power));
        let clients: Vec<_> = (0..shape.clients)
            .map(|nth| {
                scope.spawn(move || {
                    keep_asking(data, sandbox, &format!("k{nth}"), shape, power, stop)
                })
            })
            .collect();
        let commands = shape
            .command_line
            .then(|| scope.spawn(|| keep_calling(program, data, sandbox, shape, power, stop)));
        let forker = scope.spawn(|| keep_forking(data, sandbox, shape, power, stop));
        let pusher = scope.spawn(|| keep_pushing(data, store, sandbox, shape, power, stop));
        let others = commands.into_iter().chain([forker, pusher]);
        for thread in clients.into_iter().chain(others) {
            match thread.join() {
                Ok(part) => seen.add(part),
                Err(_) => seen.wrong.push("a client panicked".to_owned()),
            }
        }
        match follower.join() {
            Ok(part) => seen.add(part),
            Err(_) => seen.wrong.push("a follower panicked".to_owned()),
        }
    });
    seen
}

impl Seen<Mark> {
    fn add(&mut self, part: Self) {
        self.events.extend(part.events);
        self.asked.extend(part.asked);
        self.intents.extend(part.intents);
        self.settled.extend(part.settled);
        self.forks.extend(part.forks);
        self.pushes.extend(part.pushes);
        self.wrong.extend(part.wrong);
    }

    /// A broken connection and a refusal are what a power cut looks like; a wrong answer is not.
    fn note(&mut self, failure: &Failure) {
        if let Failure::Wrong(what) = failure
            && !what.contains("ended without a settlement")
        {
            self.wrong.push(what.clone());
        }
    }
}

fn keep_asking(
    data: &Path,
    sandbox: &str,
    client: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
) -> Seen<Mark> {
    let mut seen = Seen::default();
    let mut api = match Api::connect(data) {
        Ok(api) => api,
        Err(failure) => {
            seen.note(&failure);
            return seen;
        }
    };
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let op = format!("{client}-{nth}");
        let spec = command(&["sh", "-c", &script(&op, client, shape.ballast)]);
        seen.asked.push((power.mark(), op.clone()));
        let intents = &mut seen.intents;
        let done = api.exec(sandbox, &op, &spec, |view| {
            intents.push((power.mark(), view.id.clone(), view.intent_seq));
        });
        match done {
            Ok(settled) => seen
                .settled
                .push((power.mark(), settled.view, settled.stdout)),
            Err(failure) => {
                seen.note(&failure);
                break;
            }
        }
    }
    seen
}

/// Forks the sandbox after each operation, a few times over.
fn keep_forking(
    data: &Path,
    sandbox: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
) -> Seen<Mark> {
    let path = format!("/v1/sandboxes/{sandbox}/forks");
    let mut nth = 0;
    after_each(data, sandbox, "f", shape, power, stop, |api, seen, op| {
        let fork = format!("{sandbox}-f{nth}");
        let ask = serde_json::json!({ "names": [fork] });
        api.call::<Vec<SandboxView>>(hyper::Method::POST, &path, Some(&ask))?;
        seen.forks.push((power.mark(), fork, op));
        nth += 1;
        Ok(if nth < MAX_FORKS {
            Next::More
        } else {
            Next::Enough
        })
    })
}

/// Pushes the sandbox after each operation, over and over.
fn keep_pushing(
    data: &Path,
    store: &Path,
    sandbox: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
) -> Seen<Mark> {
    let path = format!("/v1/sandboxes/{sandbox}/push");
    let ask = serde_json::json!({ "store": { "url": store } });
    after_each(data, sandbox, "p", shape, power, stop, |api, seen, op| {
        let view: PushView = api.call(hyper::Method::POST, &path, Some(&ask))?;
        seen.pushes.push((power.mark(), view.seq, op));
        Ok(Next::More)
    })
}

/// Whether a client goes on.
enum Next {
    More,
    Enough,
}

/// Runs operations one after another, and does something after each.
fn after_each(
    data: &Path,
    sandbox: &str,
    client: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
    mut then: impl FnMut(&mut Api, &mut Seen<Mark>, String) -> Result<Next, Failure>,
) -> Seen<Mark> {
    let mut seen = Seen::default();
    let mut api = match Api::connect(data) {
        Ok(api) => api,
        Err(failure) => {
            seen.note(&failure);
            return seen;
        }
    };
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let op = format!("{client}-{nth}");
        let spec = command(&["sh", "-c", &script(&op, client, shape.ballast)]);
        seen.asked.push((power.mark(), op.clone()));
        let done = api.exec(sandbox, &op, &spec, |_| {}).and_then(|settled| {
            seen.settled
                .push((power.mark(), settled.view, settled.stdout));
            then(&mut api, &mut seen, op)
        });
        match done {
            Ok(Next::More) => {}
            Ok(Next::Enough) => break,
            Err(failure) => {
                seen.note(&failure);
                break;
            }
        }
    }
    seen
}

fn keep_calling(
    program: &Path,
    data: &Path,
    sandbox: &str,
    shape: Shape,
    power: &Power,
    stop: &AtomicBool,
) -> Seen<Mark> {
    let mut seen = Seen::default();
    for nth in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let op = format!("c-{nth}");
        seen.asked.push((power.mark(), op.clone()));
        let output = Command::new(program)
            .arg("--data")
            .arg(data)
            .args(["--json", "exec", "--op", &op, sandbox, "--", "sh", "-c"])
            .arg(script(&op, "c", shape.ballast))
            .stdin(Stdio::null())
            .output();
        let Ok(output) = output else { break };
        // Its exit code is the command's, its stderr the operation as JSON; anything else is a call that was cut off.
        let view = output
            .status
            .success()
            .then(|| serde_json::from_slice::<OpView>(&output.stderr).ok())
            .flatten();
        match view {
            Some(view) => seen.settled.push((power.mark(), view, output.stdout)),
            None => break,
        }
    }
    seen
}

fn follow(data: &Path, sandbox: &str, power: &Power) -> Seen<Mark> {
    let mut seen = Seen::default();
    let api = match Api::connect(data) {
        Ok(api) => api,
        Err(failure) => {
            seen.note(&failure);
            return seen;
        }
    };
    let (events, wrong) = (&mut seen.events, &mut seen.wrong);
    let path = format!("/v1/sandboxes/{sandbox}/journal?from=1&follow=true");
    let followed = api.lines(&path, |line| match serde_json::from_slice(line) {
        Ok(event) => events.push((power.mark(), event)),
        // An event that cannot be read any more ends the stream with an error.
        Err(_) if line.starts_with(b"{\"error\"") => {}
        Err(error) => wrong.push(format!("a line of the journal is no event: {error}")),
    });
    if let Err(failure) = followed {
        seen.note(&failure);
    }
    seen
}
