//! The `durable` binary: command line, daemon, supervisor, relay and shim in one.
//!
//! Which one it is stands in its name and its first argument. The commands talk to the daemon's public API like any other
//! client and start a daemon where none runs, as tmux does.

#![forbid(unsafe_code)]

mod again;
mod client;
mod commands;
mod daemon;
mod failure;
mod stream;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let called = Path::new(&name).file_name().unwrap_or_default();
    if called == "durable-shell" {
        return code(supervisor::shell_main(args.collect(), &tool_call));
    }
    let rest: Vec<OsString> = args.collect();
    match rest.first().and_then(|first| first.to_str()) {
        Some("__supervisor") => code(daemon::supervise()),
        Some("__relay") => code(daemon::relay(&rest[1..])),
        Some("__thaw") => code(daemon::thaw()),
        Some("__box") => code(supervisor::box_main(rest[1..].to_vec())),
        Some("__escape") => code(isolation::attempts::main(&rest[1..])),
        Some("__openapi") => code(commands::openapi()),
        Some("__hook") => code(commands::hook(&rest[1..])),
        _ => commands::run(),
    }
}

/// Finds the tool call in what a harness gave to its shell.
fn tool_call(text: &str) -> Option<supervisor::ToolCall> {
    let bash_env = std::env::var(harness::shell::BASH_ENV_AT).ok();
    let call = harness::shell::call(text, bash_env.as_deref())?;
    Some(supervisor::ToolCall {
        op: call.op,
        argv: call.argv,
        env: call.env,
    })
}

/// Exit codes outside of a byte do not exist; one that does not fit is a failure of ours.
fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(125))
}
