//! `durable-shell`: what a harness takes for its shell.
//!
//! A marked command is handed to the supervisor and runs outside the harness's process tree; this process only shows its
//! output and its end. If it is not known whether a command ran it is never run here instead.

mod args;
mod client;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use protocol::OpId;
use protocol::shim::{Exec, unmark};

use args::Args;

/// The shells that a sandbox may have, the better one first.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
/// Told to the harness where there is no exit code of the command's own.
const NO_EXIT_CODE: i32 = 125;
/// Names the file for [`KEEP_CWD`]; not part of what two commands are compared by.
const CWD_FILE: &str = "DURABLE_CWD_FILE";
/// Put before a command whose last working directory is wanted.
const KEEP_CWD: &str = r#"trap '{ pwd -P >| "$DURABLE_CWD_FILE"; } 2>/dev/null' EXIT"#;

/// Runs the command, marked or not; returns the exit code.
pub(crate) fn main(
    args: Vec<OsString>,
    recognise: &dyn Fn(&str) -> Option<crate::ToolCall>,
) -> i32 {
    let args = args::parse(args);
    let command = args.command.map(|at| args.all[at].as_os_str());
    // Without a file for the working directory the command is compared as the model wrote it.
    let call = command.and_then(OsStr::to_str).and_then(recognise);
    if let (Some(call), None) = (call, &args.cwd_file) {
        return match wrapped(call) {
            Ok(exec) => client::run(exec),
            Err(why) => {
                tell(&why);
                NO_EXIT_CODE
            }
        };
    }
    let marked = command
        .and_then(OsStr::to_str)
        .and_then(unmark)
        .map(|(op, command)| (op, command.to_owned()));
    match marked {
        Some((op, command)) => match request(op, &command, &args) {
            Ok(exec) => client::run(exec),
            Err(why) => {
                tell(&why);
                NO_EXIT_CODE
            }
        },
        None => execute(&args.all),
    }
}

/// Becomes the sandbox's shell; returns only if there is none.
fn execute(all: &[OsString]) -> i32 {
    let shell = shell();
    let error = Command::new(shell).args(all).exec();
    tell(&format!("{shell} could not be executed: {error}"));
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

fn shell() -> &'static str {
    let has = |shell: &&&str| std::fs::metadata(shell).is_ok();
    SHELLS.iter().find(has).copied().unwrap_or(SHELLS[1])
}

/// Words the request for a call in a harness's wrapping.
fn wrapped(call: crate::ToolCall) -> Result<Exec, String> {
    let mut env = environment();
    env.extend(call.env);
    Ok(Exec {
        op: call.op,
        argv: call.argv,
        cwd: directory()?,
        env,
    })
}

fn environment() -> BTreeMap<String, String> {
    // What is no text cannot travel; nobody but a test sets such variables.
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn directory() -> Result<String, String> {
    std::env::current_dir()
        .map_err(|e| format!("the working directory cannot be found: {e}"))?
        .into_os_string()
        .into_string()
        .map_err(|_| "the working directory has no readable name".to_owned())
}

/// Words the request: the same shell, options and all, with the command as the model wrote it.
fn request(op: OpId, command: &str, args: &Args) -> Result<Exec, String> {
    let mut env = environment();
    let mut command = command.to_owned();
    if let Some(file) = &args.cwd_file {
        let file = file
            .to_str()
            .ok_or("the file for the working directory has no readable name")?;
        env.insert(CWD_FILE.to_owned(), file.to_owned());
        command = format!("{KEEP_CWD}\n{command}");
    }
    let mut argv = vec![shell().to_owned()];
    for (at, arg) in args.all.iter().enumerate() {
        if Some(at) == args.command {
            argv.push(std::mem::take(&mut command));
        } else {
            let arg = arg
                .to_str()
                .ok_or("an argument of the command is no text")?;
            argv.push(arg.to_owned());
        }
    }
    let cwd = directory()?;
    Ok(Exec { op, argv, cwd, env })
}

/// Tells the harness something; the model reads it.
fn tell(text: &str) {
    // Without a stderr nobody reads it.
    let _told: io::Result<()> = writeln!(io::stderr(), "durable: {text}");
}
