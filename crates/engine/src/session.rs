//! Harness sessions: a task per session that keeps the harness running until it ends by itself.
//!
//! Every decision is an event first, so a daemon that comes back finds out where the session stands and goes on. A harness
//! that was lost is started again only when every command it had begun has settled and its transcript says so truly.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use harness::{CallResult, Dialect, Driver, Ended, Phase, Plan, PlanFile, Program, Start, Write};
use protocol::api::{OpView, StartSession};
use protocol::files::Kind;
use protocol::{
    ApiError, ErrorCode, Event, Offset, OpId, OpSpec, Origin, Outcome, Replay, Role, SessionId,
    Stream, TtySize, UnixMillis,
};
use serde::{Deserialize, Serialize};

use crate::error;
use crate::files::Refusal;
use crate::sandbox::{self, Attached, Handle, Request};
use crate::shared::Shared;
use crate::spool;

/// Resumptions in a row that saw no command and no model answer, before a session is given up.
const MAX_STUCK: u32 = 5;
/// The longest transcript that is read into memory.
const MAX_TRANSCRIPT: u64 = 512 << 20;

/// What a session must remember besides its events' own fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Detail {
    pub(crate) cwd: String,
    pub(crate) home: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tty: Option<TtySize>,
    pub(crate) openai: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The version in our layer; none where the image brings the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) env: BTreeMap<String, String>,
    /// Patterns of what is removed before the first start: conversations that this session must not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) forget: Vec<String>,
}

/// A session that is wanted, and of which nothing is journaled yet.
pub(crate) struct Opening {
    pub(crate) driver: &'static dyn Driver,
    pub(crate) args: Vec<String>,
    pub(crate) detail: Detail,
}

impl Opening {
    /// Checks what is asked for, but for what the driver says of it.
    pub(crate) fn new(shared: &Shared, ask: StartSession) -> Result<Self, ApiError> {
        let driver = driver(&ask.harness)?;
        let openai = match ask.model_api.as_deref() {
            None => driver.name() != "claude",
            Some("anthropic") => false,
            Some("openai") => true,
            Some(other) => {
                return Err(ApiError::new(
                    ErrorCode::Invalid,
                    format!("model API `{other}` is unknown"),
                )
                .hint("use `anthropic` or `openai`"));
            }
        };
        let installed = harness::install::list(&shared.harness_dir())
            .map_err(|e| error::internal("the installed harnesses cannot be listed", &e))?;
        let version = newest(installed, driver.name(), driver.default_version());
        let detail = Detail {
            cwd: ask.cwd.unwrap_or_else(|| "/workspace".to_owned()),
            home: "/root".to_owned(),
            tty: ask.tty,
            openai,
            model: ask.model,
            version,
            env: ask.env,
            forget: Vec::new(),
        };
        Ok(Self {
            driver,
            args: ask.args,
            detail,
        })
    }

    /// The session under an id, as its driver is asked about it.
    pub(crate) fn start(&self, id: &SessionId) -> Start {
        start_of(id, &self.args, crate::shared::now(), &self.detail)
    }

    /// Refuses a program of the image's own that is not there, as the sandbox is now. What cannot be looked at is not refused.
    ///
    /// A stopped sandbox is started for it.
    pub(crate) async fn find_program(&self, handle: &Handle) -> Result<(), ApiError> {
        if self.detail.version.is_some() {
            return Ok(());
        }
        let name = self.driver.name();
        let spec = handle.ask(|reply| Request::Spec { reply }).await?;
        let path = self.detail.env.get("PATH").or(spec.env.get("PATH"));
        let files = handle.files(None).await?;
        for dir in path.map_or(sandbox::PATH, String::as_str).split(':') {
            let dir = if dir.is_empty() { "." } else { dir };
            let at = files.path(format!("{dir}/{name}").as_bytes())?;
            match files.stat(at, true).await {
                Ok(found) if found.kind == Kind::File && found.mode & 0o111 != 0 => return Ok(()),
                Err(Refusal { error, .. })
                    if !matches!(error.code, ErrorCode::NotFound | ErrorCode::Denied) =>
                {
                    tracing::debug!(sandbox = %handle.name, error = %error.message, "no program is looked for");
                    return Ok(());
                }
                _ => {}
            }
        }
        let message = format!(
            "`{name}` is not installed, and not on PATH in sandbox `{}` either",
            handle.name
        );
        Err(ApiError::new(ErrorCode::Invalid, message).hint(format!(
            "nothing was begun; `durable harness install {name}` puts it into every sandbox"
        )))
    }

