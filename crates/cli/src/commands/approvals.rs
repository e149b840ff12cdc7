//! `durable approvals`, `durable approve` and `durable refuse`

use std::process::ExitCode;

use hyper::Method;
use protocol::egress::{ApprovalView, DecideApproval};
use protocol::{ApprovalId, SandboxName};

use super::{Outcome, World, ago, parse, print_json_lines, print_line};

/// How much of a command is shown.
const MOST_OF_COMMAND: usize = 1000;
/// How much of a body is shown.
const SHOWN: u64 = 1024;

/// List the requests of a sandbox that wait for a person's word: what each is, which operation sends it, and how its body begins.
///
/// A word is for that request and, where its body is at most 64 KiB, for that body; a longer or streamed one is not looked at.
/// A request that nobody waits for any more goes with its time limit and the end of its operation.
///
/// Example: durable approvals ada
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
}

/// Let a request leave that waits for a person's word. Where nothing is held open for it any more, the same request finds the
/// word when it comes again.
///
/// Example: durable approve ada a-0123456789abcdef --remember
#[derive(clap::Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    which: Which,
}

/// Refuse a request that waits for a person's word.
///
/// Example: durable refuse ada a-0123456789abcdef
#[derive(clap::Args)]
pub(crate) struct Refuse {
    #[command(flatten)]
    which: Which,
}

#[derive(clap::Args)]
struct Which {
    /// The sandbox.
    name: String,
    /// The approval, as `durable approvals` lists it.
    id: String,
    /// Make it a rule of the policy: the same method, host and path is not asked again.
    #[arg(long)]
    remember: bool,
}

pub(crate) async fn list(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let path = format!("/v1/sandboxes/{name}/approvals");
    let views: Vec<ApprovalView> = world.client.get(&path).await?;
    if world.json {
        return print_json_lines(&views);
    }
    for view in views {
        show(&view);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one, with what there is to judge it by. All of it was written inside, so none of it reaches the terminal as it is.
fn show(view: &ApprovalView) {
    let state = match (view.allowed, view.held) {
        (Some(true), _) => "approved, not used yet",
        (Some(false), _) => "refused, not used yet",
        (None, true) => "waits",
        (None, false) => "was told to come again",
    };
    print_line(&format!(
        "{}  {}  {}  by rule {}  {state}",
        view.id,
        ago(view.at_ms),
        super::effects::line(&view.request),
        view.rule
    ));
    if let Some(op) = &view.request.op {
        let words = view.command.iter().flatten();
        let words: Vec<String> = words.map(|word| word.escape_debug().to_string()).collect();
        let command: String = words.join(" ").chars().take(MOST_OF_COMMAND).collect();
        let command = match &view.command {
            Some(_) => command,
            None => "has ended".to_owned(),
        };
        print_line(&format!("  of {op}: {command}"));
    }
    let Some(body) = &view.body else { return };
    let length = match body.bytes {
        Some(length) => format!("{length} bytes"),
        None => "streamed, of a length that is not known".to_owned(),
    };
    let content = match &body.digest {
        Some(digest) => format!("BLAKE3 {digest}"),
        None => "not shown: the word is for any body".to_owned(),
    };
    print_line(&format!("  body: {length}, {content}"));
    for line in body.beginning.iter().flat_map(|text| text.lines()) {
        print_line(&format!("  | {line}"));
    }
    if body.beginning.is_some() && body.bytes.is_some_and(|length| length > SHOWN) {
        print_line(&format!("  (the first {SHOWN} bytes of it)"));
    }
}

pub(crate) async fn approve(args: Approve, world: &World) -> Outcome {
    decide(args.which, true, world).await
}

pub(crate) async fn refuse(args: Refuse, world: &World) -> Outcome {
    decide(args.which, false, world).await
}

async fn decide(which: Which, allow: bool, world: &World) -> Outcome {
    let (name, id): (SandboxName, ApprovalId) = (parse(&which.name)?, parse(&which.id)?);
    let word = DecideApproval {
        allow,
        remember: which.remember,
    };
    let path = format!("/v1/sandboxes/{name}/approvals/{id}");
    let (): () = world.client.call(Method::PUT, &path, &word).await?;
    Ok(ExitCode::SUCCESS)
}
