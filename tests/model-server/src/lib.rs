//! A scripted model for demos and tests: it speaks Anthropic Messages and OpenAI Chat Completions with real streaming.
//!
//! What it answers depends on nothing but the request's own conversation, so a request that is sent again gets the same
//! step of the script; but every request gets tool ids of its own, so an answer that was asked for twice shows. What it was
//! asked is appended to a log, one JSON line a request: the effects, counted outside the system under test.
//!
//! Control: `GET /__control/log` (what was asked and what was sent), `POST /__control/release` (held streams go on),
//! `GET /__control/wait?requests=N&held=N&finished=N` (answers with the log when so many were seen).

mod answer;
mod log;
mod request;
mod script;
mod server;

use std::io::Write as _;
use std::path::PathBuf;

use tokio::net::TcpListener;

pub use self::script::{Script, Tool, Turn};

/// Runs the server on these arguments until it is killed; prints `{"url": …}` when it listens.
///
/// # Errors
/// A wrong argument, script or address.
pub fn main(args: impl Iterator<Item = String>) -> Result<(), String> {
    let options = options(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let listener = TcpListener::bind(&options.listen)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
        let address = listener
            .local_addr()
            .map_err(|error| format!("no address: {error}"))?;
        let server = server::Server::new(options.script, options.log)?;
        let line = serde_json::json!({ "url": format!("http://{address}"), "address": address.to_string() });
        let mut out = std::io::stdout();
        writeln!(out, "{line}")
            .and_then(|()| out.flush())
            .map_err(|error| format!("cannot tell the address: {error}"))?;
        server.serve(listener).await;
        Ok(())
    })
}

struct Options {
    listen: String,
    script: Script,
    log: Option<PathBuf>,
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        listen: "127.0.0.1:0".to_owned(),
        script: Script::for_command("echo hello"),
        log: None,
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--listen" => options.listen = value,
            "--tool-command" => options.script = Script::for_command(&value),
            "--log" => options.log = Some(value.into()),
            "--script" => {
                let text = std::fs::read_to_string(&value)
                    .map_err(|error| format!("cannot read {value}: {error}"))?;
                options.script = Script::parse(&text)
                    .map_err(|error| format!("{value} is no script: {error}"))?;
            }
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok(options)
}
