//! `durable ls`

use std::process::ExitCode;

use protocol::api::FileView;
use protocol::{ApiError, ErrorCode};
use serde_json::Value;

use super::inside::{Inside, Lines, quiet, understood};
use super::{Outcome, World, print, print_line};

/// Something could not be seen, as `ls` and `find` end then.
const UNSEEN: u8 = 1;

/// List a directory of a sandbox: kind and mode, owner, bytes, age and name.
///
/// What may not be read is left out and told at the end, with exit code 1. A listing is no operation:
/// nothing is journaled. A stopped sandbox is started for it. Characters of a name that would disturb
/// a terminal are escaped; `--json` gives every name exactly.
///
/// Example: durable ls ada /workspace -R
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(flatten)]
    inside: Inside,
    /// List the directories in it too.
    #[arg(short = 'R', long)]
    recursive: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let address = args.inside.address("/list")?;
    let address = format!("{address}&recursive={}", args.recursive);
    let mut lines = Lines::open(world, &address).await?;
    while let Some(line) = lines.next().await? {
        let value: Value = understood(&line)?;
        if let Some(error) = value.get("error") {
            let error: ApiError = understood(error.to_string().as_bytes())?;
            return match error.code {
                // All the rest is listed.
                ErrorCode::Denied => {
                    let _failed = world.tell(&error);
                    Ok(ExitCode::from(UNSEEN))
                }
                _ => Err(error),
            };
        }
        if world.json {
            print(&line);
        } else {
            print_line(&shown(&understood(&line)?));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(file: &FileView) -> String {
    let kind = match file.kind.as_str() {
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "device" => 'c',
        _ => '-',
    };
    let owner = format!("{}:{}", file.uid, file.gid);
    let when = super::ago(file.modified_ms);
    let target = file.target.as_ref();
    let target = target.map_or(String::new(), |target| format!(" -> {}", quiet(target)));
    format!(
        "{kind} {:04o} {owner:>9} {:>12} {when:>12}  {}{target}",
        file.mode,
        file.size,
        quiet(&file.name)
    )
}