    /// Returns its first event under a new id. What the driver refuses is told here, before anything is journaled.
    pub(crate) fn event(&self) -> Result<(SessionId, Event), ApiError> {
        let id = fresh_id()?;
        self.driver
            .start(&self.start(&id))
            .map_err(|e| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
        let event = Event::SessionStarted {
            session: id.clone(),
            harness: self.driver.name().to_owned(),
            args: self.args.clone(),
            op: run_id(&id, 1)?,
            detail: serde_json::to_value(&self.detail)
                .map_err(|e| error::internal("the session cannot be written", &e))?,
        };
        Ok((id, event))
    }
}

/// Finds a driver by its name.
pub(crate) fn driver(name: &str) -> Result<&'static dyn Driver, ApiError> {
    harness::driver(name).map_err(|e| {
        ApiError::new(ErrorCode::Invalid, e.to_string())
            .hint("`durable harness ls` lists what is installed")
    })
}

/// Journals a new session and starts its task.
pub(crate) async fn begin(handle: &Handle, ask: StartSession) -> Result<SessionId, ApiError> {
    let opening = Opening::new(&handle.shared, ask)?;
    let view = handle.view().await?;
    if let Some(running) = view.session {
        return Err(ApiError::new(
            ErrorCode::Conflict,
            format!("session `{running}` goes on in sandbox `{}`", handle.name),
        )
        .hint(format!(
            "`durable attach {}` shows it; or use another sandbox",
            handle.name
        )));
    }
    let (id, event) = opening.event()?;
    handle.start().await?;
    opening.find_program(handle).await?;
    handle.record(vec![event]).await?;
    spawn(handle.clone(), id.clone());
    Ok(id)
}

/// Starts the task of a session that the journal says goes on.
pub(crate) fn spawn(handle: Handle, id: SessionId) {
    tokio::spawn(async move {
        if let Err(problem) = keep(&handle, &id).await {
            tracing::error!(sandbox = %handle.name, session = %id, error = %problem.message, "the session ends");
            let ended = Event::SessionEnded {
                session: id,
                error: Some(problem.message),
            };
            if let Err(unwritten) = handle.record(vec![ended]).await {
                tracing::error!(error = %unwritten.message, "and its end could not be journaled");
            }
        }
    });
}

async fn keep(handle: &Handle, id: &SessionId) -> Result<(), ApiError> {
    loop {
        let session = handle
            .ask(|reply| Request::Session {
                session: id.clone(),
                reply,
            })
            .await?;
        if session.ended.is_some() {
            return Ok(());
        }
        let driver = harness::driver(&session.harness)
            .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
        let detail: Detail = serde_json::from_value(session.detail.clone())
            .map_err(|e| error::internal("the session's detail is not readable", &e))?;
        let start = start_of(id, &session.args, session.began_at, &detail);
        let mut attached = match handle.attach(session.op.clone()).await {
            Ok(attached) => attached,
            Err(missing) if missing.code == ErrorCode::NotFound => {
                let plan = if session.attempt == 1 {
                    handle.take_endpoint(id).await?;
                    forget(handle, &detail.forget).await?;
                    driver.start(&start)
                } else {
                    let (phase, _) = repair(handle, driver, &start).await?;
                    driver.resume(&start, phase)
                };
                let plan = plan.map_err(|e| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
                run(handle, session.op.clone(), plan, &detail).await?
            }
            Err(other) => return Err(other),
        };
        let view = attached.settled().await?;
        let outcome = outcome_of(&view);
        let wants = outcome.map_or(Ended::Resume, |outcome| driver.ended(&start, &outcome));
        if wants == Ended::Done {
            let ended = Event::SessionEnded {
                session: id.clone(),
                error: None,
            };
            return handle.record(vec![ended]).await.map(drop);
        }
        if session.stuck >= MAX_STUCK {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!(
                    "{} was lost {MAX_STUCK} times in a row without getting on",
                    driver.name()
                ),
            ));
        }
        // A sandbox that is being stopped or restored answers when it is up again.
        handle.start().await?;
        commands_settled(handle, driver, &start).await?;
        let (_, repaired) = repair(handle, driver, &start).await?;
        let attempt = session.attempt + 1;
        let resumed = Event::SessionResumed {
            session: id.clone(),
            attempt,
            op: run_id(id, attempt)?,
            repaired,
        };
        handle.record(vec![resumed]).await?;
    }
}

