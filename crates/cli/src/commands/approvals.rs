//! `durable approvals`, `durable approve` and `durable refuse`

use std::process::ExitCode;

use hyper::Method;
use protocol::egress::{ApprovalView, DecideApproval};
use protocol::{ApprovalId, SandboxName};

use super::{Outcome, World, ago, parse, print_json_lines, print_line};

/// List the requests of a sandbox that wait for a person's word.
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
    }
    Ok(ExitCode::SUCCESS)
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
