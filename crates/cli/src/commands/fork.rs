//! `durable fork`

use std::process::ExitCode;

use hyper::Method;
use protocol::api::{ForkSandbox, SandboxView};
use protocol::{ApiError, ErrorCode, SandboxName};

use super::{Outcome, World, parse, print_json, print_line};

/// Fork a sandbox: a writable clone of its whole workspace, with a journal of its own. The source goes on meanwhile.
///
/// Prints the forks' names. Uncommitted files, build artifacts and the agents' own memories are in the clone; processes
/// are not.
///
/// Example: durable fork ada --count 4
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    source: String,
    /// Where to fork: a checkpoint's id or label, a place in the journal, or `start`. As it is now where not given.
    #[arg(long, value_name = "CHECKPOINT|SEQ")]
    at: Option<String>,
    /// How many.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// What to call it; several get -1, -2 and so on behind it. Made from the source's name where not given.
    #[arg(long)]
    name: Option<String>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let source: SandboxName = parse(&args.source)?;
    let names = match (&args.name, args.count) {
        (Some(name), 1) => vec![parse(name)?],
        (Some(name), count) => numbered(name, count)?,
        (None, count) => {
            // Free for certain: nobody knows it yet.
            let fresh = format!("{source}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
            if count == 1 {
                vec![parse(&fresh)?]
            } else {
                numbered(&fresh, count)?
            }
        }
    };
    let views = fork(&source, names, args.at, world).await?;
    for view in &views {
        if world.json {
            print_json(view)?;
        } else {
            print_line(view.name.as_str());
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn fork(
    source: &SandboxName,
    names: Vec<SandboxName>,
    at: Option<String>,
    world: &World,
) -> Result<Vec<SandboxView>, ApiError> {
    let path = format!("/v1/sandboxes/{source}/forks");
    let ask = ForkSandbox { names, at };
    world.client.call(Method::POST, &path, &ask).await
}

fn numbered(name: &str, count: usize) -> Result<Vec<SandboxName>, ApiError> {
    if count == 0 {
        return Err(ApiError::new(
            ErrorCode::Invalid,
            "`--count 0` forks nothing",
        ));
    }
    (1..=count).map(|n| parse(&format!("{name}-{n}"))).collect()
}
