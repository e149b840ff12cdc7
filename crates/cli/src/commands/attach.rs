//! `durable attach`

use protocol::api::SandboxView;
use protocol::{ApiError, ErrorCode, OpId, SandboxName};

use super::{Outcome, World, parse};
use crate::stream::{Follow, Input};

/// Follow an operation, or a sandbox's harness session, from its first byte to its end.
///
/// Example: durable attach ada build-1
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The operation; the session that goes on where not given.
    op: Option<String>,
    /// Send our stdin.
    #[arg(short = 'i', long)]
    interactive: bool,
    /// Skip what was printed before.
    #[arg(long)]
    tail: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let sandbox: SandboxName = parse(&args.name)?;
    let input = input(args.interactive);
    let Some(op) = args.op else {
        let view: SandboxView = world
            .client
            .get(&format!("/v1/sandboxes/{sandbox}"))
            .await?;
        let session = view.session.ok_or_else(|| {
            ApiError::new(
                ErrorCode::NotFound,
                format!("sandbox `{sandbox}` has no session that goes on"),
            )
            .hint(format!(
                "name an operation; `durable ps {sandbox}` lists them"
            ))
        })?;
        return super::run::follow_session(world, &sandbox, &session, input).await;
    };
    let op: OpId = parse(&op)?;
    let from = if args.tail {
        let path = format!(
            "/v1/sandboxes/{sandbox}/ops/{}",
            crate::stream::escape(op.as_str())
        );
        let view: protocol::api::OpView = world.client.get(&path).await?;
        [view.stdout_bytes.0, view.stderr_bytes.0]
    } else {
        [0, 0]
    };
    let follow = Follow {
        client: world.client.clone(),
        sandbox,
        op,
        input,
    };
    let view = follow.attach(from).await?;
    super::exec::finish(&view, world)
}

/// How our stdin is used where the caller wants it sent.
pub(crate) fn input(interactive: bool) -> Input {
    match (
        interactive,
        std::io::IsTerminal::is_terminal(&std::io::stdin()),
    ) {
        (false, _) => Input::None,
        (true, false) => Input::Forward,
        (true, true) => Input::Terminal,
    }
}
