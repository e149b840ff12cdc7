//! `durable run`

use std::path::PathBuf;
use std::process::ExitCode;

use hyper::Method;
use protocol::api::{SandboxView, SessionView, StartSession};
use protocol::{
    ApiError, ErrorCode, OpSpec, Replay, Role, SandboxName, SandboxSpec, SessionId, TtySize,
};

use super::create::Shape;
use super::inside::{Lines, understood};
use super::{Outcome, World, environment, fresh_op, parse};
use crate::failure;
use crate::stream::{Follow, Input, terminal_size};

/// Run a coding agent in a sandbox and keep it running: `claude` or `pi`, unmodified, with its own arguments.
///
/// The sandbox is created where it does not exist; one that does must be as it is asked for here. Whatever is killed (the
/// agent, the daemon, this command), the work goes on: commands run once, and the agent is resumed with their true results.
/// Any other program runs as a plain operation.
///
/// Example: durable run --name ada --dir . --model-key-env ANTHROPIC_API_KEY -- claude -p 'fix the tests'
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The sandbox; made up where not given.
    #[arg(long)]
    name: Option<String>,
    /// Copy this directory's content to /workspace when the sandbox is created.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    how: How,
    /// Start it and print the sandbox's name, without waiting.
    #[arg(short = 'd', long, conflicts_with = "tty")]
    detach: bool,
    /// The agent and its arguments.
    #[arg(last = true, required = true, value_name = "AGENT ARGS")]
    command: Vec<String>,
}

/// How an agent is started.
#[derive(clap::Args)]
pub(crate) struct How {
    /// Where model requests go; where not given, as before, and at first the provider's own address.
    #[arg(long, value_name = "URL")]
    pub(super) model_url: Option<String>,
    /// The variable of our environment that holds the real key. It stays on the host.
    #[arg(long, value_name = "VAR")]
    model_key_env: Option<String>,
    /// What the endpoint speaks; where not given, what the agent usually does, or the source's did.
    #[arg(long, value_name = "API", value_parser = ["anthropic", "openai"])]
    pub(super) model_api: Option<String>,
    /// The model to ask for.
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Add to the agent's environment; `K` alone takes our value.
    #[arg(long, short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Give it a terminal.
    #[arg(short = 't', long)]
    tty: bool,
}

impl How {
    /// Whether anything was said of it.
    pub(super) fn is_given(&self) -> bool {
        self.tty
            || !self.env.is_empty()
            || [
                &self.model_url,
                &self.model_key_env,
                &self.model_api,
                &self.model,
            ]
            .iter()
            .any(|given| given.is_some())
    }

    /// Reads the key.
    pub(super) fn key(&self) -> Result<Option<String>, ApiError> {
        let Some(var) = &self.model_key_env else {
            return Ok(None);
        };
        match std::env::var(var) {
            Ok(key) if !key.trim().is_empty() => Ok(Some(key)),
            _ => Err(ApiError::new(
                ErrorCode::Invalid,
                format!("--model-key-env {var}: the variable is not set"),
            )
            .hint(format!(
                "export {var} with the key in it; it stays on this host"
            ))),
        }
    }

    /// The size of the terminal that it is to get.
    pub(super) fn tty(&self) -> Option<TtySize> {
        self.tty
            .then(|| terminal_size().unwrap_or(TtySize { rows: 24, cols: 80 }))
    }

