//! The lines of a head.

use super::Violation;
use crate::sniff::is_token;

/// Headers of one request; a browser sends twenty.
const MAX_HEADERS: usize = 200;

/// How the length of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    None,
    Length(u64),
    Chunked,
}

pub(super) struct Head {
    pub(super) framing: Framing,
    /// Whether the request may change the protocol: CONNECT, or with `Upgrade`.
    pub(super) switching: bool,
}

/// Returns where a head ends (behind its empty line), looking from `from` on; none where more must come.
///
/// Line ends that are not CR LF are refused as soon as they are seen: a client that sends them would wait for ever.
pub(super) fn end_of_head(bytes: &[u8], from: usize) -> Result<Option<usize>, Violation> {
    let mut at = from;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let lf = at + found;
        if lf == 0 || bytes[lf - 1] != b'\r' {
            return Err(Violation::LineEnd);
        }
        if bytes[..lf - 1].ends_with(b"\r\n") {
            return Ok(Some(lf + 1));
        }
        at = lf + 1;
    }
    Ok(None)
}

/// Judges a whole head.
pub(super) fn check(head: &[u8]) -> Result<Head, Violation> {
    let mut lines = head
        .strip_suffix(b"\r\n\r\n")
        .ok_or(Violation::LineEnd)?
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let request = lines.next().unwrap_or_default();
    if request.contains(&b'\r') {
        return Err(Violation::LineEnd);
    }
    let (connect, is_11) = request_line(request)?;
    let mut facts = Facts::default();
    for (number, line) in lines.enumerate() {
        if number >= MAX_HEADERS {
            return Err(Violation::TooLarge);
        }
        facts.add(line)?;
    }
    if facts.hosts != 1 {
        return Err(Violation::Host);
    }
    let framing = match (facts.length, facts.chunked) {
        (None, false) => Framing::None,
        (Some(length), false) => Framing::Length(length),
        (None, true) if is_11 => Framing::Chunked,
        (None, true) => return Err(Violation::Coding),
        (Some(_), true) => return Err(Violation::TwoLengths),
    };
    Ok(Head {
        framing,
        switching: connect || facts.upgrade,
    })
}

/// Returns whether it is a CONNECT, and whether it is HTTP/1.1.
fn request_line(line: &[u8]) -> Result<(bool, bool), Violation> {
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Violation::RequestLine);
    };
    let is_11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(Violation::RequestLine),
    };
    let plain = |byte: &u8| *byte > 0x20 && *byte != 0x7f && *byte != b'#';
    if method.is_empty()
        || method.len() > 32
        || !method.iter().all(|byte| is_token(*byte))
        || target.is_empty()
        || !target.iter().all(plain)
        // What no parser of targets takes would be refused behind us without a word to the program or the journal.
        || http::Uri::try_from(target).is_err()
    {
        return Err(Violation::RequestLine);
    }
    Ok((method == b"CONNECT", is_11))
}

#[derive(Default)]
struct Facts {
    hosts: u32,
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl Facts {
    fn add(&mut self, line: &[u8]) -> Result<(), Violation> {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(Violation::Folded);
        }
        if line.contains(&b'\r') {
            return Err(Violation::LineEnd);
        }
        if line
            .iter()
            .any(|byte| (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f)
        {
            return Err(Violation::Control);
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = line.split_at(colon.ok_or(Violation::HeaderLine)?);
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(Violation::HeaderLine);
        }
        let value = value[1..].trim_ascii();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("host") {
            self.hosts += 1;
        } else if is("upgrade") {
            self.upgrade = true;
        } else if is("content-length") {
            if self.length.is_some() {
                return Err(Violation::Length);
            }
            self.length = Some(number(value)?);
        } else if is("transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::Coding);
            }
            self.chunked = true;
        }
        Ok(())
    }
}

fn number(text: &[u8]) -> Result<u64, Violation> {
    // Eighteen digits are more than anybody can send, and cannot overflow.
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return Err(Violation::Length);
    }
    Ok(text
        .iter()
        .fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
