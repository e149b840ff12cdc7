//! `durable probe`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use hyper::Method;
use protocol::api::{ChangeView, ForkSandbox, OpView, SandboxView};
use protocol::{ApiError, ErrorCode, OpId, OpSpec, Replay, Role, SandboxName};
use serde::Serialize;

use super::inside::{Lines, understood};
use super::{Outcome, World, fork, parse, print_json, print_line};
use crate::client;
use crate::stream::escape;

/// Applies a patch in the working directory, with what the image has.
const APPLY: &str = "if command -v git >/dev/null; then exec git apply --whitespace=nowarn -; else exec patch -p1 -s; fi";
/// Runs a script from its own file, so that its first line counts.
const SCRIPT: &str =
    "f=$(mktemp); cat >\"$f\"; chmod 700 \"$f\"; \"$f\"; s=$?; rm -f \"$f\"; exit $s";
/// A candidate is an edit, not an archive.
const MAX_CANDIDATE: u64 = 32 << 20;
/// The end of the output that the table shows.
const TAIL_BYTES: u64 = 512;

/// Try candidate edits side by side: one fork for each, the edit, then the command; and a table of how they did.
///
/// A candidate is a patch (`*.patch`, `*.diff`) or a script (anything else). Forks whose command succeeded are kept for
/// `durable compose FORK NAME`, the others are removed unless `--keep`: also where this command is killed, or the daemon is.
/// Exits with 0 if any succeeded, else with 1.
///
/// Example: durable probe ada --candidates fixes/ -- cargo test
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox; it goes on, and is not changed.
    name: String,
    /// A candidate, or a directory of them.
    #[arg(long, value_name = "FILE|DIR")]
    candidates: PathBuf,
    /// How many run at a time.
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Seconds that a candidate may take: its edit and the command together.
    #[arg(long, value_name = "SECS", value_parser = super::exec::seconds)]
    timeout: Option<u64>,
    /// Keep every fork, whatever happens.
    #[arg(long)]
    keep: bool,
    /// The command that tells a good candidate by exiting with 0.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// How one candidate did.
#[derive(Debug, Serialize)]
struct Probed {
    candidate: String,
    sandbox: SandboxName,
    /// What failed before the command could run.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    duration_ms: u128,
    changed: Vec<String>,
    tail: String,
    kept: bool,
}

struct Candidate {
    name: String,
    is_patch: bool,
    content: Bytes,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let source: SandboxName = parse(&args.name)?;
    let candidates = candidates(&args.candidates)?;
    let stamp = rand::random::<u32>() & 0x00ff_ffff;
    let names: Result<Vec<SandboxName>, ApiError> = (1..=candidates.len())
        .map(|n| parse(&format!("{source}-{stamp:06x}-{n}")))
        .collect();
    // All of the same instant, however long the first ones take.
    let ask = ForkSandbox {
        names: names?,
        at: None,
        flush: None,
    };
    if args.keep {
        let forks = fork::fork(&source, &ask, world).await?;
        return all(&candidates, &forks, &args, world).await;
    }
    let (forks, mut hold) = bound(&source, &ask, world).await?;
    tokio::select! {
        biased;
        ended = hold.next() => Err(let_go(ended)),
        done = all(&candidates, &forks, &args, world) => done,
    }
}

/// Makes forks that go with us: as long as the answer is read, and no longer.
async fn bound(
    source: &SandboxName,
    ask: &ForkSandbox,
    world: &World,
) -> Result<(Vec<SandboxView>, Lines), ApiError> {
    let path = format!("/v1/sandboxes/{source}/forks/bound");
    let body = client::encode(ask)?;
    let response = world.client.send(Method::POST, &path, body.into()).await?;
    let mut hold = Lines::of(response);
    let mut forks = Vec::with_capacity(ask.names.len());
    while forks.len() < ask.names.len() {
        match hold.next().await {
            Ok(Some(line)) => forks.push(understood(&line)?),
            ended => return Err(let_go(ended)),
        }
    }
    Ok((forks, hold))
}