/// Waits until every command whose result the transcript lacks has settled. One that the model put into the background
/// may run for days; it goes on, and is told as running. One that the transcript does not know yet is asked for again by
/// the resumed harness under the same id, and attached to then.
async fn commands_settled(
    handle: &Handle,
    driver: &dyn Driver,
    start: &Start,
) -> Result<(), ApiError> {
    let Some(at) = driver.transcript(start) else {
        return Ok(());
    };
    let Some((_, _, transcript)) = newest_file(handle, &at.dir, &at.suffix).await? else {
        return Ok(());
    };
    let wanted = std::cell::RefCell::new(Vec::new());
    // Asked for its calls alone; nothing of it is written.
    let _dry = driver.repair(start, &transcript, &|call| {
        if call.input["run_in_background"] != serde_json::Value::Bool(true) {
            wanted.borrow_mut().push(call.id.clone());
        }
        CallResult::NotOurs
    });
    let wanted = wanted.into_inner();
    loop {
        let mut open = handle.ask(|reply| Request::OpenShimOps { reply }).await?;
        open.retain(|op| wanted.iter().any(|id| id == op.as_str()));
        if open.is_empty() {
            return Ok(());
        }
        for op in open {
            handle.attach(op).await?.settled().await?;
        }
    }
}

/// Removes the conversations that a session must not know. Done again by a daemon that does not find the session's start.
async fn forget(handle: &Handle, patterns: &[String]) -> Result<(), ApiError> {
    if patterns.is_empty() {
        return Ok(());
    }
    let mut args = vec!["forget"];
    args.extend(patterns.iter().map(String::as_str));
    let (ok, _, err) = helper(handle, "forget", &args, None).await?;
    if ok {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::Unavailable,
        format!("old conversations cannot be removed: {}", err.trim()),
    ))
}

/// Writes what a plan needs and starts its program.
async fn run(handle: &Handle, op: OpId, plan: Plan, detail: &Detail) -> Result<Attached, ApiError> {
    let mut files = Vec::new();
    for file in plan.files {
        let old = match file.write {
            Write::Replace => None,
            Write::Keep | Write::Merge => read_file(handle, &file.path).await?,
        };
        let content = file
            .content(old.as_deref())
            .map_err(|e| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
        if let Some(bytes) = content {
            files.push(PlanFile {
                bytes,
                write: Write::Replace,
                ..file
            });
        }
    }
    write_files(handle, &files).await?;
    let mut env = detail.env.clone();
    env.extend(plan.env);
    let spec = OpSpec {
        argv: plan.argv,
        cwd: Some(detail.cwd.clone()),
        env,
        user: None,
        timeout_ms: None,
        tty: detail.tty,
        stdin: plan.stdin || detail.tty.is_some(),
        replay: Replay::Never,
        role: Role::Harness,
    };
    handle.exec(op, spec, Origin::Daemon).await
}

/// Reads the transcript, gives every dangling call its true result and writes it back, where that changed something.
async fn repair(
    handle: &Handle,
    driver: &dyn Driver,
    start: &Start,
) -> Result<(Phase, Vec<OpId>), ApiError> {
    let Some(at) = driver.transcript(start) else {
        return Ok((Phase::Empty, Vec::new()));
    };
    let Some((path, mode, old)) = newest_file(handle, &at.dir, &at.suffix).await? else {
        return Ok((Phase::Empty, Vec::new()));
    };
    let calls = handle.ops().await?;
    let known: BTreeMap<&str, &OpView> = calls.iter().map(|v| (v.id.as_str(), v)).collect();
    let dir = handle.state_dir();
    let repaired = driver.repair(start, &old, &|call| {
        result_of(known.get(call.id.as_str()).copied(), &dir)
    });
    let mut files = repaired.files;
    if repaired.bytes.is_empty() {
        let (ok, _, err) = helper(handle, "remove", &["remove", &path], None).await?;
        if !ok {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("cannot remove {path} in the sandbox: {}", err.trim()),
            ));
        }
    } else if repaired.bytes != old {
        files.push(PlanFile {
            path,
            mode,
            bytes: repaired.bytes,
            write: Write::Replace,
        });
    }
    write_files(handle, &files).await?;
    let ids = repaired
        .repaired
        .iter()
        .filter_map(|id| id.parse().ok())
        .collect();
    Ok((repaired.phase, ids))
}

