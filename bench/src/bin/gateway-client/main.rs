//! The client of the gateway's benchmark: the same program measures directly, through a sandbox's gateway (from inside), and
//! through another proxy. It checks what it gets: a fast wrong answer is a failure.

#![forbid(unsafe_code)]

mod measure;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

use bench::Failure;
use bench::gateway::Task;
use rustix::process::{Resource, getrlimit, setrlimit};

fn main() -> ExitCode {
    let (text, failed) = match run() {
        Ok(measured) => (measured, false),
        Err(failure) => (failure.chain(), true),
    };
    let said = if failed {
        writeln!(std::io::stderr(), "gateway-client: {text}")
    } else {
        writeln!(std::io::stdout(), "{text}")
    };
    if failed || said.is_err() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn run() -> Result<String, Failure> {
    let task = std::env::args().nth(1);
    let task = task
        .ok_or_else(|| Failure::wrong("the task is missing: it is bench/src/gateway.rs in JSON"))?;
    let task: Task = serde_json::from_str(&task).map_err(Failure::cannot("understand the task"))?;
    // A connection for each of a thousand streams.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).map_err(Failure::cannot("be allowed more open files"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::cannot("start a runtime"))?;
    let measured = runtime.block_on(measure::run(&task))?;
    serde_json::to_string(&measured).map_err(Failure::cannot("write what was measured"))
}
