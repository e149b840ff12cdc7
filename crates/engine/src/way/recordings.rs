//! Answers that are recorded in the journal, for the gateway.

use bytes::BytesMut;
use egress::{BoxFuture, Recorded, Records, Word, Write};
use protocol::{EffectId, Event, Seq};

use crate::error;
use crate::sandbox::{Decided, Handle, Request};

/// Asks the sandbox's task what becomes of a request, and reads the answers that the journal holds.
pub(super) struct Recordings {
    pub(super) handle: Handle,
}

impl Records for Recordings {
    fn write(&self, write: Write) -> BoxFuture<'_, Result<Result<Word, String>, String>> {
        Box::pin(async move {
            let decided = self.handle.ask(|reply| Request::Write { write, reply });
            let decided = decided.await.map_err(|problem| problem.message)?;
            Ok(Ok(match decided {
                Decided::Leaves => Word::Leaves,
                Decided::Recorded => Word::Recorded,
                Decided::Body { most } => Word::Body { most },
                Decided::Answered { of, from, events } => {
                    Word::Answered(self.read(&of, from, events).await?)
                }
                Decided::Refused(message) => return Ok(Err(message)),
            }))
        })
    }
}

impl Recordings {
    /// Reads an answer: its pieces and, behind them, its head.
    async fn read(&self, of: &EffectId, from: Seq, events: u64) -> Result<Recorded, String> {
        let count = usize::try_from(events).map_err(|e| e.to_string())?;
        let store = &self.handle.shared.store;
        let read = store.read(self.handle.id, from, count).await;
        let read = read.map_err(|e| error::chain(&e))?;
        let mut body = BytesMut::new();
        for stored in read {
            match stored.event {
                Event::EffectOutput {
                    effect,
                    offset,
                    data,
                } if effect == *of && offset.0 == body.len() as u64 => {
                    body.extend_from_slice(&data);
                }
                Event::EffectSettled {
                    effect,
                    answer: Some(answer),
                    ..
                } if effect == *of && answer.bytes == body.len() as u64 => {
                    let body = body.freeze();
                    return Ok(Recorded { answer, body });
                }
                _ => break,
            }
        }
        Err(format!("the recorded answer of effect `{of}` is not whole"))
    }
}
