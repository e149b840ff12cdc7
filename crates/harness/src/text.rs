//! Output as text for a model: valid UTF-8, no NUL, shortened as the harnesses shorten it.

/// The most output bytes of one call that a driver looks at.
pub const OUTPUT_KEPT: usize = 1 << 20;

/// Returns the first and the last part of an output with a line between them that says how much is left out.
#[must_use]
pub fn shorten(head: &[u8], omitted: u64, tail: &[u8]) -> Vec<u8> {
    let mut out = head.to_vec();
    if omitted > 0 {
        out.extend(format!("\n\n[... {omitted} bytes omitted ...]\n\n").bytes());
    }
    out.extend(tail);
    out
}

/// Returns output as text. NUL becomes U+FFFD like any byte that is no UTF-8: in a transcript it has poisoned sessions.
pub(crate) fn lossy(output: &[u8]) -> String {
    String::from_utf8_lossy(output).replace('\0', "\u{FFFD}")
}

/// Returns the length in UTF-16 units, in which harnesses written in JavaScript count.
pub(crate) fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Returns the longest start of `text` that has at most `max` UTF-16 units.
pub(crate) fn head(text: &str, max: usize) -> &str {
    let mut left = max;
    for (at, c) in text.char_indices() {
        match left.checked_sub(c.len_utf16()) {
            Some(rest) => left = rest,
            None => return &text[..at],
        }
    }
    text
}

/// Returns the longest end of `text` that has at most `max` UTF-16 units.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    let mut left = max;
    for (at, c) in text.char_indices().rev() {
        match left.checked_sub(c.len_utf16()) {
            Some(rest) => left = rest,
            None => return &text[at + c.len_utf8()..],
        }
    }
    text
}

/// Returns the longest end of `text` that has at most `max` bytes.
pub(crate) fn tail_bytes(text: &str, max: usize) -> &str {
    let mut at = text.len().saturating_sub(max);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}

/// Returns a number of bytes in KB or MB with one decimal.
#[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
pub(crate) fn kilobytes(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{:.1}KB", bytes as f64 / 1024.0),
        _ => format!("{:.1}MB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_never_split_a_character() {
        let text = "a😀b";
        assert_eq!(units(text), 4);
        assert_eq!((head(text, 2), tail(text, 2)), ("a", "b"));
        assert_eq!((head(text, 3), tail(text, 3)), ("a😀", "😀b"));
        assert_eq!((head(text, 9), tail(text, 9)), (text, text));
        assert_eq!(tail_bytes(text, 3), "b");
        assert_eq!(tail_bytes(text, 5), "😀b");
        assert_eq!(lossy(b"a\0b\xff"), "a\u{FFFD}b\u{FFFD}");
        assert_eq!(kilobytes(108_894), "106.3KB");
    }
}
