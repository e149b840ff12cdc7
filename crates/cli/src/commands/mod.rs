//! The command line: one file a command, its arguments and its help in it.

mod approvals;
mod attach;
mod blame;
mod cat;
mod checkpoint;
mod compose;
mod cp;
mod create;
mod diff;
mod doctor;
mod effects;
mod exec;
mod fork;
mod harness;
mod image;
mod inside;
mod log;
mod ls;
mod op;
mod policy;
mod probe;
mod ps;
mod read;
mod rewind;
mod rm;
mod run;
mod secret;
mod serve;
mod stop;
mod store;
mod watch;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use protocol::{ApiError, ErrorCode, IdError};
use serde::Serialize;

use crate::client::Client;
use crate::failure::{self, Form};

/// Sandboxes for coding agents that survive the loss of any process.
#[derive(Parser)]
#[command(
    name = "durable",
    version,
    after_help = "Exit codes: an operation's own; 125 when durable itself failed, 124 timed out, 123 lost (outcome unknown), 130 cancelled, 128+n ended by signal n."
)]
struct Cli {
    /// Where sandboxes, journals and output are kept.
    #[arg(long, global = true, env = "DURABLE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Answer with JSON, one object a line; errors too.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Create(create::Args),
    Run(run::Args),
    Exec(exec::Args),
    Attach(attach::Args),
    Ps(ps::Args),
    Log(log::Args),
    Op(op::Args),
    Read(read::Args),
    Cp(cp::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Watch(watch::Args),
    Checkpoint(checkpoint::Args),
    Fork(fork::Args),
    Rewind(rewind::Args),
    Diff(diff::Args),
    Compose(compose::Args),
    Blame(blame::Args),
    Probe(probe::Args),
    Stop(stop::Args),
    Rm(rm::Args),
    Policy(policy::Args),
    Secret(secret::Args),
    Effects(effects::Args),
    Approvals(approvals::Args),
    Approve(approvals::Approve),
    Refuse(approvals::Refuse),
    Harness(harness::Args),
    Image(image::Args),
    Push(store::PushArgs),
    Pull(store::PullArgs),
    Store(store::Args),
    Doctor(doctor::Args),
}

impl Command {
    /// What to do when the daemon was lost in the middle, and nobody knows how far it had got.
    fn after_loss(&self) -> &'static str {
        match self {
            Self::Exec(args) => args.after_loss(),
            Self::Run(_) | Self::Attach(_) => {
                "what was begun goes on: `durable ps` names its sandbox, `durable attach` shows it"
            }
            Self::Create(_) | Self::Fork(_) | Self::Pull(_) => {
                "`durable ps` tells whether it was made; if it was not, run the command again"
            }
            Self::Checkpoint(_) | Self::Rewind(_) | Self::Compose(_) => {
                "`durable log` tells whether it was done; if it was not, run the command again"
            }
            Self::Probe(_) => "run the command again: the forks of a probe go with the daemon",
            Self::Approve(_) | Self::Refuse(_) => {
                "`durable approvals` tells whether it still waits; a word that was given is kept"
            }
            Self::Stop(_)
            | Self::Rm(_)
            | Self::Cp(_)
            | Self::Push(_)
            | Self::Policy(_)
            | Self::Secret(_) => "run the command again: what is done already stays done",
            Self::Ps(_)
            | Self::Log(_)
            | Self::Op(_)
            | Self::Read(_)
            | Self::Ls(_)
            | Self::Cat(_)
            | Self::Watch(_)
            | Self::Diff(_)
            | Self::Blame(_)
            | Self::Effects(_)
            | Self::Approvals(_)
            | Self::Image(_)
            | Self::Harness(_)
            | Self::Serve(_)
            | Self::Store(_)
            | Self::Doctor(_) => "run the command again",
        }
    }
}

/// What every command gets.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) json: bool,
    /// What to do where the daemon is lost.
    after_loss: &'static str,
}