    /// What is added to its environment.
    pub(super) fn env(&self) -> Result<std::collections::BTreeMap<String, String>, ApiError> {
        environment(&self.env)
    }
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| format!("run-{:08x}", rand::random::<u32>()));
    let sandbox: SandboxName = parse(&name)?;
    let is_harness = harness::driver(&args.command[0]).is_ok();
    // Everything that can be wrong with the request is found out before anything is made.
    let session = if is_harness {
        Some(session(&args)?)
    } else {
        None
    };
    if let Some(dir) = &args.dir
        && !dir.is_dir()
    {
        return Err(ApiError::new(
            ErrorCode::Invalid,
            format!("--dir {} is no directory", dir.display()),
        ));
    }
    let is_new = ensure(world, &sandbox, &args).await?;
    let input = match (
        args.how.tty,
        std::io::IsTerminal::is_terminal(&std::io::stdin()),
    ) {
        (true, true) => Input::Terminal,
        (true, false) => Input::Forward,
        (false, _) => Input::None,
    };
    let Some(ask) = session else {
        let spec = OpSpec {
            cwd: None,
            env: args.how.env()?,
            user: None,
            timeout_ms: None,
            tty: args.how.tty(),
            stdin: args.how.tty,
            argv: args.command,
            replay: Replay::Never,
            role: Role::Command,
        };
        let follow = Follow {
            client: world.client.clone(),
            sandbox: sandbox.clone(),
            op: parse(&fresh_op())?,
            input,
        };
        let view = follow.exec(&spec).await;
        if is_new && is_refused(&view) {
            undo(world, &sandbox).await;
        }
        return super::exec::finish(&view?, world);
    };
    let url = format!("/v1/sandboxes/{sandbox}/sessions");
    let view: Result<SessionView, ApiError> = world.client.call(Method::POST, &url, &ask).await;
    if is_new && is_refused(&view) {
        undo(world, &sandbox).await;
    }
    let view = view?;
    if args.detach {
        if world.json {
            super::print_json(&view)?;
        } else {
            super::print_line(sandbox.as_str());
        }
        return Ok(ExitCode::SUCCESS);
    }
    failure::note(&format!(
        "{} runs in sandbox {sandbox} (session {})",
        view.harness, view.id
    ));
    follow_session(world, &sandbox, &view.id, input).await
}

fn session(args: &Args) -> Result<StartSession, ApiError> {
    let how = &args.how;
    let key = how.key()?;
    let harness = &args.command[0];
    let url = how
        .model_url
        .clone()
        .or_else(|| key.as_ref().map(|_| usual_url(harness, how).to_owned()));
    Ok(StartSession {
        harness: harness.clone(),
        args: args.command[1..].to_vec(),
        cwd: None,
        tty: how.tty(),
        model_url: url,
        model_key: key,
        model_api: how.model_api.clone(),
        model: how.model.clone(),
        env: how.env()?,
    })
}

/// Where the provider itself is asked.
fn usual_url(harness: &str, how: &How) -> &'static str {
    let openai = how.model_api.as_deref() == Some("openai");
    if harness == "claude" || (how.model_api.is_some() && !openai) {
        "https://api.anthropic.com"
    } else {
        "https://api.openai.com"
    }
}

