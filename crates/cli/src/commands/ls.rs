//! `durable ls`

use std::ffi::OsString;
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Method;
use protocol::api::FileView;
use protocol::{ApiError, ErrorCode, SandboxName};
use serde_json::Value;

use super::{Outcome, World, at, parse, print, print_line};

/// Something could not be seen, as `ls` and `find` end then.
const UNSEEN: u8 = 1;

/// List a directory of a sandbox: kind and mode, owner, bytes, age and name.
///
/// What may not be read is left out and told at the end, with exit code 1. A listing is no operation:
/// nothing is journaled. A stopped sandbox is started for it. Characters of a name that would disturb
/// a terminal are escaped; `--json` gives every name exactly.
///
/// Example: durable ls ada /workspace -R
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    /// The sandbox.
    name: String,
    /// The path; a relative one starts in the sandbox's working directory.
    path: OsString,
    /// List the directories in it too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// As whom to look; as whoever runs the sandbox's operations where not given.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let name: SandboxName = parse(&args.name)?;
    let address = format!(
        "/v1/sandboxes/{name}/files/list?{}&recursive={}",
        at(&args.path, args.user.as_deref()),
        args.recursive
    );
    let mut lines = Lines::open(world, &address).await?;
    while let Some(line) = lines.next().await? {
        let value: Value = understood(&line)?;
        if let Some(error) = value.get("error") {
            let error: ApiError = understood(error.to_string().as_bytes())?;
            return match error.code {
                // All the rest is listed.
                ErrorCode::Denied => {
                    world.tell(&error);
                    Ok(ExitCode::from(UNSEEN))
                }
                _ => Err(error),
            };
        }
        if world.json {
            print(&line);
        } else {
            print_line(&shown(&understood(&line)?));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(file: &FileView) -> String {
    let kind = match file.kind.as_str() {
        "directory" => 'd',
        "symlink" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "device" => 'c',
        _ => '-',
    };
    let owner = format!("{}:{}", file.uid, file.gid);
    let when = super::ago(file.modified_ms);
    let target = file.target.as_ref();
    let target = target.map_or(String::new(), |target| format!(" -> {}", quiet(target)));
    format!(
        "{kind} {:04o} {owner:>9} {:>12} {when:>12}  {}{target}",
        file.mode,
        file.size,
        quiet(&file.name)
    )
}

/// Escapes what would disturb a terminal.
pub(super) fn quiet(text: &str) -> String {
    let escaped = |c: char| -> String {
        if c.is_control() {
            c.escape_default().collect()
        } else {
            c.into()
        }
    };
    text.chars().map(escaped).collect()
}

pub(super) fn understood<T: serde::de::DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(json).map_err(|e| {
        ApiError::new(
            ErrorCode::Internal,
            format!("the daemon's answer is not understood: {e}"),
        )
    })
}

/// An answer of lines, one after the other.
pub(super) struct Lines {
    body: hyper::body::Incoming,
    input: BytesMut,
}

impl Lines {
    pub(super) async fn open(world: &World, address: &str) -> Result<Self, ApiError> {
        let ask = || world.client.send(Method::GET, address, Bytes::new());
        let response = crate::stream::retry_broken(ask).await?;
        Ok(Self {
            body: response.into_body(),
            input: BytesMut::new(),
        })
    }

    /// Returns the next line with its end; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.input[looked..].iter().position(|b| *b == b'\n') {
                return Ok(Some(self.input.split_to(looked + end + 1).freeze()));
            }
            looked = self.input.len();
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(|e| crate::client::lost(&e))?.into_data() {
                        self.input.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
