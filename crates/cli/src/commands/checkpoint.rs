//! `durable checkpoint`

use std::process::ExitCode;

use hyper::Method;
use protocol::api::{CheckpointView, TakeCheckpoint};
use protocol::{ApiError, ErrorCode, SandboxName};

use super::{Outcome, World, parse, print_json, print_json_lines, print_line};

/// Take a checkpoint of a sandbox's files as they are now; its processes go on.
///
/// One is also taken by itself whenever an operation ends that changed something. Those are thinned out in time (all of
/// the latest stay, then one an hour, then one a day); one with a label is kept until `unlabel`.
///
/// Example: durable checkpoint ada --label before-refactor
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// The sandbox.
    #[arg(required = true)]
    name: Option<String>,
    /// A name for it, under which it is kept for ever.
    #[arg(long)]
    label: Option<String>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the checkpoints of a sandbox, oldest first.
    Ls {
        /// The sandbox.
        name: String,
    },
    /// Give a checkpoint a name, under which it is kept for ever.
    Label {
        /// The sandbox.
        name: String,
        /// The checkpoint: its id, or a place in the journal.
        at: String,
        /// The name.
        label: String,
    },
    /// Take a checkpoint's name off; it may be thinned out then.
    Unlabel {
        /// The sandbox.
        name: String,
        /// The checkpoint: its label or id.
        at: String,
    },
    /// Remove a checkpoint that nothing needs; what only it has is given back. Not the one that the files go on from.
    ///
    /// Example: durable checkpoint rm ada c17-2f0a
    Rm {
        /// The sandbox.
        name: String,
        /// The checkpoint: its id or label.
        at: String,
        /// Also one with a label.
        #[arg(long)]
        force: bool,
    },
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match args.verb {
        None => take(args.name.unwrap_or_default(), args.label, world).await,
        Some(Verb::Ls { name }) => list(&name, world).await,
        Some(Verb::Label { name, at, label }) => set(&name, &at, Some(label), world).await,
        Some(Verb::Unlabel { name, at }) => set(&name, &at, None, world).await,
        Some(Verb::Rm { name, at, force }) => remove(&name, &at, force, world).await,
    }
}

async fn take(name: String, label: Option<String>, world: &World) -> Outcome {
    let name: SandboxName = parse(&name)?;
    let path = format!("/v1/sandboxes/{name}/checkpoints");
    let ask = TakeCheckpoint { label };
    let view: CheckpointView = world.client.call(Method::POST, &path, &ask).await?;
    if world.json {
        print_json(&view)?;
    } else {
        print_line(view.id.as_str());
    }
    Ok(ExitCode::SUCCESS)
}

async fn set(name: &str, at: &str, label: Option<String>, world: &World) -> Outcome {
    let path = format!("{}/label", path(name, at)?);
    let ask = TakeCheckpoint { label };
    world.client.call::<_, ()>(Method::PUT, &path, &ask).await?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(name: &str, at: &str, force: bool, world: &World) -> Outcome {
    let path = format!("{}?force={force}", path(name, at)?);
    let (): () = world.client.call(Method::DELETE, &path, &()).await?;
    Ok(ExitCode::SUCCESS)
}

/// Where a checkpoint is on the API.
fn path(name: &str, at: &str) -> Result<String, ApiError> {
    let name: SandboxName = parse(name)?;
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    // A path of another shape would ask for something else.
    if at.is_empty() || at.bytes().all(|b| b == b'.') || !at.bytes().all(is_plain) {
        let message = format!("sandbox `{name}` has no checkpoint {at:?}");
        return Err(ApiError::new(ErrorCode::NotFound, message));
    }
    Ok(format!("/v1/sandboxes/{name}/checkpoints/{at}"))
}

async fn list(name: &str, world: &World) -> Outcome {
    let name: SandboxName = parse(name)?;
    let path = format!("/v1/sandboxes/{name}/checkpoints");
    let views: Vec<CheckpointView> = world.client.get(&path).await?;
    if world.json {
        return print_json_lines(&views);
    }
    print_line("ID            SEQ      WHEN              COST  HOLDS  LASTS  LABEL");
    for view in views {
        let cost = view.cost_bytes.map_or_else(|| "-".to_owned(), super::bytes);
        let notes = [
            view.label.clone(),
            view.current.then(|| "(current)".to_owned()),
            view.abandoned.then(|| "(abandoned branch)".to_owned()),
            match (view.quiet, view.still) {
                (true, _) => None,
                (false, true) => Some("(operations were running, and stood still)".to_owned()),
                (false, false) => Some("(operations were running)".to_owned()),
            },
        ];
        let notes: Vec<String> = notes.into_iter().flatten().collect();
        print_line(
            format!(
                "{:<12}  {:>5}  {:>12}  {cost:>9}  {:<5}  {:<5}  {}",
                view.id.as_str(),
                view.seq,
                super::ago(view.at_ms),
                view.holds,
                view.durability,
                notes.join(" ")
            )
            .trim_end(),
        );
    }
    Ok(ExitCode::SUCCESS)
}
