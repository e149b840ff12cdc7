//! The connection to one supervisor: frames in, frames out, nothing decided.
//!
//! A link is up only after the fence was answered. What arrives goes to the sandbox's own task; when the connection ends
//! that task is told once, and finds out itself whether the supervisor or only the connection is gone.
//! Beside it there are connections for one request each ([`doors`]).

pub(crate) mod doors;

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use bytes::BytesMut;
use protocol::control::{self, FromSupervisor, ToSupervisor};
use protocol::table::OpRow;
use protocol::{Boot, Epoch, Head};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

/// Frames waiting for a supervisor that does not read. It reads always, so a full queue means that it is stuck.
const QUEUE: usize = 4096;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nobody listens: the supervisor is gone.
    #[error("cannot reach the supervisor at {path}")]
    Unreachable {
        /// The socket.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The supervisor has seen a higher epoch: another daemon owns this sandbox.
    #[error("the supervisor obeys epoch {highest}, this daemon has {ours}")]
    Fenced {
        /// The epoch it obeys.
        highest: Epoch,
        /// Ours.
        ours: Epoch,
    },
    /// What it said makes no sense.
    #[error("the supervisor's answer is not understood: {0}")]
    Protocol(String),
}

/// What a fenced supervisor told of itself.
#[derive(Debug)]
pub(crate) struct Fenced {
    /// Its boot.
    pub(crate) boot: Boot,
    /// What it knows.
    pub(crate) ops: Vec<OpRow>,
    /// The highest journal head it was shown.
    pub(crate) witness: Head,
}

/// Sends to one supervisor.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    frames: mpsc::Sender<ToSupervisor>,
}

impl Link {
    /// Queues a frame. A link that ended drops it: the end itself is reported separately.
    pub(crate) fn send(&self, frame: ToSupervisor) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.frames.try_send(frame) {
            tracing::error!("a supervisor does not read its control socket; the frame is dropped");
        }
    }
}

/// Opens a path that may be longer than a socket address allows.
///
/// # Errors
/// Those of `connect`.
pub(crate) async fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let dir = std::fs::File::open(dir)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())).await
}

/// Connects, fences and starts to forward what the supervisor says; the channel's end is the connection's end.
///
/// # Errors
/// [`Error`]; the supervisor obeys nothing of ours then.
pub(crate) async fn open(
    state: &Path,
    epoch: Epoch,
) -> Result<(Link, Fenced, mpsc::Receiver<FromSupervisor>), Error> {
    let unreachable = |source| unreachable(state, source);
    let mut socket = connect(state, protocol::paths::state::CONTROL)
        .await
        .map_err(unreachable)?;
    let mut out = BytesMut::new();
    encode(&ToSupervisor::Fence { epoch }, &mut out)?;
    socket.write_all(&out).await.map_err(unreachable)?;
    let mut input = BytesMut::with_capacity(64 << 10);
    let fenced = match next(&mut socket, &mut input).await.map_err(unreachable)? {
        Some(Ok(FromSupervisor::Fenced { boot, ops, witness })) => Fenced { boot, ops, witness },
        Some(Ok(FromSupervisor::Refused { highest })) => {
            return Err(Error::Fenced {
                highest,
                ours: epoch,
            });
        }
        Some(Ok(other)) => return Err(Error::Protocol(format!("{other:?} before the fence"))),
        Some(Err(error)) => return Err(Error::Protocol(error.to_string())),
        None => return Err(unreachable(io::ErrorKind::UnexpectedEof.into())),
    };
    let (mut reader, mut writer) = socket.into_split();
    let (frames, mut queue) = mpsc::channel::<ToSupervisor>(QUEUE);
    tokio::spawn(async move {
        let mut out = BytesMut::new();
        while let Some(frame) = queue.recv().await {
            out.clear();
            let mut next = Some(frame);
            while let Some(frame) = next {
                if let Err(error) = control::encode(&frame, &mut out) {
                    tracing::error!(%error, "a frame for the supervisor is too long");
                }
                next = if out.len() < 256 << 10 {
                    queue.try_recv().ok()
                } else {
                    None
                };
            }
            if writer.write_all(&out).await.is_err() {
                return;
            }
        }
    });
    let (deliver, heard) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            match next(&mut reader, &mut input).await {
                Ok(Some(Ok(frame))) => {
                    if deliver.send(frame).await.is_err() {
                        return;
                    }
                }
                Ok(Some(Err(error))) => {
                    tracing::error!(%error, "the supervisor sent a damaged frame");
                    return;
                }
                Ok(None) | Err(_) => return,
            }
        }
    });
    Ok((Link { frames }, fenced, heard))
}

fn unreachable(state: &Path, source: io::Error) -> Error {
    Error::Unreachable {
        path: state.join("control.sock").display().to_string(),
        source,
    }
}

fn encode(frame: &ToSupervisor, out: &mut BytesMut) -> Result<(), Error> {
    control::encode(frame, out).map_err(|e| Error::Protocol(e.to_string()))
}

type Frame = Result<FromSupervisor, protocol::CodecError>;

async fn next<R: tokio::io::AsyncRead + Unpin>(
    reader: &mut R,
    input: &mut BytesMut,
) -> io::Result<Option<Frame>> {
    loop {
        match control::decode(input) {
            Ok(Some(frame)) => return Ok(Some(Ok(frame))),
            Ok(None) => {}
            Err(error) => return Ok(Some(Err(error))),
        }
        if reader.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}
