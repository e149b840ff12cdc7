//! What commands about the files of a sandbox share: where they look and as whom, and answers that are lines.

use std::ffi::{OsStr, OsString};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{Method, Response};
use protocol::{ApiError, ErrorCode, SandboxName};

use super::{World, parse, percent, percent_bytes};

/// A path in a sandbox, and whose eyes see it; shared by `cat`, `ls` and `watch`.
#[derive(clap::Args)]
pub(super) struct Inside {
    /// The sandbox.
    name: String,
    /// The path; a relative one starts in the sandbox's working directory.
    path: OsString,
    /// As whom; as whoever runs the sandbox's operations where not given.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Inside {
    /// Returns the address of its files; `verb` is empty, or such as `/list`.
    pub(super) fn address(&self, verb: &str) -> Result<String, ApiError> {
        let name: SandboxName = parse(&self.name)?;
        let at = at(&self.path, self.user.as_deref());
        Ok(format!("/v1/sandboxes/{name}/files{verb}?{at}"))
    }
}

/// Makes the query that names a path in a sandbox, of any bytes, and with whose rights.
pub(super) fn at(path: &OsStr, user: Option<&str>) -> String {
    let user = user.map_or(String::new(), |user| format!("&user={}", percent(user)));
    format!("path={}{user}", percent_bytes(path.as_encoded_bytes()))
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

/// Reads JSON of the daemon's.
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
    body: Incoming,
    input: BytesMut,
}

impl Lines {
    /// Asks for one.
    pub(super) async fn open(world: &World, address: &str) -> Result<Self, ApiError> {
        let ask = || world.client.send(Method::GET, address, Bytes::new());
        Ok(Self::of(crate::again::retry_broken(ask).await?))
    }

    /// Reads one that has begun.
    pub(super) fn of(response: Response<Incoming>) -> Self {
        Self {
            body: response.into_body(),
            input: BytesMut::new(),
        }
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
