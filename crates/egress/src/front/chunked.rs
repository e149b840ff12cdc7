//! The framing of a chunked body.

use super::Violation;
use crate::sniff::is_token;

/// A size with its extensions; nobody uses those.
const MAX_SIZE_LINE: usize = 256;
const MAX_TRAILERS: usize = 16 << 10;

/// Where in a chunked body the next byte lies.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    state: State,
    /// Bytes of trailers so far.
    trailers: usize,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailer,
}

impl Chunked {
    /// Goes over bytes; returns how many of them are understood, and whether the body ends with them.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<(usize, bool), Violation> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            if let State::Data(left) = self.state {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                at += count;
                self.state = match left - count as u64 {
                    0 => State::DataEnd,
                    left => State::Data(left),
                };
                if at == bytes.len() {
                    return Ok((at, false));
                }
                continue;
            }
            let limit = match self.state {
                State::Size => MAX_SIZE_LINE,
                State::DataEnd => 0,
                State::Trailer | State::Data(_) => MAX_TRAILERS - self.trailers,
            };
            let Some(line) = line(rest, limit)? else {
                return Ok((at, false));
            };
            at += line.len() + 2;
            self.state = match self.state {
                State::Size => match size(line)? {
                    0 => State::Trailer,
                    size => State::Data(size),
                },
                State::DataEnd | State::Data(_) => State::Size,
                State::Trailer if line.is_empty() => return Ok((at, true)),
                State::Trailer => {
                    trailer(line)?;
                    self.trailers += line.len() + 2;
                    if self.trailers >= MAX_TRAILERS {
                        return Err(Violation::Chunk);
                    }
                    State::Trailer
                }
            };
        }
    }
}

/// Returns the first line without its CR LF; none where it is not whole yet.
fn line(bytes: &[u8], limit: usize) -> Result<Option<&[u8]>, Violation> {
    match bytes.iter().position(|byte| *byte == b'\r') {
        // At once, also where the line's end is still to come: what is refused must not depend on how the bytes are cut.
        Some(cr) if cr > limit || bytes[..cr].contains(&b'\n') => Err(Violation::Chunk),
        Some(cr) => match bytes.get(cr + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(&bytes[..cr])),
            Some(_) => Err(Violation::Chunk),
        },
        None if bytes.len() > limit || bytes.contains(&b'\n') => Err(Violation::Chunk),
        None => Ok(None),
    }
}

fn size(line: &[u8]) -> Result<u64, Violation> {
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let (digits, extension) = line.split_at(digits);
    let plain = |byte: &u8| (0x20..0x7f).contains(byte) || *byte == b'\t';
    let separated = extension.is_empty() || extension[0] == b';';
    if digits.is_empty() || digits.len() > 15 || !separated || !extension.iter().all(plain) {
        return Err(Violation::Chunk);
    }
    let text = std::str::from_utf8(digits).map_err(|_| Violation::Chunk)?;
    u64::from_str_radix(text, 16).map_err(|_| Violation::Chunk)
}

fn trailer(line: &[u8]) -> Result<(), Violation> {
    let name = line.iter().take_while(|byte| is_token(**byte)).count();
    let control = |byte: &u8| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f;
    if name == 0 || line.get(name) != Some(&b':') || line.iter().any(control) {
        return Err(Violation::Chunk);
    }
    Ok(())
}
