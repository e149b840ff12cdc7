//! `durable fork`

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hyper::Method;
use protocol::api::{FlushFork, ForkSandbox, MAX_FORKS, MAX_NOTE, SandboxView};
use protocol::{ApiError, ErrorCode, SandboxName};

use super::run::How;
use super::{Outcome, World, parse, print_json, print_line};
use crate::failure;

/// Fork a sandbox: a clone of its whole workspace, with a journal of its own. The source goes on.
///
/// Prints the forks' names. Uncommitted files, build artifacts and the agents' own memories are in
/// the clone; processes are not.
///
/// With --flush a fresh session of the source's agent begins in each fork. It has the files and
/// knows nothing of the conversation; its first input is the hand-off note.
///
/// Examples: durable fork ada --count 4
///           durable fork ada --flush --handoff note.md
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The sandbox.
    source: String,
    /// Where to fork: a checkpoint's id or label, a place in the journal, or `start`. As it is now where not given.
    #[arg(long, value_name = "CHECKPOINT|SEQ")]
    at: Option<String>,
    /// How many; 1000 at most.
    #[arg(long, default_value_t = 1)]
    count: usize,
    /// What to call it; several get -1, -2 and so on behind it. Made from the source's name where not given.
    #[arg(long)]
    name: Option<String>,
    /// Begin a fresh session in the fork, with the agent, the options and the model of the source's last one.
    #[arg(long)]
    flush: bool,
    /// The note that it begins with; `-` reads it from stdin. Where not given, a note that tells what the journal knows:
    /// the last input, what changed since the session began, and its last commands.
    #[arg(long, value_name = "FILE", requires = "flush")]
    handoff: Option<PathBuf>,
    #[command(
        flatten,
        next_help_heading = "Where the session of --flush is to differ from the source's"
    )]
    how: How,
    /// Another agent and its options, without a prompt.
    #[arg(last = true, value_name = "AGENT OPTIONS", requires = "flush")]
    command: Vec<String>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let source: SandboxName = parse(&args.source)?;
    let flush = flush(&args)?;
    let names = match (&args.name, args.count) {
        (Some(name), 1) => vec![parse(name)?],
        (Some(name), count) => numbered(name, count)?,
        (None, count) => {
            // Free for certain: nobody knows it yet.
            let fresh = format!("{source}-{:06x}", rand::random::<u32>() & 0x00ff_ffff);
            if count == 1 {
                vec![parse(&fresh)?]
            } else {
                numbered(&fresh, count)?
            }
        }
    };
    let ask = ForkSandbox {
        names,
        at: args.at,
        flush,
    };
    let views = fork(&source, &ask, world).await?;
    for view in &views {
        if world.json {
            print_json(view)?;
        } else {
            print_line(view.name.as_str());
        }
        if let Some(session) = &view.session {
            let name = &view.name;
            failure::note(&format!(
                "session {session} begins in {name}; `durable attach {name}` shows it"
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn fork(
    source: &SandboxName,
    ask: &ForkSandbox,
    world: &World,
) -> Result<Vec<SandboxView>, ApiError> {
    let path = format!("/v1/sandboxes/{source}/forks");
    world.client.call(Method::POST, &path, ask).await
}

fn flush(args: &Args) -> Result<Option<FlushFork>, ApiError> {
    let how = &args.how;
    if !args.flush {
        if how.is_given() {
            let message = "options of an agent, and none is started without --flush";
            return Err(
                ApiError::new(ErrorCode::Invalid, message).hint("add --flush, or leave them out")
            );
        }
        return Ok(None);
    }
    let mut command = args.command.iter().cloned();
    Ok(Some(FlushFork {
        note: args.handoff.as_deref().map(note).transpose()?,
        harness: command.next(),
        args: command.collect(),
        tty: how.tty(),
        model_url: how.model_url.clone(),
        model_key: how.key()?,
        model_api: how.model_api.clone(),
        model: how.model.clone(),
        env: how.env()?,
    }))
}

fn note(path: &Path) -> Result<String, ApiError> {
    let refused = |why: &dyn std::fmt::Display| {
        let message = format!("hand-off note {}: {why}", path.display());
        ApiError::new(ErrorCode::Invalid, message).hint("nothing was forked")
    };
    let mut bytes = Vec::new();
    let most = MAX_NOTE as u64 + 1;
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|e| refused(&e))?;
    if bytes.len() > MAX_NOTE {
        return Err(refused(&format_args!("it is larger than {MAX_NOTE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| refused(&"it is no UTF-8 text"))?;
    if text.trim().is_empty() {
        return Err(refused(&"it is empty"));
    }
    Ok(text)
}

fn numbered(name: &str, count: usize) -> Result<Vec<SandboxName>, ApiError> {
    if count == 0 {
        return Err(
            ApiError::new(ErrorCode::Invalid, "`--count 0` forks nothing")
                .hint("give the number of forks that you want, 1 or more"),
        );
    }
    if count > MAX_FORKS {
        let message = format!(
            "`--count {count}` is more than {MAX_FORKS} forks, each of which is a sandbox with a journal and files of its own"
        );
        return Err(ApiError::new(ErrorCode::Invalid, message)
            .hint(format!("give {MAX_FORKS} at most; call it again for more")));
    }
    (1..=count).map(|n| parse(&format!("{name}-{n}"))).collect()
}
