//! What daemon and relay say to each other, in control frames ([`protocol::control`]).
//!
//! The relay speaks first. A [`ToRelay::Begin`] frame is followed by `body_bytes` raw bytes: bodies are larger than frames.

use protocol::control::{decode, encode};
use protocol::{CodecError, ModelRequestId};

use bytes::{Bytes, BytesMut};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The longest request body: what the gateway accepts from a harness.
pub(crate) const MAX_BODY: u64 = 64 << 20;

/// A request as it goes upstream.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Its id; the same id again attaches.
    pub(crate) request: ModelRequestId,
    /// Where to.
    pub(crate) url: String,
    /// How.
    pub(crate) method: String,
    /// With which headers, the key among them.
    pub(crate) headers: Vec<(String, String)>,
    /// The body; travels behind the frame.
    #[serde(skip)]
    pub(crate) body: Bytes,
}

/// From the daemon.
#[derive(Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum ToRelay {
    /// Ask the upstream, unless this id was asked before; answer as to `Attach`.
    Begin {
        /// What to ask.
        begin: Begin,
        /// Length of the body behind this frame.
        body_bytes: u64,
    },
    /// Tell how far the answer is, now and at each change.
    Attach {
        /// Which request.
        request: ModelRequestId,
    },
    /// Which requests are running, and which have a file?
    List,
    /// Nobody needs the file any more: remove it, where the answer is still coming at its end.
    Forget {
        /// Which request.
        request: ModelRequestId,
    },
    /// End as soon as nothing runs, without waiting for the idle time.
    Quit,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The answer is still coming.
    Running,
    /// The file holds its end, durably.
    Ended,
    /// The file could not be written on.
    Broken {
        /// Why.
        error: String,
    },
}

/// From the relay.
#[derive(Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum FromRelay {
    /// The connection counts: the relay does not end while it is there.
    Hello,
    /// How far a request's file reaches.
    Progress {
        /// Which request.
        request: ModelRequestId,
        /// Bytes in its file.
        length: u64,
        /// How far it is.
        #[serde(flatten)]
        stage: Stage,
    },
    /// It does not run here; what its file holds is all there will be.
    NotRunning {
        /// Which request.
        request: ModelRequestId,
    },
    /// The answer to `List`.
    Listed {
        /// Requests whose answer is still coming.
        running: Vec<ModelRequestId>,
        /// Requests that have a file, the running ones included.
        kept: Vec<ModelRequestId>,
    },
}

/// Reads one message; `None` at the end of the connection.
pub(crate) async fn read<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> std::io::Result<Option<T>> {
    loop {
        if let Some(message) = decode(buffer).map_err(damaged)? {
            return Ok(Some(message));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Reads the raw bytes behind a frame.
pub(crate) async fn read_raw(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    length: u64,
) -> std::io::Result<Bytes> {
    let Some(length) = usize::try_from(length).ok().filter(|_| length <= MAX_BODY) else {
        return Err(damaged(CodecError::TooLong(usize::MAX)));
    };
    while buffer.len() < length {
        buffer.reserve(length - buffer.len());
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(buffer.split_to(length).freeze())
}

/// Writes one message with the raw bytes behind it.
pub(crate) async fn write<T: Serialize>(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &T,
    raw: &[u8],
) -> std::io::Result<()> {
    let mut frame = BytesMut::new();
    encode(message, &mut frame).map_err(damaged)?;
    stream.write_all(&frame).await?;
    stream.write_all(raw).await
}

fn damaged(error: CodecError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, error)
}
