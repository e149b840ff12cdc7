//! Streams an operation to a shim: its output from the start, then its settlement when the journal has that.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use protocol::control::encode;
use protocol::shim::Reply;
use protocol::{Offset, OpId, Settlement, Stream};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;

use crate::core::Core;
use crate::ops::Op;
use crate::outbox::Reach;

/// The most output in one frame.
const PIECE: usize = 64 << 10;

/// What a shim is told about.
pub(super) enum Target {
    /// One that the supervisor knows.
    Known(Rc<Op>),
    /// One that only the journal remembers.
    Stored {
        op: OpId,
        attempt: u32,
        settlement: Settlement,
    },
}

/// Delivers all of it. Returns when the shim has everything, or cannot be reached.
pub(super) async fn deliver(
    core: &Core,
    target: &Target,
    out: &mut OwnedWriteHalf,
) -> io::Result<()> {
    match target {
        Target::Known(op) => follow(core, op, out).await,
        Target::Stored {
            op,
            attempt,
            settlement,
        } => {
            let reach = Reach {
                attempt: *attempt,
                stdout: settlement.stdout_bytes.0,
                stderr: settlement.stderr_bytes.0,
            };
            let mut reading = Reading::new(core, op, *attempt);
            while reading.send(reach, out).await? {}
            let settlement = settlement.clone();
            say(&Reply::Settled { settlement }, out).await
        }
    }
}

async fn follow(core: &Core, op: &Op, out: &mut OwnedWriteHalf) -> io::Result<()> {
    let mut reading = Reading::new(core, &op.id, op.attempt);
    loop {
        let changed = op.changed.notified();
        let end = op.settlement().filter(|_| op.announced.get());
        if reading.send(op.reach(), out).await? {
            continue;
        }
        if let Some(settlement) = end {
            return say(&Reply::Settled { settlement }, out).await;
        }
        changed.await;
    }
}

/// Says one thing.
pub(super) async fn say(reply: &Reply, out: &mut OwnedWriteHalf) -> io::Result<()> {
    let mut frame = BytesMut::new();
    encode(reply, &mut frame).map_err(io::Error::other)?;
    out.write_all(&frame).await
}

/// How far a shim has been served.
struct Reading<'a> {
    core: &'a Core,
    op: &'a OpId,
    attempt: u32,
    streams: [(Stream, u64, Option<OwnedFd>); 2],
}

impl<'a> Reading<'a> {
    fn new(core: &'a Core, op: &'a OpId, attempt: u32) -> Self {
        Self {
            core,
            op,
            attempt,
            streams: [(Stream::Stdout, 0, None), (Stream::Stderr, 0, None)],
        }
    }

    /// Sends a piece of each stream; `false` if there was none.
    async fn send(&mut self, reach: Reach, out: &mut OwnedWriteHalf) -> io::Result<bool> {
        let mut sent = false;
        for (stream, at, file) in &mut self.streams {
            let end = match stream {
                Stream::Stdout => reach.stdout,
                Stream::Stderr => reach.stderr,
            };
            if *at >= end {
                continue;
            }
            if file.is_none() {
                *file = self.core.spool.read(self.op, self.attempt, *stream)?;
            }
            let left = usize::try_from(end - *at).unwrap_or(usize::MAX);
            let mut piece = vec![0; left.min(PIECE)];
            let length = match file {
                Some(file) => rustix::io::pread(file, &mut piece, *at)?,
                None => 0,
            };
            if length == 0 {
                // The daemon has deleted it; what is gone cannot be waited for.
                *at = end;
                continue;
            }
            piece.truncate(length);
            let reply = Reply::Output {
                stream: *stream,
                offset: Offset(*at),
                data: Bytes::from(piece),
            };
            say(&reply, out).await?;
            *at += length as u64;
            sent = true;
        }
        Ok(sent)
    }
}
