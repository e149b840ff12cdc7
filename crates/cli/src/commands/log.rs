//! `durable log`

use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::{ApiError, SandboxName};
use serde_json::Value;

use super::{Outcome, World, parse, print, print_line};

/// Print a sandbox's journal.
///
/// Example: durable log ada --follow
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The first place wanted.
    #[arg(long, default_value_t = 1, value_name = "SEQ")]
    from: u64,
    /// Go on with what is appended later.
    #[arg(long, short)]
    follow: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let mut next = args.from.max(1);
    loop {
        let path = format!(
            "/v1/sandboxes/{name}/journal?from={next}&follow={}",
            args.follow
        );
        let ask = || world.client.send(Method::GET, &path, Bytes::new());
        let mut body = crate::again::retry_broken(ask).await?.into_body();
        let mut input = BytesMut::new();
        let ended = loop {
            let Some(frame) = body.frame().await else {
                break true;
            };
            // A daemon that is killed loses nothing: the next one is asked for the rest.
            let Ok(frame) = frame else { break false };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            input.extend_from_slice(&data);
            while let Some(end) = input.iter().position(|b| *b == b'\n') {
                let line = input.split_to(end + 1);
                next += 1;
                show(&line, world.json)?;
            }
        };
        if ended {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn show(line: &[u8], json: bool) -> Result<(), ApiError> {
    let event: Value = serde_json::from_slice(line).unwrap_or_default();
    // An event may have a field of that name too; only the end of what can be read has both.
    if let (Some(error), Some(_)) = (event.get("error"), event.get("readable_until")) {
        let mut error: ApiError = serde_json::from_value(error.clone()).unwrap_or_else(|_| {
            ApiError::new(
                protocol::ErrorCode::Corrupt,
                "the journal cannot be read further",
            )
        });
        let until = event["readable_until"].as_u64().unwrap_or(0);
        error.message = format!("{} (events 1 to {until} can be read)", error.message);
        return Err(error);
    }
    if json {
        print(line);
    } else {
        print_line(&sentence(&event));
    }
    Ok(())
}

/// One event as one line: place, time of day (UTC), kind, and what matters of the rest.
fn sentence(event: &Value) -> String {
    let seq = event["seq"].as_u64().unwrap_or(0);
    let at = event["at_ms"].as_u64().unwrap_or(0);
    let seconds = at / 1000 % 86400;
    let clock = format!(
        "{:02}:{:02}:{:02}.{:03}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        at % 1000
    );
    let kind = event["kind"].as_str().unwrap_or("?");
    format!("{seq:>6}  {clock}  {kind:<16} {}", detail(kind, event))
}

fn detail(kind: &str, event: &Value) -> String {
    let text = |key: &str| match &event[key] {
        Value::String(s) => s.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    match kind {
        "created" => {
            format!(
                "{} image {}",
                event["spec"]["name"].as_str().unwrap_or(""),
                event["spec"]["image"].as_str().unwrap_or("")
            )
        }
        "op_intent" => {
            let argv: Vec<&str> = event["spec"]["argv"]
                .as_array()
                .map(|a| a.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let line: String = argv.join(" ").escape_debug().take(100).collect();
            format!("{} ({}): {line}", text("op"), text("origin"))
        }
        "op_started" => format!("{} attempt {}", text("op"), text("attempt")),
        "op_settled" => {
            let s = &event["settlement"];
            let outcome = s["outcome"].as_str().unwrap_or("?");
            let with = s["exit_code"].as_u64().or(s["signal"].as_u64());
            let with = with.map(|n| format!(" {n}")).unwrap_or_default();
            let cut = event["cut"]
                .as_str()
                .map(|c| format!(", cut {c}"))
                .unwrap_or_default();
            let error = s["error"]
                .as_str()
                .map(|e| format!(" ({e})"))
                .unwrap_or_default();
            format!(
                "{} {outcome}{with}, {}+{} bytes{cut}{error}",
                text("op"),
                s["stdout_bytes"],
                s["stderr_bytes"]
            )
        }
        "model_requested" => {
            let digest: String = text("digest").chars().take(12).collect();
            format!(
                "{} {} digest {digest} attempt {}",
                text("request"),
                text("path"),
                text("attempt")
            )
        }
        "model_responded" => format!("{} status {}", text("request"), text("status")),
        "model_output" => {
            let bytes = event["data"].as_str().map_or(0, |d| d.len() / 4 * 3);
            format!(
                "{} at {}, about {bytes} bytes",
                text("request"),
                text("offset")
            )
        }
        "effect_output" => {
            let bytes = event["data"].as_str().map_or(0, |d| d.len() / 4 * 3);
            format!(
                "{} at {}, about {bytes} bytes",
                text("effect"),
                text("offset")
            )
        }
        "model_settled" => {
            let calls: Vec<&str> = event["tool_calls"]
                .as_array()
                .map(|a| a.iter().filter_map(|c| c["id"].as_str()).collect())
                .unwrap_or_default();
            let calls = if calls.is_empty() {
                String::new()
            } else {
                format!(", calls {}", calls.join(" "))
            };
            format!(
                "{} {}, {} bytes{calls}",
                text("request"),
                text("outcome"),
                text("bytes")
            )
        }
        "session_started" => format!("{} {} by {}", text("harness"), text("session"), text("op")),
        "session_resumed" => {
            let repaired: Vec<&str> = event["repaired"]
                .as_array()
                .map(|a| a.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            format!(
                "{} attempt {} by {}, repaired [{}]",
                text("session"),
                text("attempt"),
                text("op"),
                repaired.join(" ")
            )
        }
        _ => {
            let mut rest = event.as_object().cloned().unwrap_or_default();
            for known in ["seq", "at_ms", "kind", "hash", "epoch"] {
                rest.remove(known);
            }
            rest.iter()
                .map(|(k, v)| {
                    format!(
                        "{k} {}",
                        v.as_str().map_or_else(|| v.to_string(), str::to_owned)
                    )
                })
                .collect::<Vec<_>>()
                .join(", ")
        }
    }
}
