//! `durable blame`

use std::process::ExitCode;

use protocol::SandboxName;
use protocol::api::BlameView;

use super::{Outcome, World, ago, parse, percent, print_json, print_line};

/// Tell which operation last changed a file, and with what command.
///
/// Example: durable blame ada src/main.rs
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The path; a relative one starts in the sandbox's working directory.
    path: String,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let address = format!("/v1/sandboxes/{name}/blame?path={}", percent(&args.path));
    let view: BlameView = world.client.get(&address).await?;
    if world.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(cut) = &view.cut else {
        print_line("no operation: it is the image's own");
        return Ok(ExitCode::SUCCESS);
    };
    let when = view.at_ms.map(ago).unwrap_or_default();
    if let Some(from) = &view.forked_from {
        print_line(&format!(
            "{cut}  {when}  before the fork: `durable blame {} {}` tells",
            from.name, args.path
        ));
    }
    for op in &view.ops {
        let line: String = op.argv.join(" ").escape_debug().take(100).collect();
        print_line(&format!("{cut}  {when}  {}: {line}", op.id));
    }
    for op in &view.running {
        print_line(&format!(
            "{cut}  {when}  or {op}, which was running meanwhile"
        ));
    }
    Ok(ExitCode::SUCCESS)
}
