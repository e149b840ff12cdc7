//! `durable stop`

use std::process::ExitCode;

use hyper::Method;
use protocol::SandboxName;
use protocol::api::SandboxView;

use super::{Outcome, World, parse, print_json};

/// End every process of a sandbox. Its files and its journal stay; the next command starts it again.
///
/// Example: durable stop ada
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// Seconds between SIGTERM and SIGKILL.
    #[arg(long, default_value_t = 2, value_name = "SECS")]
    grace: u32,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let path = format!(
        "/v1/sandboxes/{name}/stop?grace_ms={}",
        u64::from(args.grace) * 1000
    );
    let view: SandboxView = world.client.call(Method::POST, &path, &()).await?;
    if world.json {
        print_json(&view)?;
    }
    Ok(ExitCode::SUCCESS)
}
