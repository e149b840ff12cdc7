//! `durable diff`

use std::process::ExitCode;

use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::api::ChangeView;
use protocol::{ApiError, ErrorCode, SandboxName};

use super::{Outcome, World, parse, print, print_json, print_line};
use crate::client::lost;

/// Show what differs between two places: sandboxes as they are now, or `NAME@PLACE` with a checkpoint's id or label, a
/// place in its journal, or `start`.
///
/// With one place, shows what changed in that sandbox since it was created or forked. Nothing that runs is stopped. Exits
/// with 0 whether or not something differs.
///
/// Example: durable diff ada@before-refactor ada --patch
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A place, or the only one.
    a: String,
    /// The place to compare it with.
    b: Option<String>,
    /// Print the text that git prints, fit for `git apply` but for binary files: of these it says only that they differ.
    #[arg(long, short)]
    patch: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let (a, b) = match args.b {
        Some(b) => (args.a, b),
        None => {
            let name = args.a.split('@').next().unwrap_or_default();
            (format!("{name}@start"), args.a.clone())
        }
    };
    for side in [&a, &b] {
        check(side)?;
    }
    let path = format!("/v1/diff?a={a}&b={b}&patch={}", args.patch);
    if args.patch {
        let response = world
            .client
            .send(Method::GET, &path, Vec::new().into())
            .await?;
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|e| lost(&e))?.into_data() {
                print(&data);
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let changes: Vec<ChangeView> = world.client.get(&path).await?;
    for change in &changes {
        if world.json {
            print_json(change)?;
        } else {
            print_line(&line(change));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the form of `NAME` or `NAME@PLACE`, which goes into an address.
pub(super) fn check(side: &str) -> Result<(), ApiError> {
    let (name, place) = side.split_once('@').unwrap_or((side, "start"));
    parse::<SandboxName>(name)?;
    let fits = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if place.is_empty() || !place.chars().all(fits) || !place.is_ascii() {
        return Err(ApiError::new(
            ErrorCode::NotFound,
            format!("sandbox `{name}` has no checkpoint {place:?}"),
        )
        .hint(format!("`durable checkpoint ls {name}` lists them")));
    }
    Ok(())
}

fn line(change: &ChangeView) -> String {
    let letter = match change.status.as_str() {
        "added" => 'A',
        "deleted" => 'D',
        "renamed" => 'R',
        _ => 'M',
    };
    let slash = if change.kind == "directory" { "/" } else { "" };
    let path = change.path.escape_debug();
    let from = change
        .from
        .as_ref()
        .map(|from| format!("{} -> ", from.escape_debug()));
    let what: Vec<&str> = change
        .what
        .iter()
        .map(String::as_str)
        .filter(|what| *what != "content")
        .collect();
    let what = if what.is_empty() {
        String::new()
    } else {
        format!("  ({})", what.join(", "))
    };
    format!("{letter}  {}{path}{slash}{what}", from.unwrap_or_default())
}
