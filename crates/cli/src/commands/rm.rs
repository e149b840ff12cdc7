//! `durable rm`

use std::process::ExitCode;

use hyper::Method;
use protocol::SandboxName;
use protocol::api::{SandboxState, SandboxView};
use protocol::{ApiError, ErrorCode};

use super::{Outcome, World, parse};
use crate::failure;

/// Remove sandboxes: their processes, files, output and journals.
///
/// Example: durable rm ada
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandboxes.
    #[arg(required = true)]
    names: Vec<String>,
    /// Also one in which operations run.
    #[arg(long, short)]
    force: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let names = args
        .names
        .iter()
        .map(|n| parse(n))
        .collect::<Result<Vec<SandboxName>, _>>()?;
    for name in names {
        let path = format!("/v1/sandboxes/{name}");
        let view: Result<SandboxView, ApiError> = world.client.get(&path).await;
        let view = match view {
            Err(damaged) if damaged.code == ErrorCode::Corrupt => {
                failure::note(&format!("removing sandbox {name}: {}", damaged.message));
                let (): () = world.client.call(Method::DELETE, &path, &()).await?;
                continue;
            }
            view => view?,
        };
        let open = view.open_ops.len();
        if open > 0 && !args.force {
            return Err(match &view.problem {
                // Nothing runs to an end that anybody will hear of.
                Some(problem) if view.state == SandboxState::Damaged => ApiError::new(
                    ErrorCode::Conflict,
                    format!("{open} operations of sandbox `{name}` have no known end: {problem}"),
                )
                .hint(format!(
                    "`durable push {name} --as OTHER` or `durable fork {name}` saves its files; --force removes it"
                )),
                _ => ApiError::new(
                    ErrorCode::Conflict,
                    format!("{open} operations run in sandbox `{name}`"),
                )
                .hint(format!("`durable stop {name}` first, or use --force")),
            });
        }
        if !world.json {
            failure::note(&format!(
                "removing sandbox {name}: {} operations, {} events, all of its files",
                view.ops, view.seq
            ));
        }
        let (): () = world.client.call(Method::DELETE, &path, &()).await?;
    }
    Ok(ExitCode::SUCCESS)
}