/// What the journal knows of a tool call, in the driver's words.
fn result_of(view: Option<&OpView>, dir: &std::path::Path) -> CallResult {
    let Some(view) = view else {
        return CallResult::NotStarted;
    };
    // Both ends: some harnesses show the first part of a long output, some the last.
    let read = |stream, length: Offset| {
        let mut reader = spool::Reader::new(dir, &view.id, view.attempt, stream);
        let mut part = |from: u64, to: u64| {
            let length = usize::try_from(to - from).unwrap_or(usize::MAX);
            reader.read(from, length).unwrap_or_default()
        };
        let half = harness::OUTPUT_KEPT as u64 / 4;
        if length.0 <= 2 * half {
            return part(0, length.0);
        }
        let head = part(0, half);
        harness::shorten(&head, length.0 - 2 * half, &part(length.0 - half, length.0))
    };
    let mut output = read(Stream::Stdout, view.stdout_bytes);
    output.extend(read(Stream::Stderr, view.stderr_bytes));
    match outcome_of(view) {
        Some(Outcome::Lost) => CallResult::Lost { output },
        Some(outcome) => CallResult::Settled { outcome, output },
        None => CallResult::Running { output },
    }
}

fn outcome_of(view: &OpView) -> Option<Outcome> {
    Some(match view.outcome.as_deref()? {
        "exited" => Outcome::Exited {
            exit_code: view.exit_code?,
        },
        "signaled" => Outcome::Signaled {
            signal: view.signal?,
        },
        "timed_out" => Outcome::TimedOut,
        "cancelled" => Outcome::Cancelled,
        _ => Outcome::Lost,
    })
}

/// Runs one of our own helpers inside the sandbox and returns how it ended and what it printed.
async fn helper(
    handle: &Handle,
    what: &str,
    args: &[&str],
    input: Option<Vec<u8>>,
) -> Result<(bool, Vec<u8>, String), ApiError> {
    let input = input.map_or(Input::None, |bytes| Input::Bytes(bytes.into()));
    run_helper(handle, helper_id(what)?, args, input, Replay::Safe).await
}

/// What a helper reads.
pub(crate) enum Input {
    None,
    Bytes(Bytes),
    File(std::fs::File),
}

pub(crate) fn helper_id(what: &str) -> Result<OpId, ApiError> {
    format!("~{what}-{:012x}", rand::random::<u64>() >> 16)
        .parse()
        .map_err(|e| error::internal("no operation id", &e))
}

