//! `durable doctor --probe`: attempts to get out, from inside of a sandbox that is made for it and removed after it.

use std::process::ExitCode;

use bytes::Bytes;
use hyper::Method;
use isolation::attempts::{self, Host, Outcome as How, Tried};
use protocol::api::{CreateSandbox, OpView, SandboxView};
use protocol::{
    ApiError, CrashPolicy, ErrorCode, Image, Limits, OpSpec, Replay, Role, SandboxName, paths,
};

use super::super::{Outcome, World, parse, print_json_lines, print_line};
use crate::client;

/// What it may take: little, so that taking too much is soon done.
const PIDS: u64 = 64;
const MEMORY: u64 = 256 << 20;
/// All attempts together; each is bounded by itself.
const TIMEOUT_MS: u64 = 180_000;

/// Makes a sandbox, has every attempt made in it, removes it, and tells what held.
pub(crate) async fn run(world: &World) -> Outcome {
    let name: SandboxName = parse(&format!("doctor-{:08x}", rand::random::<u32>()))?;
    let tried = tokio::select! {
        tried = limited_or_not(&name, world) => tried,
        _ = tokio::signal::ctrl_c() => {
            Err(ApiError::new(ErrorCode::Unavailable, "interrupted").hint("nothing is left of the sandbox"))
        }
    };
    let removed = remove(&name, world).await;
    let tried = tried?;
    removed?;
    tell(&tried, world)
}

/// Where limits cannot be held, a sandbox is made without.
async fn limited_or_not(name: &SandboxName, world: &World) -> Result<Vec<Tried>, ApiError> {
    let defaults = Limits::default();
    let limits = Limits {
        pids: Some(PIDS),
        memory_bytes: Some(MEMORY),
        ..defaults.clone()
    };
    match inside(name, limits, world).await {
        Err(refused) if refused.code != ErrorCode::Internal => {
            remove(name, world).await?;
            inside(name, defaults, world).await
        }
        tried => tried,
    }
}

async fn inside(name: &SandboxName, limits: Limits, world: &World) -> Result<Vec<Tried>, ApiError> {
    let is_limited = limits.memory_bytes.is_some();
    let ask = CreateSandbox {
        name: name.clone(),
        image: Image::Host,
        limits,
        on_crash: CrashPolicy::Keep,
        replicate: None,
        policy: None,
        env: std::collections::BTreeMap::new(),
        cwd: None,
    };
    let _made: SandboxView = world
        .client
        .call(Method::POST, "/v1/sandboxes", &ask)
        .await?;
    // Whatever is put out to be found stays until the attempts are over.
    let (mut host, _bait) = Host::look(world.client.data()).map_err(|e| {
        ApiError::new(
            ErrorCode::Internal,
            format!("cannot put out what must not be found: {e}"),
        )
    })?;
    if is_limited {
        (host.pids, host.memory) = (Some(PIDS), Some(MEMORY));
    }
    let host = client::encode(&host)?;
    let spec = OpSpec {
        argv: vec![
            paths::BIN.to_owned(),
            "__escape".to_owned(),
            String::from_utf8_lossy(&host).into_owned(),
        ],
        cwd: None,
        env: std::collections::BTreeMap::new(),
        user: None,
        timeout_ms: Some(TIMEOUT_MS),
        tty: None,
        stdin: false,
        replay: Replay::Never,
        role: Role::Command,
    };
    let op = format!("/v1/sandboxes/{name}/ops/probe");
    let _begun: OpView = world.client.call(Method::PUT, &op, &spec).await?;
    let view: OpView = world.client.get(&format!("{op}?wait=true")).await?;
    let output = format!("{op}/output/stdout?from=0");
    let output = client::whole(
        world
            .client
            .send(Method::GET, &output, Bytes::new())
            .await?,
    )
    .await?;
    let lines = output
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let tried: Vec<Tried> = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    if tried.len() == attempts::count() {
        return Ok(tried);
    }
    let told = format!(
        "of {} attempts {} were made, then the prober ended ({})",
        attempts::count(),
        tried.len(),
        view.outcome.as_deref().unwrap_or("still running")
    );
    Err(ApiError::new(ErrorCode::Internal, told)
        .hint("`daemon.log` in the data directory may say why"))
}

/// Removes it, also where it was never made.
async fn remove(name: &SandboxName, world: &World) -> Result<(), ApiError> {
    let path = format!("/v1/sandboxes/{name}");
    match world
        .client
        .call::<(), ()>(Method::DELETE, &path, &())
        .await
    {
        Err(error) if error.code != ErrorCode::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn tell(tried: &[Tried], world: &World) -> Outcome {
    let count = |how: How| tried.iter().filter(|tried| tried.outcome == how).count();
    let open = count(How::Open);
    let code = ExitCode::from(u8::from(open > 0));
    if world.json {
        print_json_lines(tried)?;
        return Ok(code);
    }
    for tried in tried {
        let word = match tried.outcome {
            How::Held => "held",
            How::Open => "OPEN",
            How::Untried => "untried",
        };
        // What is inside said part of it.
        let found = tried.found.replace(char::is_control, " ");
        print_line(&format!("{word:<7}  {:<46}  {found}", tried.attempt));
    }
    print_line(&format!(
        "{} attempts: {} held, {open} open, {} could not be made here",
        tried.len(),
        count(How::Held),
        count(How::Untried)
    ));
    Ok(code)
}
