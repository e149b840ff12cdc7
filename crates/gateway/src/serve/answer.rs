//! The body of one answer: the recorded part first, then the live rest, as far as it may be shown.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use protocol::{Event, ModelRequestId, Seq};

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use hyper::body::Frame;
use tokio::sync::{oneshot, watch};

use super::delivery::Finishing;
use crate::core::{Core, End, Shown};
use crate::relay::spool::{Reader, Record};

/// Returns the body. When it was produced to its end, `delivered` is left with the connection.
pub(crate) fn body(
    core: Arc<Core>,
    request: ModelRequestId,
    shown: watch::Receiver<Shown>,
    finishing: Finishing,
    delivered: oneshot::Sender<()>,
) -> impl Stream<Item = Result<Frame<Bytes>, io::Error>> + Send {
    let source = Source::new(core, request);
    let answer = Answer {
        source,
        shown,
        finishing,
        delivered: Some(delivered),
    };
    stream::try_unfold(answer, |mut answer| async move {
        let piece = answer.next().await?;
        Ok(piece.map(|piece| (Frame::data(piece), answer)))
    })
}

struct Answer {
    source: Source,
    shown: watch::Receiver<Shown>,
    finishing: Finishing,
    delivered: Option<oneshot::Sender<()>>,
}

impl Answer {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let (bytes, end) = {
                let shown = self.shown.borrow_and_update();
                (shown.bytes, shown.end.clone())
            };
            if self.source.at < bytes {
                return self.source.next(bytes).await.map(Some);
            }
            match end {
                Some(End::Complete) => {
                    if let Some(delivered) = self.delivered.take() {
                        self.finishing.put(delivered);
                    }
                    return Ok(None);
                }
                // The connection ends without the end of the answer, so the client knows that it is not whole.
                Some(End::Failed(_) | End::Lost | End::Stopped) => return Err(broken_off()),
                None => self.shown.changed().await.map_err(|_| broken_off())?,
            }
        }
    }
}

fn broken_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer broke off")
}

/// Reads an answer from its start: from the relay's file while it is there, else from the journal.
struct Source {
    core: Arc<Core>,
    request: ModelRequestId,
    at: u64,
    file: Option<Reader>,
    /// Pieces read from the journal and not handed out yet.
    pieces: VecDeque<(u64, Bytes)>,
    /// Where in the journal to read on.
    next_seq: Option<Seq>,
}

impl Source {
    fn new(core: Arc<Core>, request: ModelRequestId) -> Self {
        // Without the file there is the journal; that it cannot be opened is no more than that.
        let file = Reader::open(&core.relay.spool(&request)).ok().flatten();
        Self {
            core,
            request,
            at: 0,
            file,
            pieces: VecDeque::new(),
            next_seq: None,
        }
    }

    /// Returns the next piece, which ends at `limit` or before.
    async fn next(&mut self, limit: u64) -> io::Result<Bytes> {
        loop {
            while let Some((offset, data)) = self.pieces.pop_front() {
                let Some(piece) = part(offset, &data, self.at, limit) else {
                    continue;
                };
                self.at += piece.len() as u64;
                if offset + data.len() as u64 > limit {
                    self.pieces.push_front((offset, data));
                }
                return Ok(piece);
            }
            match self.file.as_mut().map(Reader::next) {
                Some(Ok(Some(Record::Body { offset, data }))) => {
                    self.pieces.push_back((offset, data));
                }
                Some(Ok(Some(Record::Head(_)))) => {}
                // What may be shown and is not in the file must be in the journal.
                Some(Ok(Some(Record::End(_)) | None) | Err(_)) => self.file = None,
                None => self.read_journal().await?,
            }
        }
    }

    async fn read_journal(&mut self) -> io::Result<()> {
        let place = self
            .core
            .inspect(|models| models.get(&self.request)?.output);
        let (first, last) = place.ok_or_else(broken_off)?;
        let from = self.next_seq.unwrap_or(first);
        if from > last {
            return Err(broken_off());
        }
        let events = self.core.ledger.read(from, last).await;
        let events = events.map_err(io::Error::other)?;
        let read = events.last().ok_or_else(broken_off)?.seq;
        self.next_seq = Some(read.next());
        for stored in events {
            if let Event::ModelOutput {
                request,
                offset,
                data,
            } = stored.event
                && request == self.request
            {
                self.pieces.push_back((offset.0, data));
            }
        }
        Ok(())
    }
}

/// Returns what of a piece at `offset` lies between `at` and `limit`; `None` where that is nothing.
fn part(offset: u64, data: &Bytes, at: u64, limit: u64) -> Option<Bytes> {
    let skip = usize::try_from(at.checked_sub(offset)?).ok()?;
    let end = usize::try_from(limit.checked_sub(offset)?).ok()?;
    let end = end.min(data.len());
    (skip < end).then(|| data.slice(skip..end))
}