/// Runs a helper under an id; returns whether it succeeded, its stdout and its stderr.
pub(crate) async fn run_helper(
    handle: &Handle,
    id: OpId,
    args: &[&str],
    input: Input,
    replay: Replay,
) -> Result<(bool, Vec<u8>, String), ApiError> {
    let argv = [protocol::paths::BIN, "__box"]
        .iter()
        .chain(args)
        .map(|s| (*s).to_owned())
        .collect();
    let spec = OpSpec {
        argv,
        cwd: Some("/".to_owned()),
        env: BTreeMap::new(),
        user: None,
        timeout_ms: None,
        tty: None,
        stdin: !matches!(input, Input::None),
        replay,
        role: Role::Internal,
    };
    let mut attached = handle.exec(id.clone(), spec, Origin::Daemon).await?;
    match input {
        Input::None => {}
        Input::Bytes(bytes) => feed(handle, &mut attached, bytes).await?,
        Input::File(file) => feed_file(handle, &mut attached, file).await?,
    }
    let view = attached.settled().await?;
    let dir = handle.state_dir();
    let read = |stream, length: Offset| {
        if length.0 > MAX_TRANSCRIPT {
            return Err(ApiError::new(
                ErrorCode::Invalid,
                format!(
                    "{} in the sandbox is over {MAX_TRANSCRIPT} bytes",
                    args.join(" ")
                ),
            ));
        }
        let length = usize::try_from(length.0).unwrap_or(usize::MAX);
        spool::Reader::new(&dir, &id, view.attempt, stream)
            .read(0, length)
            .map_err(|e| error::internal("the spool is not readable", &e))
    };
    let out = read(Stream::Stdout, view.stdout_bytes)?;
    let err = String::from_utf8_lossy(&read(Stream::Stderr, view.stderr_bytes)?).into_owned();
    Ok((view.exit_code == Some(0), out, err))
}

/// Sends all of `data` and the end of input, waiting for room.
pub(crate) async fn feed(
    handle: &Handle,
    attached: &mut Attached,
    data: Bytes,
) -> Result<(), ApiError> {
    let id = attached.view.id.clone();
    let mut at = 0;
    loop {
        let end = (at + protocol::control::MAX_STDIN_CHUNK).min(data.len());
        let last = end == data.len();
        let chunk = data.slice(at..end);
        if !handle.offer(&id, Offset(at as u64), chunk, last).await? || last {
            return Ok(());
        }
        let wanted = Offset(end as u64);
        let state = attached
            .stdin
            .wait_for(|s| s.closed || s.offset >= wanted)
            .await
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "the sandbox was let go"))?;
        if state.closed {
            return Ok(());
        }
        at = end;
    }
}

/// Sends a whole file and the end of input, waiting for room; no more of it is in memory than one chunk.
pub(crate) async fn feed_file(
    handle: &Handle,
    attached: &mut Attached,
    file: std::fs::File,
) -> Result<(), ApiError> {
    use tokio::io::AsyncReadExt as _;
    let unreadable = |e: std::io::Error| error::internal("the input is not readable", &e);
    let id = attached.view.id.clone();
    let mut file = tokio::fs::File::from_std(file);
    let mut at = 0_u64;
    loop {
        let mut chunk = Vec::with_capacity(protocol::control::MAX_STDIN_CHUNK);
        let limit = protocol::control::MAX_STDIN_CHUNK as u64;
        (&mut file)
            .take(limit)
            .read_to_end(&mut chunk)
            .await
            .map_err(unreadable)?;
        let last = chunk.is_empty();
        let end = at + chunk.len() as u64;
        if !handle.offer(&id, Offset(at), chunk.into(), last).await? || last {
            return Ok(());
        }
        at = end;
        failpoint::hit("mid_compose");
        let state = attached
            .stdin
            .wait_for(|s| s.closed || s.offset >= Offset(end))
            .await
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "the sandbox was let go"))?;
        if state.closed {
            return Ok(());
        }
    }
}

async fn read_file(handle: &Handle, path: &str) -> Result<Option<Vec<u8>>, ApiError> {
    let (ok, bytes, _) = helper(handle, "read", &["read", path], None).await?;
    Ok(ok.then_some(bytes))
}

async fn write_files(handle: &Handle, files: &[PlanFile]) -> Result<(), ApiError> {
    if files.is_empty() {
        return Ok(());
    }
    let archive = archive(files).map_err(|e| error::internal("no archive could be made", &e))?;
    let (ok, _, err) = helper(handle, "write", &["tar-in", "/"], Some(archive)).await?;
    if ok {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::Unavailable,
        format!("cannot write into the sandbox: {}", err.trim()),
    ))
}

