//! What a program inside wrote, as a person may see it on a terminal.

use std::fmt::Write as _;

use crate::placeholder;
use crate::seam::Placeholder;

/// Returns bytes as text: line ends and tabs as they are, and as escapes whatever else could move a cursor, hide, or stand for
/// something that it is not.
pub(super) fn text(placeholders: &[Placeholder], bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' => out.push(c),
                '\\' => out.push_str("\\\\"),
                '\r' => out.push_str("\\r"),
                c if is_plain(c) => out.push(c),
                c => out.extend(c.escape_unicode()),
            }
        }
        for byte in chunk.invalid() {
            // A String takes everything.
            let _written = write!(out, "\\x{byte:02x}");
        }
    }
    placeholder::shown(placeholders, &out)
}

/// Whether a character is seen where it stands, and changes nothing else.
fn is_plain(c: char) -> bool {
    // Printable by the standard library's tables: no controls, no marks of direction, nothing without a width.
    !c.is_control() && !matches!(c, '\u{ad}' | '\u{61c}') && {
        let mut escaped = c.escape_debug();
        matches!((escaped.next(), escaped.next()), (Some(first), None) if first == c)
            || matches!(c, '"' | '\'')
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn nothing_that_moves_a_cursor_or_hides_comes_through() {
        for (bytes, wanted) in [
            (&b"{\"a\": 'b'}\n\tx"[..], "{\"a\": 'b'}\n\tx"),
            (b"\x1b[2J\x07\r", "\\u{1b}[2J\\u{7}\\r"),
            (
                "gr\u{fc}n \u{202e}txt\u{200b}\u{9b}".as_bytes(),
                "gr\u{fc}n \\u{202e}txt\\u{200b}\\u{9b}",
            ),
            (b"\\u{1b}", "\\\\u{1b}"),
            (b"PK\x03\xff\x00", "PK\\u{3}\\xff\\u{0}"),
        ] {
            assert_eq!(text(&[], bytes), wanted);
        }
    }
}