/// The answer that held the forks has ended before we did.
fn let_go(ended: Result<Option<Bytes>, ApiError>) -> ApiError {
    match ended {
        Err(error) => error,
        Ok(_) => ApiError::new(ErrorCode::Unavailable, "the daemon let the forks go")
            .hint("run the command again"),
    }
}

/// Tries every candidate in a fork of its own, and tells how each did.
async fn all(
    candidates: &[Candidate],
    forks: &[SandboxView],
    args: &Args,
    world: &World,
) -> Outcome {
    let runs = candidates.iter().zip(forks).map(|(candidate, fork)| {
        let start = fork
            .forked_from
            .as_ref()
            .map(|_| format!("{}@start", fork.name));
        probe(candidate, &fork.name, start, args, world)
    });
    let mut runs = futures_util::stream::iter(runs).buffered(args.jobs.max(1));
    let mut won = false;
    if !world.json {
        print_line("CANDIDATE             EXIT     TIME  CHANGED  FORK / LAST LINE");
    }
    while let Some(probed) = runs.next().await {
        let probed = probed?;
        if world.json {
            print_json(&probed)?;
        } else {
            tell(&probed);
        }
        won |= probed.exit_code == Some(0);
    }
    Ok(ExitCode::from(u8::from(!won)))
}

fn candidates(path: &Path) -> Result<Vec<Candidate>, ApiError> {
    let failed = |what: &Path, e: &dyn std::fmt::Display| {
        ApiError::new(
            ErrorCode::Invalid,
            format!("cannot read candidate {}: {e}", what.display()),
        )
        .hint("nothing was forked")
    };
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).map_err(|e| failed(path, &e))? {
            let file = entry.map_err(|e| failed(path, &e))?.path();
            let hidden = file
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
            if file.is_file() && !hidden {
                files.push(file);
            }
        }
        files.sort();
    } else {
        files.push(path.to_owned());
    }
    if files.is_empty() {
        return Err(failed(path, &"there is none in it"));
    }
    files
        .into_iter()
        .map(|file| {
            let size = std::fs::metadata(&file)
                .map_err(|e| failed(&file, &e))?
                .len();
            if size > MAX_CANDIDATE {
                return Err(failed(&file, &"it is larger than 32 MiB"));
            }
            let content = std::fs::read(&file).map_err(|e| failed(&file, &e))?;
            let suffix = file.extension().and_then(|e| e.to_str());
            Ok(Candidate {
                name: file
                    .file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                is_patch: matches!(suffix, Some("patch" | "diff")),
                content: content.into(),
            })
        })
        .collect()
}

async fn probe(
    candidate: &Candidate,
    fork: &SandboxName,
    start: Option<String>,
    args: &Args,
    world: &World,
) -> Result<Probed, ApiError> {
    let began = Instant::now();
    let script = if candidate.is_patch { APPLY } else { SCRIPT };
    let edit = ["sh", "-c", script].map(str::to_owned).to_vec();
    let edit = op(
        world,
        fork,
        "candidate",
        edit,
        args.timeout,
        Some(&candidate.content),
    )
    .await?;
    // What is left of it for the command.
    let timeout = match (args.timeout, edit.duration_ms) {
        (Some(all), Some(gone)) => Some(all.saturating_sub(gone).max(1)),
        (timeout, _) => timeout,
    };
    let mut probed = Probed {
        candidate: candidate.name.clone(),
        sandbox: fork.clone(),
        error: None,
        outcome: None,
        exit_code: None,
        duration_ms: 0,
        changed: Vec::new(),
        tail: String::new(),
        kept: args.keep,
    };
    let last = if edit.exit_code == Some(0) {
        let run = op(world, fork, "probe", args.command.clone(), timeout, None).await?;
        probed.outcome.clone_from(&run.outcome);
        probed.exit_code = run.exit_code;
        run
    } else {
        let error = match edit.outcome.as_deref() {
            Some("timed_out") => {
                probed.outcome.clone_from(&edit.outcome);
                "the candidate's own edit took too long"
            }
            _ => "the candidate does not apply",
        };
        probed.error = Some(error.to_owned());
        edit
    };
    probed.duration_ms = began.elapsed().as_millis();
    probed.tail = tail(world, fork, &last).await?;
    if let Some(start) = start {
        let changes: Vec<ChangeView> = world
            .client
            .get(&format!("/v1/diff?a={start}&b={fork}"))
            .await?;
        probed.changed = changes.into_iter().map(|change| change.path).collect();
    }
    let path = format!("/v1/sandboxes/{fork}");
    if probed.exit_code == Some(0) {
        let keep = format!("{path}/keep");
        let (): () = world.client.call(Method::POST, &keep, &()).await?;
        probed.kept = true;
    } else if !args.keep {
        let (): () = world.client.call(Method::DELETE, &path, &()).await?;
    }
    Ok(probed)
}

