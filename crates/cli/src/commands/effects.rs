//! `durable effects`

use std::process::ExitCode;

use protocol::egress::{EffectState, EffectView};
use protocol::{EffectKind, Outgoing, Passed, SandboxName};

use super::{Outcome, World, ago, bytes, parse, percent, print_json_lines, print_line};

/// List the requests that left a sandbox: what each was, which operation made it, and how it ended.
///
/// Example: durable effects ada --op build-7
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// Only those of this operation.
    #[arg(long, value_name = "ID")]
    op: Option<String>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let of = args
        .op
        .map_or(String::new(), |op| format!("?op={}", percent(&op)));
    let path = format!("/v1/sandboxes/{name}/effects{of}");
    let effects: Vec<EffectView> = world.client.get(&path).await?;
    if world.json {
        return print_json_lines(&effects);
    }
    for effect in effects {
        let op = effect.request.op.as_ref();
        let class = match effect.class {
            EffectKind::Read => "read ",
            EffectKind::Write => "write",
        };
        let end = match (effect.state, &effect.error, effect.status) {
            (EffectState::Open, ..) => "open".to_owned(),
            (EffectState::Replayed, _, status) => format!(
                "{} from the record of {}, did not leave",
                status.map_or_else(|| "answered".to_owned(), |status| status.to_string()),
                effect
                    .repeats
                    .as_ref()
                    .map_or("an earlier one", |of| of.as_str())
            ),
            (EffectState::Broken, Some(error), _) => format!("broken off: {error}"),
            (_, _, Some(status)) => status.to_string(),
            (_, _, None) => "done".to_owned(),
        };
        let secrets: Vec<&str> = effect.secrets.iter().map(|s| s.name.as_str()).collect();
        let with = if secrets.is_empty() {
            String::new()
        } else {
            format!("  with {}", secrets.join(", "))
        };
        print_line(&format!(
            "{}  {class}  {}  {end}  {} out, {} in  {}{with}",
            ago(effect.at_ms),
            line(&effect.request),
            passed(effect.sent.as_ref()),
            passed(effect.received.as_ref()),
            op.map_or("-", |op| op.as_str()),
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes how much passed, as far as that is known.
fn passed(passed: Option<&Passed>) -> String {
    passed.map_or_else(|| "?".to_owned(), |passed| bytes(passed.bytes))
}

/// Writes a request on one line.
pub(super) fn line(request: &Outgoing) -> String {
    let method = request.method.as_deref().unwrap_or("");
    let path = request.path.as_deref().unwrap_or("");
    let usual = matches!(
        (request.protocol.as_str(), request.port),
        ("https" | "wss", 443) | ("http" | "ws", 80)
    );
    let port = if usual {
        String::new()
    } else {
        format!(":{}", request.port)
    };
    // What a program inside wrote must not move a terminal's cursor.
    format!(
        "{method} {}://{}{port}{path}",
        request.protocol, request.host
    )
    .trim_start()
    .escape_debug()
    .to_string()
}