/// Creates the sandbox where it does not exist, with the directory's content in it; returns whether it did.
async fn ensure(world: &World, sandbox: &SandboxName, args: &Args) -> Result<bool, ApiError> {
    let ask = args.shape.ask(sandbox.as_str())?;
    let created: Result<SandboxView, ApiError> =
        world.client.call(Method::POST, "/v1/sandboxes", &ask).await;
    match created {
        Ok(_) => {}
        // It is there: then it is used as it is, and its files are not touched.
        Err(error) if error.code == ErrorCode::Conflict && args.name.is_some() => {
            let Some(spec) = spec_of(world, sandbox).await? else {
                // Something else of that name is in the way.
                return Err(error);
            };
            args.shape.must_fit(sandbox, &spec)?;
            if let Some(dir) = &args.dir {
                failure::note(&format!(
                    "sandbox {sandbox} is there already: {} is not copied into it again",
                    dir.display()
                ));
            }
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    let Some(dir) = &args.dir else {
        return Ok(true);
    };
    let copied = super::cp::put(world, sandbox, dir, "/workspace", None).await;
    if copied.is_err() {
        undo(world, sandbox).await;
    }
    copied.map(|()| true)
}

/// Returns what a sandbox was created with, as its journal's first event says.
async fn spec_of(world: &World, sandbox: &SandboxName) -> Result<Option<SandboxSpec>, ApiError> {
    let address = format!("/v1/sandboxes/{sandbox}/journal?from=1");
    let mut journal = match Lines::open(world, &address).await {
        Err(missing) if missing.code == ErrorCode::NotFound => return Ok(None),
        journal => journal?,
    };
    let Some(first) = journal.next().await? else {
        return Ok(None);
    };
    let first: serde_json::Value = understood(&first)?;
    understood(first["spec"].to_string().as_bytes()).map(Some)
}

/// Whether the daemon knows that nothing was begun.
fn is_refused<T>(answer: &Result<T, ApiError>) -> bool {
    matches!(answer, Err(error) if error.code == ErrorCode::Invalid)
}

/// Removes a sandbox that was made for what was then refused.
async fn undo(world: &World, sandbox: &SandboxName) {
    let removed: Result<(), ApiError> = world
        .client
        .call(Method::DELETE, &format!("/v1/sandboxes/{sandbox}"), &())
        .await;
    if let Err(left) = removed {
        failure::note(&format!("sandbox {sandbox} is left: {}", left.message));
    }
}

/// Follows a session over every resumption to its end, and returns the agent's own exit code.
pub(crate) async fn follow_session(
    world: &World,
    sandbox: &SandboxName,
    session: &SessionId,
    input: Input,
) -> Outcome {
    let url = format!("/v1/sandboxes/{sandbox}/sessions/{session}");
    let mut view: SessionView = patient(world, &url).await?;
    let mut shown = 0;
    loop {
        let mut last = None;
        while let Some(op) = view.runs.get(shown) {
            if shown > 0 {
                failure::note(&format!(
                    "{} was lost and is resumed (attempt {})",
                    view.harness,
                    shown + 1
                ));
            }
            let follow = Follow {
                client: world.client.clone(),
                sandbox: sandbox.clone(),
                op: op.clone(),
                input,
            };
            last = started(&follow, world, &url).await?;
            shown += 1;
            view = patient(world, &url).await?;
        }
        let after = view.attempt;
        let now: SessionView = patient(world, &format!("{url}?after={after}")).await?;
        if now.ended && now.runs.len() <= shown {
            if let Some(error) = now.error {
                return Err(ApiError::new(
                    ErrorCode::Unavailable,
                    format!("the session was given up: {error}"),
                )
                .hint(if error.contains("not on PATH") {
                    format!(
                        "`durable harness install {}` puts it into every sandbox",
                        now.harness
                    )
                } else {
                    format!("`durable log {sandbox}` shows how it went")
                }));
            }
            let code = last.as_ref().or(None).map(failure::exit_of);
            return match code {
                Some(code) => Ok(ExitCode::from(code)),
                None => {
                    let op = now.runs.last().map(|op| crate::stream::escape(op.as_str()));
                    let url = format!("/v1/sandboxes/{sandbox}/ops/{}", op.unwrap_or_default());
                    let view: protocol::api::OpView = world.client.get(&url).await?;
                    Ok(ExitCode::from(failure::exit_of(&view)))
                }
            };
        }
        view = now;
    }
}

/// The run may be announced a moment before its operation is journaled. `None`: the session ended without it.
async fn started(
    follow: &Follow,
    world: &World,
    url: &str,
) -> Result<Option<protocol::api::OpView>, ApiError> {
    loop {
        match follow.attach([0, 0]).await {
            Err(error) if error.code == ErrorCode::NotFound => {
                if patient(world, url).await?.ended {
                    return Ok(None);
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(error) if error.code == ErrorCode::Unavailable => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            other => return other.map(Some),
        }
    }
}

/// Asks until the daemon is there.
async fn patient(world: &World, url: &str) -> Result<SessionView, ApiError> {
    let mut left = 100;
    loop {
        match world.client.get(url).await {
            Err(error) if error.code == ErrorCode::Unavailable && left > 0 => {
                left -= 1;
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            other => return other,
        }
    }
}
