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
/// One that cannot be removed is told, and the others are removed.
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
    let mut first = None;
    for name in &args.names {
        if let Err(error) = remove(name, args.force, world).await {
            let code = world.tell(&error);
            first.get_or_insert(code);
        }
    }
    Ok(first.unwrap_or(ExitCode::SUCCESS))
}

async fn remove(name: &str, force: bool, world: &World) -> Result<(), ApiError> {
    let name: SandboxName = parse(name)?;
    let path = format!("/v1/sandboxes/{name}");
    let view: Result<SandboxView, ApiError> = world.client.get(&path).await;
    match view {
        Err(damaged) if damaged.code == ErrorCode::Corrupt => {
            failure::note(&format!("removing sandbox {name}: {}", damaged.message));
        }
        view => {
            let view = view?;
            if !force {
                refuse_open(&view)?;
            }
            if !world.json {
                failure::note(&format!(
                    "removing sandbox {name}: {} operations, {} events, all of its files",
                    view.ops, view.seq
                ));
            }
        }
    }
    world.client.call(Method::DELETE, &path, &()).await
}

/// Refuses a sandbox in which operations run.
fn refuse_open(view: &SandboxView) -> Result<(), ApiError> {
    let (name, open) = (&view.name, view.open_ops.len());
    if open == 0 {
        return Ok(());
    }
    Err(match &view.problem {
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
    })
}
