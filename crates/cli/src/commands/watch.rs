//! `durable watch`

use std::process::ExitCode;

use protocol::api::FileEventView;

use super::inside::{Inside, Lines, quiet, understood};
use super::{Outcome, World, print, print_line};
use crate::failure;

/// Follow the changes of a file or directory in a sandbox until interrupted.
///
/// One line a change: create, modify, attributes, delete, rename; `overflow` says that more happened than could be kept, and
/// that it is time to list again. It ends with 0 when what is watched is gone.
///
/// Example: durable watch ada /workspace -r
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(flatten)]
    inside: Inside,
    /// Watch the directories below it too, also those that are made later.
    #[arg(short = 'r', long)]
    recursive: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let address = args.inside.address("/watch")?;
    let address = format!("{address}&recursive={}", args.recursive);
    let mut lines = Lines::open(world, &address).await?;
    while let Some(line) = lines.next().await? {
        let event: FileEventView = understood(&line)?;
        if let Some(error) = event.error {
            return Err(error);
        }
        if world.json {
            print(&line);
            continue;
        }
        let path = quiet(event.path.as_deref().unwrap_or_default());
        match (event.event.as_str(), &event.from) {
            ("watching", _) => failure::note(&format!("watching {path}")),
            (word, Some(from)) => print_line(&format!("{word} {} -> {path}", quiet(from))),
            (word, None) => print_line(&format!("{word} {path}")),
        }
    }
    Ok(ExitCode::SUCCESS)
}
