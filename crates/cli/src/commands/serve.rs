//! `durable serve`

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use protocol::ApiError;

use crate::daemon::{self, Serve};

/// Run the daemon in the foreground.
///
/// Other commands start one by themselves where none runs. Ending it leaves sandboxes running; the next daemon finds them.
///
/// Example: durable serve --listen 127.0.0.1:7777
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// Serve the API on TCP too, for holders of the token in the data directory's `token` file.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Write the daemon's process id to this file.
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    /// Where workspaces are kept: `btrfs` (snapshots), `copy` (anywhere), or what fits.
    #[arg(long, value_name = "KIND", default_value = "auto", value_parser = ["auto", "btrfs", "copy"], env = "DURABLE_POOL")]
    pool: String,
    #[arg(long, hide = true)]
    announce: bool,
}

pub(crate) fn run(args: Args, data: PathBuf) -> Result<ExitCode, ApiError> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("DURABLE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let options = Serve {
        data,
        listen: args.listen,
        pid_file: args.pid_file,
        announce: args.announce,
        pool: match args.pool.as_str() {
            "btrfs" => workspace::Choice::Btrfs,
            "copy" => workspace::Choice::Copy,
            _ => workspace::Choice::Auto,
        },
    };
    match daemon::serve(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            if args.announce
                && let Ok(json) = serde_json::to_string(&error)
            {
                // The command that waits may be gone; the log below has it too.
                let _gone = daemon::announce(&json);
            }
            Err(error)
        }
    }
}
