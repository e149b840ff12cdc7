//! `durable harness`

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use clap::Subcommand;
use protocol::{ApiError, ErrorCode};
use serde_json::json;

use super::{Outcome, World, print_json, print_line};
use crate::failure;

/// Install coding agents once per version, for all sandboxes to use.
///
/// Example: durable harness install pi
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install an agent with what it needs, by way of npm.
    Install {
        /// `claude` or `pi`, with `@VERSION` for another than the tested one.
        name: String,
    },
    /// List what is installed.
    Ls,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let dir = world.client.data().join("harness");
    match args.verb {
        Verb::Install { name } => {
            let (name, version) = match name.split_once('@') {
                Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
                None => (name, None),
            };
            let driver = harness::driver(&name)
                .map_err(|e| ApiError::new(ErrorCode::Invalid, e.to_string()))?;
            let version = version.unwrap_or_else(|| driver.default_version().to_owned());
            let name = driver.name();
            let installed = tokio::task::spawn_blocking(move || {
                harness::install::install(&dir, name, &version)
            })
            .await
            .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?
            .map_err(|e| of_install(&e))?;
            show(&installed, world)?;
        }
        Verb::Ls => {
            for installed in harness::install::list(&dir).map_err(|e| of_install(&e))? {
                show(&installed, world)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(installed: &harness::install::Installed, world: &World) -> Result<(), ApiError> {
    if world.json {
        return print_json(&json!({ "name": installed.name, "version": installed.version }));
    }
    print_line(&format!("{}@{}", installed.name, installed.version));
    Ok(())
}

fn of_install(error: &harness::install::Error) -> ApiError {
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text = format!("{text}: {cause}");
    }
    ApiError::new(ErrorCode::Unavailable, text)
}

/// A hook of a harness, called inside the sandbox. What it cannot answer it leaves as it is.
pub(super) fn hook(args: &[OsString]) -> i32 {
    let mut input = Vec::new();
    if std::io::stdin().read_to_end(&mut input).is_err() {
        return 1;
    }
    let answer = match args.first().and_then(|a| a.to_str()) {
        Some("claude") => harness::hook::claude(&input),
        _ => {
            failure::note("__hook needs the harness's name");
            return 1;
        }
    };
    i32::from(std::io::stdout().write_all(answer.as_bytes()).is_err())
}
