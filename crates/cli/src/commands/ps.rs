//! `durable ps`

use std::process::ExitCode;

use protocol::SandboxName;
use protocol::api::{OpPhase, OpView, SandboxView};

use super::{Outcome, World, parse, print_json, print_line};

/// List sandboxes, or one sandbox's operations.
///
/// Example: durable ps ada
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox whose operations are wanted.
    name: Option<String>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match args.name {
        None => {
            let views: Vec<SandboxView> = world.client.get("/v1/sandboxes").await?;
            if world.json {
                views.iter().try_for_each(print_json)?;
            } else {
                sandboxes(&views);
            }
        }
        Some(name) => {
            let name: SandboxName = parse(&name)?;
            let views: Vec<OpView> = world
                .client
                .get(&format!("/v1/sandboxes/{name}/ops"))
                .await?;
            if world.json {
                views.iter().try_for_each(print_json)?;
            } else {
                ops(&views);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn sandboxes(views: &[SandboxView]) {
    print_line(&format!(
        "{:<24} {:<9} {:>6} {:>5} {:>8}  {}",
        "NAME", "STATE", "OPS", "OPEN", "EVENTS", "IMAGE"
    ));
    for v in views {
        let state = format!("{:?}", v.state).to_lowercase();
        print_line(&format!(
            "{:<24} {:<9} {:>6} {:>5} {:>8}  {}{}{}",
            v.name.as_str(),
            state,
            v.ops,
            v.open_ops.len(),
            v.seq.0,
            v.image,
            v.disk_limit_bytes
                .map(|limit| format!(
                    "  (disk {} of {})",
                    v.disk_used_bytes.map_or("?".to_owned(), super::bytes),
                    super::bytes(limit)
                ))
                .unwrap_or_default(),
            v.problem
                .as_ref()
                .map(|p| format!("  ({p})"))
                .unwrap_or_default()
        ));
    }
}

fn ops(views: &[OpView]) {
    print_line(&format!(
        "{:<32} {:<10} {:>5} {:>12} {:>12}  {}",
        "OPERATION", "STATE", "CODE", "STDOUT", "STDERR", "CUT"
    ));
    for v in views {
        let state = match v.state {
            OpPhase::Settled => v.outcome.clone().unwrap_or_default(),
            open => format!("{open:?}").to_lowercase(),
        };
        let code = v
            .exit_code
            .map(|c| c.to_string())
            .or(v.signal.map(|s| format!("sig{s}")));
        print_line(&format!(
            "{:<32} {:<10} {:>5} {:>12} {:>12}  {}",
            v.id.as_str(),
            state,
            code.unwrap_or_default(),
            v.stdout_bytes.0,
            v.stderr_bytes.0,
            v.cut
                .as_ref()
                .map(|c| c.as_str().to_owned())
                .unwrap_or_default()
        ));
    }
}
