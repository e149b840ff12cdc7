//! `durable compose`

use std::process::ExitCode;

use hyper::Method;
use protocol::SandboxName;
use protocol::api::{ComposeSandbox, ComposeView};

use super::{Outcome, World, diff, parse, print_json, print_line};

/// Exit code of a compose that met conflicts and did nothing.
const CONFLICTS: u8 = 1;

/// Bring what one sandbox changed into another: a three-way merge against the checkpoint at which the two parted.
///
/// Where both changed the same, nothing at all is applied, the conflicts are printed, and it exits with 1.
///
/// Example: durable compose ada-3 ada --paths src
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Whose changes: `NAME`, or `NAME@PLACE`.
    from: String,
    /// The sandbox that they go into.
    into: String,
    /// Only what is below these paths; relative ones start in the sandbox's working directory.
    #[arg(long, num_args = 1.., value_name = "PATH")]
    paths: Vec<String>,
    /// What to do where both changed the same: `merge` (stop there), `ours` or `theirs`.
    #[arg(long, default_value = "merge", value_parser = ["merge", "ours", "theirs"])]
    strategy: String,
    /// Tell what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let into: SandboxName = parse(&args.into)?;
    diff::check(&args.from)?;
    let ask = ComposeSandbox {
        from: args.from,
        paths: args.paths,
        strategy: Some(args.strategy),
        dry_run: args.dry_run,
    };
    let view = compose(&into, &ask, world).await?;
    if world.json {
        print_json(&view)?;
    } else {
        tell(&view);
    }
    if view.conflicts.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(CONFLICTS))
    }
}

pub(super) async fn compose(
    into: &SandboxName,
    ask: &ComposeSandbox,
    world: &World,
) -> Result<ComposeView, protocol::ApiError> {
    let path = format!("/v1/sandboxes/{into}/compose");
    world.client.call(Method::POST, &path, ask).await
}

fn tell(view: &ComposeView) {
    if view.actions.is_empty() && view.conflicts.is_empty() {
        print_line("nothing to bring over: there is no change that is not here already");
    }
    for action in &view.actions {
        print_line(&format!(
            "{:<7} {}",
            action.action,
            action.path.escape_debug()
        ));
    }
    for conflict in &view.conflicts {
        print_line(&format!(
            "conflict ({}) {}",
            conflict.kind,
            conflict.path.escape_debug()
        ));
        if let Some(text) = &conflict.text {
            print_line(text.trim_end());
        }
    }
    if view.applied
        && let Some(op) = &view.op
    {
        let before = view.before.as_ref();
        let back = before.map_or_else(String::new, |cut| {
            format!("; the checkpoint before it is {cut}")
        });
        print_line(&format!("applied in operation {op}{back}"));
    }
}
