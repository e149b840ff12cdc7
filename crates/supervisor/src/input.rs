//! Input for an operation, by offset: what came before is skipped, a gap is not filled, nothing is buffered without bound.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use protocol::Offset;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::{pty, sys};

/// The most input that waits for the operation to read. The daemon keeps to it by not sending further than this beyond
/// what was accepted; what comes nevertheless counts as not sent.
const MAX_WAITING: u64 = 1 << 20;

/// What can be told of an input: the next byte wanted, and whether it takes none any more.
pub(crate) type Accepted = (Offset, bool);

/// The input of one operation.
pub(crate) struct Input {
    kind: Kind,
    queue: RefCell<VecDeque<Bytes>>,
    /// The offset behind what is in the queue.
    taken: Cell<u64>,
    /// The offset behind what the operation has got.
    given: Cell<u64>,
    ends: Cell<bool>,
    closed: Cell<bool>,
    last: Cell<Option<u8>>,
    changed: Notify,
}

enum Next {
    Given,
    Look,
    End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pipe,
    Terminal,
}

impl Input {
    pub(crate) fn new(kind: Kind) -> Rc<Self> {
        Rc::new(Self {
            kind,
            queue: RefCell::default(),
            taken: Cell::new(0),
            given: Cell::new(0),
            ends: Cell::new(false),
            closed: Cell::new(false),
            last: Cell::new(None),
            changed: Notify::new(),
        })
    }

    /// Returns what has been accepted.
    pub(crate) fn accepted(&self) -> Accepted {
        (Offset(self.given.get()), self.closed.get())
    }

    /// Takes what is new of a piece. Returns an answer if not all of it could be taken: what is wanted instead.
    pub(crate) fn feed(&self, offset: Offset, mut data: Bytes, eof: bool) -> Option<Accepted> {
        let wanted = self.taken.get();
        if self.closed.get() || self.ends.get() {
            return Some(self.accepted());
        }
        let Some(known) = wanted.checked_sub(offset.0) else {
            return Some((Offset(wanted), false));
        };
        let end = offset.0.saturating_add(data.len() as u64);
        data.advance(data.len().min(usize::try_from(known).unwrap_or(usize::MAX)));
        let room = MAX_WAITING.saturating_sub(wanted - self.given.get());
        data.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        self.taken.set(wanted + data.len() as u64);
        if !data.is_empty() {
            self.queue.borrow_mut().push_back(data);
        }
        self.ends.set(eof && end == self.taken.get());
        self.changed.notify_one();
        (end > self.taken.get()).then_some((Offset(self.taken.get()), false))
    }

    /// Hands the input on until its end, its reader's end or [`Input::close`]; calls `tell` for all that is accepted.
    pub(crate) async fn run(self: Rc<Self>, sink: OwnedFd, tell: impl Fn(Accepted)) {
        let interest = Interest::WRITABLE | Interest::ERROR;
        if let Ok(sink) = sys::watch(sink, interest) {
            while !self.closed.get() {
                match self.advance(&sink).await {
                    Next::Given => tell(self.accepted()),
                    Next::Look => {}
                    Next::End => break,
                }
            }
        }
        self.close();
        tell(self.accepted());
    }

    /// Takes no more.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.queue.borrow_mut().clear();
        self.changed.notify_one();
    }

    /// Hands on the next piece, or waits until there may be one.
    async fn advance(&self, sink: &AsyncFd<OwnedFd>) -> Next {
        let next = self.queue.borrow().front().cloned();
        if let Some(piece) = next {
            return match write(sink, &piece).await {
                Ok(written) => {
                    self.last.set(Some(piece[written - 1]));
                    self.given.set(self.given.get() + written as u64);
                    if let Some(front) = self.queue.borrow_mut().front_mut() {
                        front.advance(written);
                    }
                    self.queue.borrow_mut().retain(|piece| !piece.is_empty());
                    Next::Given
                }
                Err(_) => Next::End,
            };
        }
        if self.ends.get() {
            if self.kind == Kind::Terminal {
                let typed = pty::end_of_file(sink.get_ref(), self.last.get());
                // A terminal that hung up needs no end.
                let _written: Result<usize, Errno> = write(sink, &typed).await;
            }
            return Next::End;
        }
        match self.kind {
            Kind::Terminal => {
                self.changed.notified().await;
                Next::Look
            }
            Kind::Pipe => tokio::select! {
                () = self.changed.notified() => Next::Look,
                // Nothing else than the loss of all readers is an error of a pipe.
                _ = sink.ready(Interest::ERROR) => Next::End,
            },
        }
    }
}

async fn write(sink: &AsyncFd<OwnedFd>, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        let mut ready = sink.writable().await.map_err(|_| Errno::IO)?;
        match rustix::io::write(sink.get_ref(), bytes) {
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno::IO),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[test]
    fn duplicates_are_skipped_and_gaps_are_answered_with_what_is_wanted() {
        let input = Input::new(Kind::Pipe);
        assert_eq!(input.feed(Offset(0), data("abc"), false), None);
        assert_eq!(input.feed(Offset(1), data("bcde"), false), None);
        assert_eq!(
            input.feed(Offset(9), data("x"), false),
            Some((Offset(5), false))
        );
        assert_eq!(input.feed(Offset(0), data("ab"), false), None);
        assert_eq!(input.feed(Offset(5), data("f"), true), None);
        let queued: Vec<u8> = input.queue.borrow().iter().flatten().copied().collect();
        assert_eq!(queued, b"abcdef");
        assert!(input.ends.get());
    }

    #[test]
    fn no_more_waits_than_the_bound_and_a_cut_piece_has_no_end() {
        let input = Input::new(Kind::Pipe);
        let much = Bytes::from(vec![0; usize::try_from(MAX_WAITING).unwrap() + 5]);
        assert_eq!(
            input.feed(Offset(0), much, true),
            Some((Offset(MAX_WAITING), false))
        );
        assert!(!input.ends.get());
    }
}