impl World {
    /// Tells an error, in the form that is wanted; returns the exit code that stands for it.
    fn tell(&self, error: &ApiError) -> ExitCode {
        let form = if self.json { Form::Json } else { Form::Text };
        if crate::again::broken(error) && error.hint.is_none() {
            return failure::tell(&error.clone().hint(self.after_loss), form);
        }
        failure::tell(error, form)
    }
}

type Outcome = Result<ExitCode, ApiError>;

/// Reads the command line and runs the command.
pub(crate) fn run() -> ExitCode {
    let wants_json = std::env::args_os()
        .take_while(|a| a != "--")
        .any(|a| a == "--json");
    let form = if wants_json { Form::Json } else { Form::Text };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error, form),
    };
    let data = cli.data.unwrap_or_else(default_data);
    // The daemon that a command starts has another working directory.
    let data = std::path::absolute(&data).unwrap_or(data);
    let json = cli.json;
    // The daemon makes its own runtime, after it has made its mount namespace.
    let ended = |outcome: Outcome| outcome.unwrap_or_else(|error| failure::tell(&error, form));
    let command = match cli.command {
        Command::Serve(args) => return ended(serve::run(args, data)),
        Command::Doctor(args) if !args.probe => return ended(doctor::run(&args, &data, json)),
        Command::Store(args) => return ended(store::run(args, json)),
        command => command,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = ApiError::new(ErrorCode::Internal, format!("no runtime: {error}"));
            return failure::tell(&error, form);
        }
    };
    let world = World {
        client: Client::new(data),
        json,
        after_loss: command.after_loss(),
    };
    let result = runtime.block_on(dispatch(command, &world));
    // A read from a terminal cannot be taken back; it must not hold the process.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| world.tell(&error))
}

async fn dispatch(command: Command, world: &World) -> Outcome {
    match command {
        Command::Create(args) => create::run(args, world).await,
        Command::Run(args) => Box::pin(run::run(args, world)).await,
        Command::Exec(args) => exec::run(args, world).await,
        Command::Attach(args) => attach::run(args, world).await,
        Command::Ps(args) => ps::run(args, world).await,
        Command::Log(args) => log::run(args, world).await,
        Command::Op(args) => op::run(args, world).await,
        Command::Read(args) => read::run(args, world).await,
        Command::Cp(args) => cp::run(args, world).await,
        Command::Ls(args) => ls::run(args, world).await,
        Command::Cat(args) => cat::run(args, world).await,
        Command::Watch(args) => watch::run(args, world).await,
        Command::Checkpoint(args) => checkpoint::run(args, world).await,
        Command::Fork(args) => fork::run(args, world).await,
        Command::Rewind(args) => rewind::run(args, world).await,
        Command::Diff(args) => diff::run(args, world).await,
        Command::Compose(args) => compose::run(args, world).await,
        Command::Blame(args) => blame::run(args, world).await,
        Command::Probe(args) => Box::pin(probe::run(args, world)).await,
        Command::Stop(args) => stop::run(args, world).await,
        Command::Rm(args) => rm::run(args, world).await,
        Command::Policy(args) => policy::run(args, world).await,
        Command::Secret(args) => secret::run(args, world).await,
        Command::Effects(args) => effects::run(args, world).await,
        Command::Approvals(args) => approvals::list(args, world).await,
        Command::Approve(args) => approvals::approve(args, world).await,
        Command::Refuse(args) => approvals::refuse(args, world).await,
        Command::Image(args) => image::run(args, world).await,
        Command::Push(args) => store::push(args, world).await,
        Command::Pull(args) => store::pull(args, world).await,
        Command::Harness(args) => harness::run(args, world).await,
        Command::Doctor(_) => doctor::probe(world).await,
        Command::Serve(_) | Command::Store(_) => Ok(ExitCode::SUCCESS),
    }
}

