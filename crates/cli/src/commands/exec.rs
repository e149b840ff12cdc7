//! `durable exec`

use std::process::ExitCode;

use protocol::api::OpView;
use protocol::{ApiError, ErrorCode, OpSpec, Replay, Role, TtySize};

use super::{Outcome, World, environment, fresh_op, parse, print_json};
use crate::failure;
use crate::stream::{Follow, Input, terminal_size};

/// Run a command in a sandbox, once, and pass its output and exit code on.
///
/// The command is journaled before it starts. With `--op ID` it can be asked for again at any time: the same id attaches
/// to the same operation, whether it runs or has ended. Losing the daemon or this command costs nothing.
///
/// Example: durable exec ada --op build-1 -- cargo build
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The operation's id; made up where not given.
    #[arg(long, value_name = "ID")]
    op: Option<String>,
    /// What may be done when the outcome is lost: report it (`never`), run again (`safe`), or put the files back and run again (`rollback`).
    ///
    /// With `rollback`, the answers to its requests that may change something outside are recorded. The second run is given them for the same
    /// requests, in order, and these do not leave again; a request that differs is refused, and the operation is `lost`. It is `lost` also where
    /// an answer is not recorded, or another operation ran beside it; it is then said why, with the list of what was sent.
    #[arg(long, value_name = "POLICY", default_value = "never", value_parser = ["never", "safe", "rollback"])]
    replay: String,
    /// Kill it after this many seconds.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    timeout: Option<u64>,
    /// Send our stdin.
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Give it a terminal.
    #[arg(short = 't', long)]
    tty: bool,
    /// Start it and print its id, without waiting.
    #[arg(short = 'd', long, conflicts_with_all = ["interactive", "tty"])]
    detach: bool,
    /// Add to its environment; `K` alone takes our value.
    #[arg(long, short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Its working directory.
    #[arg(long, short = 'C', value_name = "DIR")]
    cwd: Option<String>,
    /// A user of the image, `uid` or `uid:gid`.
    #[arg(long, short = 'u', value_name = "USER")]
    user: Option<String>,
    /// Program and arguments. The image's own command where none is given.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Args {
    pub(super) fn after_loss(&self) -> &'static str {
        match self.op {
            Some(_) => {
                "run the command again: the operation goes on, and the same `--op` id attaches to it"
            }
            None => {
                "`durable ps NAME` tells whether it was begun: then it goes on, and `durable attach` shows it"
            }
        }
    }
}

pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is no number of seconds"))?;
    if !(0.001..=1e9).contains(&seconds) {
        return Err("it must lie between 0.001 and 1000000000".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded above"
    )]
    let millis = (seconds * 1000.0).round() as u64;
    Ok(millis)
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let tty = args
        .tty
        .then(|| terminal_size().unwrap_or(TtySize { rows: 24, cols: 80 }));
    let spec = OpSpec {
        argv: args.command,
        cwd: args.cwd,
        env: environment(&args.env)?,
        user: args.user,
        timeout_ms: args.timeout,
        tty,
        stdin: args.interactive,
        replay: match args.replay.as_str() {
            "safe" => Replay::Safe,
            "rollback" => Replay::Rollback,
            _ => Replay::Never,
        },
        role: Role::Command,
    };
    let on_terminal = args.tty && std::io::IsTerminal::is_terminal(&std::io::stdin());
    let input = match (args.interactive, on_terminal) {
        (false, _) => Input::None,
        (true, false) => Input::Forward,
        (true, true) => Input::Terminal,
    };
    let follow = Follow {
        client: world.client.clone(),
        sandbox: parse(&args.name)?,
        op: parse(&args.op.unwrap_or_else(fresh_op))?,
        input,
    };
    if args.detach {
        let path = format!(
            "/v1/sandboxes/{}/ops/{}",
            follow.sandbox,
            crate::stream::escape(follow.op.as_str())
        );
        let view: OpView = world.client.call(hyper::Method::PUT, &path, &spec).await?;
        if world.json {
            print_json(&view)?;
        } else {
            super::print_line(view.id.as_str());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let view = follow.exec(&spec).await?;
    finish(&view, world)
}

/// Says what the exit code cannot, and returns it.
pub(crate) fn finish(view: &OpView, world: &World) -> Result<ExitCode, ApiError> {
    if world.json {
        let line = serde_json::to_string(view)
            .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
        // stdout is the command's own.
        crate::stream::write(1, format!("{line}\n").as_bytes())?;
    } else {
        match (view.outcome.as_deref(), &view.error) {
            (Some("exited"), None) => {}
            (Some("signaled"), None) => failure::note(&format!(
                "operation {} was ended by signal {}",
                view.id,
                view.signal.unwrap_or(0)
            )),
            (outcome, error) => failure::note(&format!(
                "operation {} {}{}",
                view.id,
                outcome.unwrap_or("unknown").replace('_', " "),
                error.as_ref().map(|e| format!(": {e}")).unwrap_or_default()
            )),
        }
    }
    Ok(ExitCode::from(failure::exit_of(view)))
}
