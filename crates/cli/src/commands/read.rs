//! `durable read`

use std::process::ExitCode;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::{OpId, SandboxName};

use super::{Outcome, World, parse};
use crate::stream;

/// Print the exact bytes of one of an operation's output streams.
///
/// Example: durable read ada build-1 --stream stderr --from 4096
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The operation.
    id: String,
    /// Which stream. A terminal has only stdout.
    #[arg(long, default_value = "stdout", value_parser = ["stdout", "stderr"])]
    stream: String,
    /// The first byte wanted.
    #[arg(long, default_value_t = 0, value_name = "OFFSET")]
    from: u64,
    /// Go on until it has settled.
    #[arg(long, short)]
    follow: bool,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let (name, id): (SandboxName, OpId) = (parse(&args.name)?, parse(&args.id)?);
    let mut from = args.from;
    loop {
        let path = format!(
            "/v1/sandboxes/{name}/ops/{}/output/{}?from={from}&follow={}",
            stream::escape(id.as_str()),
            args.stream,
            args.follow
        );
        let ask = || world.client.send(Method::GET, &path, Bytes::new());
        let mut body = crate::again::retry_broken(ask).await?.into_body();
        loop {
            let Some(frame) = body.frame().await else {
                return Ok(ExitCode::SUCCESS);
            };
            // A daemon that is killed loses nothing: the next one is asked for the rest.
            let Ok(frame) = frame else { break };
            if let Ok(data) = frame.into_data() {
                stream::write(0, &data)?;
                from += data.len() as u64;
            }
        }
    }
}
