//! `durable op`

use std::process::ExitCode;

use protocol::api::OpView;
use protocol::{OpId, SandboxName};

use super::{Outcome, World, parse, print_json, print_line};

/// Show one operation, cancel it or send it a signal.
///
/// Example: durable op ada build-1 --json
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The operation.
    id: String,
    /// Wait until it has settled.
    #[arg(long)]
    wait: bool,
    /// End it: SIGTERM, then SIGKILL.
    #[arg(long, conflicts_with = "signal")]
    cancel: bool,
    /// Send a signal to its process group.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    signal: Option<u8>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let (name, id): (SandboxName, OpId) = (parse(&args.name)?, parse(&args.id)?);
    let path = format!(
        "/v1/sandboxes/{name}/ops/{}",
        crate::stream::escape(id.as_str())
    );
    if let Some(signal) = args.signal {
        let url = format!("{path}/signal?signal={signal}");
        let _view: OpView = world.client.call(hyper::Method::POST, &url, &()).await?;
    }
    if args.cancel {
        let _view: OpView = world
            .client
            .call(hyper::Method::POST, &format!("{path}/cancel"), &())
            .await?;
    }
    let path = format!("{path}?wait={}", args.wait);
    let view: OpView = world.client.get(&path).await?;
    if world.json {
        print_json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = format!("{:?}", view.state).to_lowercase();
    print_line(&format!("id        {}", view.id));
    print_line(&format!("command   {}", view.argv.join(" ").escape_debug()));
    print_line(&format!("state     {state}"));
    if let Some(outcome) = &view.outcome {
        let detail = view
            .exit_code
            .map(|c| format!(" {c}"))
            .or(view.signal.map(|s| format!(" {s}")));
        print_line(&format!(
            "outcome   {outcome}{}",
            detail.unwrap_or_default()
        ));
    }
    print_line(&format!("stdout    {} bytes", view.stdout_bytes));
    print_line(&format!("stderr    {} bytes", view.stderr_bytes));
    let cut = match (&view.cut, view.outcome.as_deref(), &view.error) {
        (Some(cut), ..) => cut.as_str(),
        (None, Some("exited" | "signaled"), None) => "none: it changed nothing",
        (None, ..) => "none",
    };
    print_line(&format!("cut       {cut}"));
    print_line(&format!("attempt   {}", view.attempt));
    let settled = view
        .settled_seq
        .map(|s| format!(", settled {s}"))
        .unwrap_or_default();
    print_line(&format!("journal   intent {}{settled}", view.intent_seq));
    if let Some(error) = &view.error {
        print_line(&format!("error     {error}"));
    }
    Ok(ExitCode::SUCCESS)
}
