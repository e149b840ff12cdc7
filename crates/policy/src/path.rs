//! The path of a request as the one who serves it understands it, and paths that two could understand in two ways.
//!
//! Nothing is put right: a path that needs it is refused where a rule asks for the path, since the other side may put it right
//! in another way.

use std::fmt;

/// Why a path is not compared with anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    NotAbsolute,
    Dots,
    Empty,
    Encoded,
    Twice,
    Broken,
    Text,
    Raw,
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAbsolute => "it does not begin with a slash",
            Self::Dots => "it has a segment `.` or `..`",
            Self::Empty => "it has an empty segment (`//`)",
            Self::Encoded => "it has an encoded slash, backslash, dot or control character",
            Self::Twice => "it is percent-encoded twice",
            Self::Broken => "a `%` in it is not followed by two hexadecimal digits",
            Self::Text => "what it encodes is no UTF-8",
            Self::Raw => "it has a character that must be percent-encoded",
        })
    }
}

/// Returns the decoded segments of a path: of `/a/b` two, of `/a/` two, of which the last is empty.
pub(crate) fn segments(path: &str) -> Result<Vec<Vec<u8>>, Odd> {
    let rest = path.strip_prefix('/').ok_or(Odd::NotAbsolute)?;
    let mut all = Vec::new();
    let mut raw = rest.split('/').peekable();
    while let Some(segment) = raw.next() {
        if segment.is_empty() && raw.peek().is_some() {
            return Err(Odd::Empty);
        }
        let decoded = decode(segment)?;
        // `..;x` is `..` to servers that know parameters of segments.
        let before = decoded.split(|&byte| byte == b';').next();
        if matches!(before, Some(b"." | b"..")) {
            return Err(Odd::Dots);
        }
        all.push(decoded);
    }
    Ok(all)
}

fn decode(segment: &str) -> Result<Vec<u8>, Odd> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match hex(bytes.next(), bytes.next()).ok_or(Odd::Broken)? {
                b'/' | b'\\' | b'.' | 0..=0x1f | 0x7f => return Err(Odd::Encoded),
                other => out.push(other),
            },
            0x21..=0x7e if !matches!(byte, b'\\' | b'?' | b'#') => out.push(byte),
            _ => return Err(Odd::Raw),
        }
    }
    match out.windows(3).any(is_escape) {
        true => Err(Odd::Twice),
        // Old decoders take `%c0%ae` for a dot.
        false if std::str::from_utf8(&out).is_err() => Err(Odd::Text),
        false => Ok(out),
    }
}

/// Whether a second decoding would bring out what the first one refuses.
fn is_escape(three: &[u8]) -> bool {
    let byte = match three {
        [b'%', high, low] => hex(Some(*high), Some(*low)),
        _ => None,
    };
    matches!(byte, Some(b'/' | b'\\' | b'.' | b'%' | 0..=0x1f))
}

pub(crate) fn hex(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::{Odd, segments};

    #[test]
    fn a_plain_path_is_decoded_once() {
        assert_eq!(segments("/%61/b%20c/").unwrap(), [&b"a"[..], b"b c", b""]);
        assert_eq!(segments("/").unwrap(), [b""]);
        assert_eq!(
            segments("/a.b/..c/...").unwrap(),
            [&b"a.b"[..], b"..c", b"..."]
        );
    }

    #[test]
    fn a_path_that_two_read_in_two_ways_is_refused() {
        for (path, why) in [
            ("", Odd::NotAbsolute),
            ("*", Odd::NotAbsolute),
            ("/a/../b", Odd::Dots),
            ("/a/.", Odd::Dots),
            ("/..;x/b", Odd::Dots),
            ("//a", Odd::Empty),
            ("/a//b", Odd::Empty),
            ("/%2e%2e/b", Odd::Encoded),
            ("/a%2Fb", Odd::Encoded),
            ("/a%5cb", Odd::Encoded),
            ("/a%00", Odd::Encoded),
            ("/a%0d%0a", Odd::Encoded),
            ("/%252e%252e/b", Odd::Twice),
            ("/%25252f", Odd::Twice),
            ("/%c0%ae%c0%ae/b", Odd::Text),
            ("/%e4", Odd::Text),
            ("/%u002e/b", Odd::Broken),
            ("/a%", Odd::Broken),
            ("/a%2", Odd::Broken),
            ("/a%zz", Odd::Broken),
            ("/a\\b", Odd::Raw),
            ("/a b", Odd::Raw),
            ("/\u{e4}", Odd::Raw),
        ] {
            assert_eq!(segments(path), Err(why), "{path:?}");
        }
    }
}
