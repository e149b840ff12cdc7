//! Percent-encoding as AWS wants it, and hex.

const UPPER: &[u8; 16] = b"0123456789ABCDEF";
const LOWER: &[u8; 16] = b"0123456789abcdef";

/// Encodes all but letters, digits and `-._~`.
pub(super) fn strict(bytes: &[u8]) -> String {
    but(bytes, b"-._~")
}

/// The same for a path, whose slashes stay.
pub(super) fn path(bytes: &[u8]) -> String {
    but(bytes, b"-._~/")
}

fn but(bytes: &[u8], left: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &b in bytes {
        if b.is_ascii_alphanumeric() || left.contains(&b) {
            text.push(char::from(b));
        } else {
            text.push('%');
            text.push(char::from(UPPER[usize::from(b >> 4)]));
            text.push(char::from(UPPER[usize::from(b & 15)]));
        }
    }
    text
}

/// Decodes what is percent-encoded; a `%` that begins nothing stays.
pub(super) fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |at: usize| {
        let digit = char::from(*bytes.get(at)?).to_digit(16)?;
        u8::try_from(digit).ok()
    };
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high << 4 | low);
                at += 3;
            }
            (b, _, _) => {
                decoded.push(b);
                at += 1;
            }
        }
    }
    decoded
}

/// The same for a query, where a `+` is a space.
pub(super) fn decode_query(text: &str) -> Vec<u8> {
    decode(&text.replace('+', "%20"))
}

/// Writes bytes as lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    let digits = bytes
        .iter()
        .flat_map(|&b| [LOWER[usize::from(b >> 4)], LOWER[usize::from(b & 15)]]);
    digits.map(char::from).collect()
}
