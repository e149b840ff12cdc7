//! HTTP/1 as strict as it can be said: what two readers could take for different requests is refused before anybody parses it.
//!
//! [`Front`] goes over the bytes that a client sends and releases them only when a head is whole and plain. It knows framing
//! (one length, or chunked, never both), exactly one `Host`, and no odd line ends; what a request means is left to others.

mod chunked;
mod io;
mod line;

pub(crate) use io::{Refusal, StrictIo, Switch};

use bytes::{Bytes, BytesMut};

use chunked::Chunked;
use line::Framing;

/// The longest head.
const MAX_HEAD: usize = 64 << 10;

/// What is wrong with a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A request line that is none.
    #[error("the request line is malformed")]
    RequestLine,
    /// A header line that is none.
    #[error("a header line is malformed")]
    HeaderLine,
    /// A line that ends in a bare LF, or holds a bare CR.
    #[error("a line of the head does not end in CR LF")]
    LineEnd,
    /// A control character in the head.
    #[error("the head holds a control character")]
    Control,
    /// A header goes on in a line of its own.
    #[error("a header is folded over two lines")]
    Folded,
    /// No `Host`, or more than one.
    #[error("there must be exactly one Host header")]
    Host,
    /// Two lengths, or one that is none.
    #[error("Content-Length must be one plain number")]
    Length,
    /// Something else than `chunked`, or not alone.
    #[error("Transfer-Encoding must be `chunked` and nothing else, in HTTP/1.1")]
    Coding,
    /// A body with two kinds of length.
    #[error("a request has either Content-Length or Transfer-Encoding, not both")]
    TwoLengths,
    /// A piece of a chunked body that is malformed.
    #[error("the chunked body is malformed")]
    Chunk,
    /// Longer than 64 KiB, or more than 200 headers.
    #[error("the head is too large: 64 KiB and 200 headers are allowed")]
    TooLarge,
    /// It did not come in time.
    #[error("the head did not come within 10 seconds")]
    TooSlow,
    /// It ended in the middle.
    #[error("the connection ended inside a request")]
    Truncated,
}

/// Goes over the bytes of one connection.
#[derive(Debug, Default)]
pub struct Front {
    held: BytesMut,
    /// How far `held` was searched for the end of a head.
    searched: usize,
    state: State,
    /// Whether the last head asked to change the protocol, until somebody heard it.
    asked: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Body {
        left: u64,
        switching: bool,
    },
    Chunked {
        chunks: Chunked,
        switching: bool,
    },
    /// After a request that may turn the connection into something else: nothing passes until that is decided.
    Undecided,
    Opaque,
}

/// What comes out of a [`Front`] next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes that may be parsed.
    Pass(Bytes),
    /// More must come first.
    More,
    /// A request asked to change the protocol; see [`Front::decide`].
    Wait,
}

impl Front {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Returns where bytes can be read into, as [`Front::push`] takes them.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.held
    }

    /// Returns how many bytes of a body may pass unseen, as nothing is held before them; 0 where each must be seen.
    pub(crate) fn unseen(&self) -> u64 {
        match self.state {
            _ if !self.held.is_empty() => 0,
            State::Body { left, .. } => left,
            State::Opaque => u64::MAX,
            State::Head | State::Chunked { .. } | State::Undecided => 0,
        }
    }

    /// Tells how many of them passed.
    pub(crate) fn passed(&mut self, count: u64) {
        if let State::Body { left, .. } = &mut self.state {
            *left = left.saturating_sub(count);
        }
    }

    /// Whether a head has begun and is not complete.
    #[must_use]
    pub fn in_head(&self) -> bool {
        matches!(self.state, State::Head) && !self.held.is_empty()
    }

    /// Whether the client may end here.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        match self.state {
            State::Head => self.held.is_empty(),
            State::Undecided | State::Opaque => true,
            State::Body { .. } | State::Chunked { .. } => false,
        }
    }

    /// Whether a request that may change the protocol came out; says so once for each.
    pub(crate) fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// Tells whether the connection became something else than HTTP/1. Only heard where [`Step::Wait`] was said.
    pub fn decide(&mut self, opaque: bool) {
        if matches!(self.state, State::Undecided) {
            self.state = if opaque { State::Opaque } else { State::Head };
        }
    }

    /// Returns what may be parsed, or that there is nothing.
    ///
    /// # Errors
    /// Bytes that are refused. Nothing comes out after that, and nothing of what was refused has come out.
    pub fn step(&mut self) -> Result<Step, Violation> {
        loop {
            match &mut self.state {
                State::Undecided => return Ok(Step::Wait),
                State::Opaque => return Ok(self.pass(usize::MAX)),
                State::Head => match self.head()? {
                    Some(head) => return Ok(Step::Pass(head)),
                    None => return Ok(Step::More),
                },
                State::Body { left: 0, switching } => {
                    let switching = *switching;
                    self.state = after(switching);
                }
                State::Body { left, .. } => {
                    let held = self.held.len() as u64;
                    let count = held.min(*left);
                    *left -= count;
                    return Ok(self.pass(usize::try_from(count).unwrap_or(usize::MAX)));
                }
                State::Chunked { chunks, switching } => {
                    let (count, ended) = chunks.advance(&self.held)?;
                    if ended {
                        let switching = *switching;
                        self.state = after(switching);
                    }
                    return Ok(self.pass(count));
                }
            }
        }
    }

    fn pass(&mut self, count: usize) -> Step {
        let count = count.min(self.held.len());
        if count == 0 {
            return Step::More;
        }
        Step::Pass(self.held.split_to(count).freeze())
    }

    fn head(&mut self) -> Result<Option<Bytes>, Violation> {
        // One empty line before a request is passed over: some clients end a body with one too many (RFC 9112, 2.2).
        if self.searched == 0 && self.held.starts_with(b"\r\n") {
            drop(self.held.split_to(2));
            self.searched = 1;
        }
        let from = self.searched.saturating_sub(1);
        let Some(end) = line::end_of_head(&self.held, from)? else {
            if self.held.len() > MAX_HEAD {
                return Err(Violation::TooLarge);
            }
            // The last three may be the beginning of the end.
            self.searched = self.held.len().saturating_sub(3).max(self.searched.min(1));
            return Ok(None);
        };
        if end > MAX_HEAD {
            return Err(Violation::TooLarge);
        }
        let head = line::check(&self.held[..end])?;
        let switching = head.switching;
        self.asked = switching;
        self.state = match head.framing {
            Framing::None => after(switching),
            Framing::Length(left) => State::Body { left, switching },
            Framing::Chunked => State::Chunked {
                chunks: Chunked::default(),
                switching,
            },
        };
        self.searched = 0;
        Ok(Some(self.held.split_to(end).freeze()))
    }
}

fn after(switching: bool) -> State {
    if switching {
        State::Undecided
    } else {
        State::Head
    }
}

#[cfg(test)]
mod tests;
