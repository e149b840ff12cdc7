//! `durable doctor`

mod probe;

use std::path::Path;
use std::process::ExitCode;

use isolation::Level as _;
use protocol::{ApiError, ErrorCode};
use serde_json::json;

use super::{print_json, print_line};

/// Say what this machine can and cannot do, and how to get it.
///
/// With `--probe` it makes a sandbox, tries to get out of it in some sixty ways, and says which of them held; the exit code
/// is 1 where one did not. Nothing is left of it.
///
/// Example: durable doctor --probe
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Try to get out of a sandbox.
    #[arg(long)]
    pub(crate) probe: bool,
}

pub(crate) use probe::run as probe;

struct Line {
    verdict: &'static str,
    name: String,
    found: String,
    remedy: String,
}

pub(crate) fn run(_args: &Args, data: &Path, json: bool) -> Result<ExitCode, ApiError> {
    let mut lines = Vec::new();
    // It must work before anything exists, and change nothing: an absent directory is looked at by its nearest parent.
    let place = data
        .ancestors()
        .find(|p| p.is_dir())
        .unwrap_or(Path::new("/"));
    match isolation::container::Container::new(place) {
        Ok(level) => {
            for check in level.doctor() {
                lines.push(Line {
                    verdict: match check.verdict {
                        isolation::Verdict::Ok => "ok",
                        isolation::Verdict::Degraded => "degraded",
                        isolation::Verdict::Missing => "missing",
                    },
                    name: check.name.to_owned(),
                    found: check.found,
                    remedy: check.remedy,
                });
            }
        }
        Err(error) => lines.push(Line {
            verdict: "missing",
            name: "containers".to_owned(),
            found: error.to_string(),
            remedy: error.remedy().unwrap_or_default().to_owned(),
        }),
    }
    for fact in workspace::doctor(place) {
        lines.push(Line {
            verdict: if fact.ok { "ok" } else { "degraded" },
            name: fact.name.to_owned(),
            found: fact.detail,
            remedy: fact.hint.unwrap_or_default(),
        });
    }
    let npm = std::process::Command::new("npm").arg("--version").output();
    let npm = npm.ok().filter(|out| out.status.success());
    lines.push(Line {
        verdict: if npm.is_some() { "ok" } else { "degraded" },
        name: "npm".to_owned(),
        found: npm.map_or_else(
            || "not found".to_owned(),
            |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        ),
        remedy: "needed by `durable harness install` only: install Node.js".to_owned(),
    });
    let missing = lines
        .iter()
        .filter(|line| line.verdict == "missing")
        .count();
    for line in &lines {
        if json {
            print_json(&json!({
                "check": line.name, "verdict": line.verdict, "found": line.found, "remedy": line.remedy,
            }))?;
            continue;
        }
        print_line(&format!(
            "{:<9} {:<28} {}",
            line.verdict, line.name, line.found
        ));
        if line.verdict != "ok" && !line.remedy.is_empty() {
            print_line(&format!("{:<9} {:<28} → {}", "", "", line.remedy));
        }
    }
    if missing > 0 {
        return Err(ApiError::new(
            ErrorCode::Unavailable,
            format!("{missing} things are missing without which no sandbox can be started"),
        )
        .hint("see the lines above"));
    }
    Ok(ExitCode::SUCCESS)
}
