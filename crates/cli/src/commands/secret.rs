//! `durable secret`

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::egress::SecretView;
use protocol::{ApiError, ErrorCode};

use super::{Outcome, World, ago, percent, print_json, print_json_lines, print_line};

/// The longest secret.
const LONGEST: u64 = 64 << 10;

/// Keep secrets on the host, for policies to put into requests on their way out. No sandbox ever sees one.
///
/// Example: durable secret set github < token.txt
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Keep a secret, or give it another value, which the next request uses. The value is read from standard input.
    Set {
        /// What policies call it: `from = "NAME"`.
        name: String,
    },
    /// List the names of secrets.
    Ls,
    /// Forget secrets: no request gets them from now on.
    Rm {
        /// Their names.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    match args.verb {
        Verb::Set { name } => set(&name, world).await,
        Verb::Ls => list(world).await,
        Verb::Rm { names } => {
            for name in names {
                let path = address(&name)?;
                let (): () = world.client.call(Method::DELETE, &path, &()).await?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn set(name: &str, world: &World) -> Outcome {
    let path = address(name)?;
    let value = value(name)?;
    let response = world.client.send(Method::PUT, &path, value.into()).await?;
    if world.json {
        let body = response.into_body().collect().await;
        let body = body.map_err(|e| crate::client::lost(&e))?.to_bytes();
        let view: SecretView = serde_json::from_slice(&body)
            .map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
        print_json(&view)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn address(name: &str) -> Result<String, ApiError> {
    secret::check_name(name)
        .map_err(|wrong| ApiError::new(ErrorCode::Invalid, wrong.to_string()))?;
    Ok(format!("/v1/secrets/{}", percent(name)))
}

/// Reads the value: of a terminal one line, which is not shown, and of anything else all of it but a last newline.
fn value(name: &str) -> Result<Vec<u8>, ApiError> {
    let stdin = std::io::stdin();
    let failed = |e: std::io::Error| {
        let what = format!("the value of secret `{name}` cannot be read: {e}");
        ApiError::new(ErrorCode::Invalid, what)
    };
    let mut value = Vec::new();
    if stdin.is_terminal() {
        let shown = rustix::termios::tcgetattr(&stdin).map_err(|e| failed(e.into()))?;
        let mut hidden = shown.clone();
        hidden.local_modes -= rustix::termios::LocalModes::ECHO;
        let when = rustix::termios::OptionalActions::Flush;
        rustix::termios::tcsetattr(&stdin, when, &hidden).map_err(|e| failed(e.into()))?;
        let mut line = String::new();
        // A prompt that cannot be shown is none.
        let _shown = write!(std::io::stderr(), "value of {name}: ");
        let read = stdin.read_line(&mut line);
        let _again = rustix::termios::tcsetattr(&stdin, when, &shown);
        let _shown = writeln!(std::io::stderr());
        read.map_err(failed)?;
        value = line.into_bytes();
    } else {
        let mut limited = stdin.lock().take(LONGEST + 1);
        limited.read_to_end(&mut value).map_err(failed)?;
    }
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
        if !stdin.is_terminal() {
            // Where nobody reads it nobody asks.
            let _said = writeln!(
                std::io::stderr(),
                "the end of line after the value is left out"
            );
        }
    }
    let wrong = match value.len() as u64 {
        0 => "is empty",
        len if len > LONGEST => "is longer than 64 KiB",
        _ => return Ok(value),
    };
    Err(ApiError::new(
        ErrorCode::Invalid,
        format!("the value of secret `{name}` {wrong}"),
    )
    .hint(format!(
        "give it on standard input: `durable secret set {name} < FILE`"
    )))
}

async fn list(world: &World) -> Outcome {
    let views: Vec<SecretView> = world.client.get("/v1/secrets").await?;
    if world.json {
        return print_json_lines(&views);
    }
    for view in views {
        let when = ago(view.changed_at_ms);
        print_line(&format!("{}  {}  {when}", view.name, view.fingerprint));
    }
    Ok(ExitCode::SUCCESS)
}
