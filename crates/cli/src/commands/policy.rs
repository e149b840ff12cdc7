//! `durable policy`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hyper::Method;
use policy::{Explanation, Policy};
use protocol::egress::{CheckRequest, DenialView, PolicyText, PolicyView};
use protocol::{ApiError, ErrorCode, SandboxName};

use super::{Outcome, World, ago, parse, print, print_json, print_json_lines, print_line};

/// Say what may leave a sandbox. Without a policy nothing may.
///
/// A policy is a file of rules (TOML): hosts, methods and paths to allow, deny or ask about, and secrets to put in on the way
/// out. It can be set while the sandbox runs, and holds at once; nothing inside can widen it.
///
/// Example: durable policy set ada policy.toml
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Put a policy in force. Answers that `approve --remember` and `refuse --remember` made rules are kept where it would ask
    /// again; what becomes of them is said.
    Set {
        /// The sandbox.
        name: String,
        /// The policy's file; `-` is standard input. An empty one allows nothing.
        file: PathBuf,
        /// Leave those answers out.
        #[arg(long)]
        forget: bool,
    },
    /// Print the policy in force.
    Show {
        /// The sandbox.
        name: String,
    },
    /// Explain what a policy makes of a request, rule by rule, without making it.
    Check {
        /// Where to: `https://host/path`.
        url: String,
        /// The sandbox whose policy it is; where there is one sandbox only, that one.
        #[arg(long, value_name = "NAME", conflicts_with = "policy")]
        of: Option<String>,
        /// A policy's file instead; `-` is standard input.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// The request's method.
        #[arg(long, short = 'X', default_value = "GET", value_name = "METHOD")]
        method: String,
    },
    /// Show what was to leave and did not, and why.
    Log {
        /// The sandbox.
        name: String,
    },
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match args.verb {
        Verb::Set { name, file, forget } => set(&name, &file, forget, world).await,
        Verb::Show { name } => show(&name, world).await,
        Verb::Check {
            url,
            of,
            policy: file,
            method,
        } => {
            let ask = CheckRequest {
                url,
                method: Some(method),
            };
            let told = match file {
                Some(file) => {
                    let policy = Policy::parse(&read(&file)?);
                    let policy = policy.map_err(|e| {
                        let what = format!("{}: {e}", file.display());
                        ApiError::new(ErrorCode::Invalid, what)
                    });
                    policy::explain(&policy?, &ask.url, ask.method.as_deref().unwrap_or("GET"))
                }
                None => of_sandbox(of, &ask, world).await?,
            };
            explain(&told, world)
        }
        Verb::Log { name } => log(&name, world).await,
    }
}

async fn set(name: &str, file: &Path, forget: bool, world: &World) -> Outcome {
    let name: SandboxName = parse(name)?;
    let ask = PolicyText {
        policy: read(file)?,
        forget,
    };
    let path = format!("/v1/sandboxes/{name}/policy");
    let view: PolicyView = world.client.call(Method::PUT, &path, &ask).await?;
    if world.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !view.remembered.is_empty() {
        let (count, names) = (view.remembered.len(), view.remembered.join(", "));
        print_line(&format!("answers of people in it: {count} ({names})"));
    }
    for one in &view.forgotten {
        print_line(&format!("answer left out: {one}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(name: &str, world: &World) -> Outcome {
    let name: SandboxName = parse(name)?;
    let path = format!("/v1/sandboxes/{name}/policy");
    let view: PolicyView = world.client.get(&path).await?;
    if world.json {
        print_json(&view)?;
    } else if view.policy.is_empty() {
        print_line("# no policy: nothing leaves");
    } else {
        print(view.policy.as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

async fn of_sandbox(
    of: Option<String>,
    ask: &CheckRequest,
    world: &World,
) -> Result<Explanation, ApiError> {
    let name: SandboxName = match of {
        Some(name) => parse(&name)?,
        None => only(world).await?,
    };
    let path = format!("/v1/sandboxes/{name}/policy/check");
    world.client.call(Method::POST, &path, ask).await
}

async fn only(world: &World) -> Result<SandboxName, ApiError> {
    let mut all: Vec<protocol::api::SandboxView> = world.client.get("/v1/sandboxes").await?;
    match (all.pop(), all.len()) {
        (Some(one), 0) => Ok(one.name),
        (found, _) => {
            let what = if found.is_some() {
                "there is more than one sandbox"
            } else {
                "there is no sandbox"
            };
            Err(ApiError::new(ErrorCode::Invalid, what)
                .hint("name one with --of NAME, or a policy's file with --policy FILE"))
        }
    }
}

/// Exits with 0 where the request would leave, and with 1 where it would not, or not without a person's word.
fn explain(told: &Explanation, world: &World) -> Outcome {
    if world.json {
        print_json(told)?;
    } else {
        print_line(told.to_string().trim_end());
    }
    Ok(ExitCode::from(u8::from(!told.is_allowed())))
}

async fn log(name: &str, world: &World) -> Outcome {
    let name: SandboxName = parse(name)?;
    let path = format!("/v1/sandboxes/{name}/denials");
    let denials: Vec<DenialView> = world.client.get(&path).await?;
    if world.json {
        return print_json_lines(&denials);
    }
    for denial in denials {
        let times = match denial.times {
            1 => String::new(),
            times => format!(" ({times} times)"),
        };
        print_line(&format!(
            "{}  {}{times}: {}",
            ago(denial.at_ms),
            super::effects::line(&denial.request),
            denial.message
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a policy's file.
pub(super) fn read(file: &Path) -> Result<String, ApiError> {
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    text.map_err(|e| {
        let what = format!("cannot read the policy {}: {e}", file.display());
        ApiError::new(ErrorCode::Invalid, what).hint("give a file of rules in TOML")
    })
}
