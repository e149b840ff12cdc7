//! As much of the DNS message format (RFC 1035, 6891) as answering synthetically needs: one question in, one address out.
//!
//! Everything in a query is hostile: lengths are checked before they are used, and names of questions are never compressed.

use std::borrow::Cow;
use std::net::IpAddr;

pub(super) const FORMAT_ERROR: u8 = 1;
pub(super) const NOT_IMPLEMENTED: u8 = 4;
const NO_SUCH_NAME: u8 = 3;
const HEADER: usize = 12;
/// A name's longest form on the wire.
const MAX_NAME: usize = 255;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;
/// Seconds that an answer may be kept: addresses are stable while the daemon lives, and nearly always after that.
const TTL: u32 = 60;
/// What we say that we take over UDP; our answers are a tenth of it.
const UDP_SIZE: u16 = 1232;

/// The part of a query's header that an answer repeats.
pub(super) struct Header {
    id: [u8; 2],
    pub(super) opcode: u8,
    recursion_desired: bool,
}

/// What is asked.
pub(super) struct Question<'a> {
    /// Dotted, without a trailing dot, in the case that it came in.
    pub(super) name: Cow<'a, str>,
    pub(super) kind: Kind,
    /// Name, type and class as they came, to be repeated.
    raw: &'a [u8],
    /// Whether the query has an OPT record (EDNS), which its answer must have too.
    extended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    V4,
    V6,
    Other,
}

pub(super) enum Reply {
    Address(IpAddr),
    /// The name is there, and has nothing of that type.
    Nothing,
    NoSuchName,
}

/// The bytes are no question.
pub(super) struct Malformed;

/// Returns a query's header; none for what must not be answered at all: too short, or itself an answer.
pub(super) fn header(query: &[u8]) -> Option<Header> {
    if query.len() < HEADER || query[2] & 0x80 != 0 {
        return None;
    }
    Some(Header {
        id: [query[0], query[1]],
        opcode: (query[2] >> 3) & 0x0f,
        recursion_desired: query[2] & 1 != 0,
    })
}

/// Reads the one question of a query.
pub(super) fn question(query: &[u8]) -> Result<Question<'_>, Malformed> {
    let count = |at: usize| u16::from_be_bytes([query[at], query[at + 1]]);
    // One question, and nothing of what only answers hold.
    if count(4) != 1 || count(6) != 0 || count(8) != 0 {
        return Err(Malformed);
    }
    let mut at = HEADER;
    let mut name = Vec::new();
    loop {
        let length = usize::from(*query.get(at).ok_or(Malformed)?);
        at += 1;
        if length == 0 {
            break;
        }
        // 64 and more are pointers and kinds of label that nobody uses.
        if length > 63 || at + length - HEADER > MAX_NAME {
            return Err(Malformed);
        }
        let label = query.get(at..at + length).ok_or(Malformed)?;
        if label.contains(&b'.') {
            return Err(Malformed);
        }
        if !name.is_empty() {
            name.push(b'.');
        }
        name.extend_from_slice(label);
        at += length;
    }
    let fixed = query.get(at..at + 4).ok_or(Malformed)?;
    let kind = match u16::from_be_bytes([fixed[0], fixed[1]]) {
        // ANY gets what most programs want.
        1 | 255 => Kind::V4,
        28 => Kind::V6,
        _ => Kind::Other,
    };
    let class = u16::from_be_bytes([fixed[2], fixed[3]]);
    let kind = if class == CLASS_IN || class == CLASS_ANY {
        kind
    } else {
        Kind::Other
    };
    let end = at + 4;
    // Only the first additional record is looked at: resolvers put OPT there, and nothing else matters here.
    let extended = count(10) > 0 && query.get(end..end + 3) == Some(&[0, 0, 41][..]);
    Ok(Question {
        name: Cow::Owned(String::from_utf8(name).map_err(|_| Malformed)?),
        kind,
        raw: &query[HEADER..end],
        extended,
    })
}

impl Header {
    /// Returns an answer that holds nothing but a code.
    pub(super) fn failed(&self, code: u8) -> Vec<u8> {
        self.start(code, 0, 0, 0)
    }

    fn start(&self, code: u8, questions: u8, answers: u8, additional: u8) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&self.id);
        // An answer, with authority (who else knows), recursion is to be had.
        let recursion = u8::from(self.recursion_desired);
        bytes.extend_from_slice(&[0x84 | (self.opcode << 3) | recursion, 0x80 | code]);
        bytes.extend_from_slice(&[0, questions, 0, answers, 0, 0, 0, additional]);
        bytes
    }
}

impl Reply {
    pub(super) fn encode(&self, header: &Header, question: &Question<'_>) -> Vec<u8> {
        let (code, address) = match self {
            Self::Address(address) => (0, Some(address)),
            Self::Nothing => (0, None),
            Self::NoSuchName => (NO_SUCH_NAME, None),
        };
        let additional = u8::from(question.extended);
        let mut bytes = header.start(code, 1, u8::from(address.is_some()), additional);
        bytes.extend_from_slice(question.raw);
        if let Some(address) = address {
            // A pointer to the question's name.
            bytes.extend_from_slice(&[0xc0, 12]);
            let (kind, data) = match address {
                IpAddr::V4(v4) => (1_u16, v4.octets().to_vec()),
                IpAddr::V6(v6) => (28_u16, v6.octets().to_vec()),
            };
            bytes.extend_from_slice(&kind.to_be_bytes());
            bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
            bytes.extend_from_slice(&TTL.to_be_bytes());
            bytes.extend_from_slice(&[0, if data.len() == 4 { 4 } else { 16 }]);
            bytes.extend_from_slice(&data);
        }
        if question.extended {
            bytes.extend_from_slice(&[0, 0, 41]);
            bytes.extend_from_slice(&UDP_SIZE.to_be_bytes());
            bytes.extend_from_slice(&[0; 6]);
        }
        bytes
    }
}