fn archive(files: &[PlanFile]) -> std::io::Result<Vec<u8>> {
    let mut out = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(file.bytes.len() as u64);
        header.set_mode(file.mode);
        header.set_entry_type(tar::EntryType::Regular);
        let now = crate::shared::now().0 / 1000;
        header.set_mtime(now);
        out.append_data(
            &mut header,
            file.path.trim_start_matches('/'),
            file.bytes.as_slice(),
        )?;
    }
    out.into_inner()
}

/// Returns path, mode and content of the last modified file in `dir` whose name ends with `suffix`.
async fn newest_file(
    handle: &Handle,
    dir: &str,
    suffix: &str,
) -> Result<Option<(String, u32, Vec<u8>)>, ApiError> {
    let (ok, bytes, _) = helper(handle, "read", &["tar-out", dir], None).await?;
    if !ok {
        return Ok(None);
    }
    let bad = |e: std::io::Error| error::internal("the sandbox's archive is not readable", &e);
    let mut best: Option<(String, u32, Vec<u8>)> = None;
    let mut best_at = 0;
    let mut archive = tar::Archive::new(bytes.as_slice());
    for entry in archive.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let name = entry.path().map_err(bad)?;
        let Some(name) = name.file_name().and_then(|n| n.to_str()).map(str::to_owned) else {
            continue;
        };
        let modified = entry.header().mtime().map_err(bad)?;
        // Within one second the name decides: it begins with a time in every harness that makes several.
        let newer = best.as_ref().is_none_or(|(path, ..)| {
            let known = path.rsplit('/').next().unwrap_or_default();
            (modified, name.as_str()) > (best_at, known)
        });
        if entry.header().entry_type().is_file() && name.ends_with(suffix) && newer {
            best_at = modified;
            let mode = entry.header().mode().map_err(bad)?;
            let mut content = Vec::new();
            entry.read_to_end(&mut content).map_err(bad)?;
            best = Some((
                format!("{}/{name}", dir.trim_end_matches('/')),
                mode,
                content,
            ));
        }
    }
    Ok(best)
}

pub(crate) fn start_of(
    id: &SessionId,
    args: &[String],
    started: UnixMillis,
    detail: &Detail,
) -> Start {
    Start {
        args: args.to_vec(),
        session: id.clone(),
        started,
        cwd: detail.cwd.clone(),
        home: detail.home.clone(),
        tty: detail.tty.is_some(),
        dialect: if detail.openai {
            Dialect::OpenAi
        } else {
            Dialect::Anthropic
        },
        model: detail.model.clone(),
        program: match &detail.version {
            Some(version) => Program::Layer {
                version: version.clone(),
            },
            None => Program::Path,
        },
    }
}

/// The tested version where it is installed, else the last one installed.
fn newest(installed: Vec<harness::install::Installed>, name: &str, tested: &str) -> Option<String> {
    let mut versions: Vec<String> = installed
        .into_iter()
        .filter(|i| i.name == name)
        .map(|i| i.version)
        .collect();
    versions.sort();
    if versions.iter().any(|v| v == tested) {
        Some(tested.to_owned())
    } else {
        versions.pop()
    }
}

fn run_id(session: &SessionId, attempt: u32) -> Result<OpId, ApiError> {
    let short: String = session.as_str().chars().take(8).collect();
    format!("harness-{short}.{attempt}")
        .parse()
        .map_err(|e| error::internal("no operation id", &e))
}

pub(crate) fn fresh_id() -> Result<SessionId, ApiError> {
    uuid()
        .parse()
        .map_err(|e| error::internal("no session id", &e))
}

/// A random (version 4) UUID: harnesses want their session ids in this form.
fn uuid() -> String {
    let mut b: [u8; 16] = rand::random();
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// How long a client's question about a session is held open before it is answered as it stands.
pub(crate) const LONG_POLL: Duration = Duration::from_secs(30);