/// Runs a command in a fork to its end, with all of its input at once.
async fn op(
    world: &World,
    fork: &SandboxName,
    id: &str,
    argv: Vec<String>,
    timeout_ms: Option<u64>,
    input: Option<&Bytes>,
) -> Result<OpView, ApiError> {
    let id: OpId = parse(id)?;
    let spec = OpSpec {
        argv,
        cwd: None,
        env: std::collections::BTreeMap::new(),
        user: None,
        timeout_ms,
        tty: None,
        stdin: input.is_some(),
        replay: Replay::Never,
        role: Role::Command,
    };
    let path = format!("/v1/sandboxes/{fork}/ops/{}", escape(id.as_str()));
    let _known: OpView = world.client.call(Method::PUT, &path, &spec).await?;
    if let Some(input) = input {
        let chunk = protocol::control::MAX_STDIN_CHUNK;
        for offset in (0..input.len()).step_by(chunk) {
            let piece = input.slice(offset..(offset + chunk).min(input.len()));
            let url = format!("{path}/stdin?offset={offset}&eof=false");
            world.client.send(Method::PUT, &url, piece).await?;
        }
        let url = format!("{path}/stdin?offset={}&eof=true", input.len());
        world.client.send(Method::PUT, &url, Bytes::new()).await?;
    }
    world.client.get(&format!("{path}?wait=true")).await
}

/// Returns the last line that a command printed, on stderr if it said anything there.
async fn tail(world: &World, fork: &SandboxName, view: &OpView) -> Result<String, ApiError> {
    for (stream, length) in [
        ("stdout", view.stdout_bytes.0),
        ("stderr", view.stderr_bytes.0),
    ] {
        if length == 0 {
            continue;
        }
        let from = length.saturating_sub(TAIL_BYTES);
        let url = format!(
            "/v1/sandboxes/{fork}/ops/{}/output/{stream}?from={from}",
            escape(view.id.as_str())
        );
        let bytes =
            client::whole(world.client.send(Method::GET, &url, Bytes::new()).await?).await?;
        let text = String::from_utf8_lossy(&bytes);
        if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
            return Ok(line.trim().to_owned());
        }
    }
    Ok(String::new())
}

fn tell(probed: &Probed) {
    let exit = match (probed.exit_code, &probed.outcome) {
        (Some(code), _) => code.to_string(),
        (None, Some(outcome)) => outcome.replace('_', " "),
        (None, None) => "refused".to_owned(),
    };
    let fork = if probed.kept {
        format!("{}  ", probed.sandbox)
    } else {
        String::new()
    };
    let tail: String = probed.tail.escape_debug().take(60).collect();
    let name: String = probed.candidate.escape_debug().take(20).collect();
    print_line(&format!(
        "{name:<20}  {exit:<7}  {:>5.1}s  {:>7}  {fork}{tail}",
        probed.duration_ms as f64 / 1000.0,
        probed.changed.len()
    ));
}
