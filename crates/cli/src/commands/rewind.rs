//! `durable rewind`

use std::process::ExitCode;

use hyper::Method;
use protocol::SandboxName;
use protocol::api::{RewindSandbox, SandboxView};

use super::{Outcome, World, parse, print_json};

/// Put a sandbox back to an earlier checkpoint: its processes end, its files and its place in the journal move together.
///
/// Nothing is lost: what came after stays in the journal as an abandoned branch, with its output and its checkpoints, and
/// can be gone back to in the same way.
///
/// Example: durable rewind ada --to before-refactor
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// A checkpoint's id or label, a place in the journal, or `start`.
    #[arg(long, value_name = "CHECKPOINT|SEQ")]
    to: String,
    /// Seconds between SIGTERM and SIGKILL for what runs.
    #[arg(long, default_value_t = 2, value_name = "SECS")]
    grace: u32,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let path = format!(
        "/v1/sandboxes/{name}/rewind?grace_ms={}",
        u64::from(args.grace) * 1000
    );
    let ask = RewindSandbox { to: args.to };
    let view: SandboxView = world.client.call(Method::POST, &path, &ask).await?;
    if world.json {
        print_json(&view)?;
    }
    Ok(ExitCode::SUCCESS)
}
