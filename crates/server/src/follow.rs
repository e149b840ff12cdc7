//! Following an operation's output: from an offset, exact, until its settlement.
//!
//! Bytes come from the spool file, never from memory: a slow client holds up nobody, and one that comes back asks from
//! where it was.

use axum::body::{Body, Bytes};
use engine::{Attached, spool};
use protocol::api::frames::{self, Kind};
use protocol::{ApiError, ErrorCode, Stream};

use crate::body::{self, Sender};

/// Bytes read from the spool at a time.
const CHUNK: usize = 1 << 20;
/// Chunks in flight to one client.
const WINDOW: usize = 2;

/// Both streams and the settlement, framed (see [`protocol::api::frames`]).
pub(crate) fn framed(attached: Attached, stdout: u64, stderr: u64) -> Body {
    let (sender, body) = body::channel(WINDOW);
    tokio::spawn(async move {
        // An error here is a client that went away.
        let _gone: Option<()> = send_framed(attached, [stdout, stderr], &sender).await;
    });
    body
}

async fn send_framed(mut attached: Attached, from: [u64; 2], sender: &Sender) -> Option<()> {
    const STREAMS: [(Stream, Kind); 2] = [
        (Stream::Stdout, Kind::Stdout),
        (Stream::Stderr, Kind::Stderr),
    ];
    let mut at = from;
    let mut attempt = attached.view.attempt;
    let open = |attempt| {
        STREAMS.map(|(stream, _)| {
            spool::Reader::new(&attached.state_dir, &attached.view.id, attempt, stream)
        })
    };
    let mut readers = open(attempt);
    json(sender, Kind::Known, &attached.view).await?;
    loop {
        let progress = attached.progress.borrow_and_update().clone();
        if progress.attempt != attempt {
            // It was run again, as its caller allowed: its output starts anew, and the client is told.
            attempt = progress.attempt;
            readers = open(attempt);
            at = [0, 0];
            let view = protocol::api::OpView {
                attempt,
                ..attached.view.clone()
            };
            json(sender, Kind::Known, &view).await?;
        }
        for (i, end) in [progress.stdout.0, progress.stderr.0]
            .into_iter()
            .enumerate()
        {
            while at[i] < end {
                let want = usize::try_from(end - at[i]).unwrap_or(CHUNK).min(CHUNK);
                let bytes = match readers[i].read(at[i], want) {
                    Ok(bytes) if !bytes.is_empty() => bytes,
                    other => {
                        let why = other.map_or_else(|e| e.to_string(), |_| "it is cut off".into());
                        return json(sender, Kind::Error, &damaged(&why)).await;
                    }
                };
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let header = frames::header(STREAMS[i].1, at[i], length);
                at[i] += bytes.len() as u64;
                sender
                    .send(Ok(Bytes::copy_from_slice(&header)))
                    .await
                    .ok()?;
                sender.send(Ok(bytes.into())).await.ok()?;
            }
        }
        if let Some(view) = progress.settled {
            return json(sender, Kind::Settled, view.as_ref()).await;
        }
        if attached.progress.changed().await.is_err() {
            let gone = ApiError::new(ErrorCode::Unavailable, "the daemon let go of the sandbox");
            return json(sender, Kind::Error, &gone).await;
        }
    }
}

fn damaged(why: &str) -> ApiError {
    ApiError::new(
        ErrorCode::Corrupt,
        format!("the spooled output cannot be read: {why}"),
    )
}

async fn json<T: serde::Serialize>(sender: &Sender, kind: Kind, content: &T) -> Option<()> {
    let json = serde_json::to_vec(content).ok()?;
    sender.send(Ok(frames::frame(kind, 0, &json))).await.ok()
}

/// One stream's bytes from `from` on; to the settlement where `follow`, else as far as it is now.
pub(crate) fn raw(mut attached: Attached, stream: Stream, from: u64, follow: bool) -> Body {
    let (sender, body) = body::channel(WINDOW);
    tokio::spawn(async move {
        let attempt = attached.progress.borrow().attempt;
        let mut reader =
            spool::Reader::new(&attached.state_dir, &attached.view.id, attempt, stream);
        let mut at = from;
        loop {
            let progress = attached.progress.borrow_and_update().clone();
            let end = match stream {
                Stream::Stdout => progress.stdout.0,
                Stream::Stderr => progress.stderr.0,
            };
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                let Ok(bytes) = reader.read(at, want) else {
                    return;
                };
                if bytes.is_empty() {
                    return;
                }
                at += bytes.len() as u64;
                if sender.send(Ok(bytes.into())).await.is_err() {
                    return;
                }
            }
            let over = progress.settled.is_some() || !follow;
            if over || attached.progress.changed().await.is_err() {
                return;
            }
        }
    });
    body
}