/// Prints the API document, for the copy under `docs/`.
pub(crate) fn openapi() -> i32 {
    let Ok(text) = server::document().to_pretty_json() else {
        return 1;
    };
    print_line(&text);
    0
}

/// A harness's hook, run inside the sandbox: its input on stdin, its answer on stdout.
pub(crate) fn hook(args: &[OsString]) -> i32 {
    harness::hook(args)
}

/// Help and version go to stdout with 0; a bad command line is an error like any other.
fn usage(error: &clap::Error, form: Form) -> ExitCode {
    if !error.use_stderr() {
        // `| head` may have gone away.
        let _gone = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    // What is missing stands on lines of its own, before the first empty one.
    let words: Vec<&str> = text.lines().take_while(|l| !l.is_empty()).collect();
    let words = words.iter().map(|line| line.trim());
    let line = words.collect::<Vec<_>>().join(" ");
    let line = line.trim_start_matches("error: ").to_owned();
    let error =
        ApiError::new(ErrorCode::Invalid, line).hint("`durable help COMMAND` shows how it is used");
    failure::tell(&error, form)
}

fn default_data() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/durable");
    }
    let base = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    base.unwrap_or_else(|| PathBuf::from("/tmp"))
        .join("durable")
}

/// Reads an id from the command line.
fn parse<T: std::str::FromStr<Err = IdError>>(text: &str) -> Result<T, ApiError> {
    text.parse()
        .map_err(|error: IdError| ApiError::new(ErrorCode::Invalid, error.to_string()))
}

/// Prints an answer; ends quietly where nobody reads it.
fn print(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn print_line(text: &str) {
    print(format!("{text}\n").as_bytes());
}

fn print_json<T: Serialize>(answer: &T) -> Result<(), ApiError> {
    let mut json = crate::client::encode(answer)?;
    json.push(b'\n');
    print(&json);
    Ok(())
}

/// Prints each of a list, a line each.
fn print_json_lines<T: Serialize>(answers: &[T]) -> Outcome {
    answers.iter().try_for_each(print_json)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes text so that it can stand in an address.
fn percent(text: &str) -> String {
    percent_bytes(text.as_bytes())
}

fn percent_bytes(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                char::from(*byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Writes a number of bytes for people.
fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut rest = bytes;
    let mut unit = 0;
    while rest >= 10_240 && unit + 1 < units.len() {
        rest /= 1024;
        unit += 1;
    }
    format!("{rest} {}", units[unit])
}

/// Writes for people how long ago something was.
fn ago(at: protocol::UnixMillis) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let secs = now.saturating_sub(at.0 / 1000);
    match secs {
        0..120 => format!("{secs} s ago"),
        120..7_200 => format!("{} min ago", secs / 60),
        7_200..172_800 => format!("{} h ago", secs / 3600),
        _ => format!("{} d ago", secs / 86_400),
    }
}

/// Makes an id for an operation that got none.
fn fresh_op() -> String {
    format!("op-{:016x}", rand::random::<u64>())
}

/// Splits `K=V`; `K` alone takes the value from our own environment.
fn environment(list: &[String]) -> Result<std::collections::BTreeMap<String, String>, ApiError> {
    let mut env = std::collections::BTreeMap::new();
    for entry in list {
        let (key, value) = match entry.split_once('=') {
            Some((key, value)) => (key, value.to_owned()),
            None => match std::env::var(entry) {
                Ok(value) => (entry.as_str(), value),
                Err(_) => continue,
            },
        };
        if key.is_empty() {
            return Err(
                ApiError::new(ErrorCode::Invalid, format!("`--env {entry}` has no name"))
                    .hint("use --env NAME=VALUE"),
            );
        }
        env.insert(key.to_owned(), value);
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// Two arguments of one name would share what is given to either, without a word in a release build.
    #[test]
    fn the_command_line_does_not_contradict_itself() {
        super::Cli::command().debug_assert();
    }
}
