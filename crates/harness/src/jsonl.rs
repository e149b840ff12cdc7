//! A transcript as lines of JSON: what a kill may have torn is cut off, what cannot be read is kept and stepped over.

use serde_json::Value;

/// One readable line.
#[derive(Debug)]
pub(crate) struct Line {
    /// Where it starts in the file.
    pub(crate) at: usize,
    /// What it says.
    pub(crate) value: Value,
}

impl Line {
    /// Returns the text under a path of keys.
    pub(crate) fn text(&self, pointer: &str) -> Option<&str> {
        self.value.pointer(pointer)?.as_str()
    }
}

/// Returns the readable lines and the length of the file without a torn end.
///
/// The harnesses append whole lines, so that only the last can be torn: it lacks its line feed, or it has lost its bytes
/// (zeros) in a crash of the machine. They themselves step over a line that they cannot read, and so do we.
pub(crate) fn read(file: &[u8]) -> (Vec<Line>, usize) {
    let mut lines = Vec::new();
    let (mut at, mut good) = (0, 0);
    while let Some(len) = file[at..].iter().position(|b| *b == b'\n') {
        let end = at + len + 1;
        if let Ok(value @ Value::Object(_)) = serde_json::from_slice(&file[at..end]) {
            lines.push(Line { at, value });
            good = end;
        }
        at = end;
    }
    (lines, good)
}

/// Appends one record as a line.
pub(crate) fn push(file: &mut Vec<u8>, record: &Value) {
    file.extend(record.to_string().bytes());
    file.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_cut_and_a_bad_line_in_the_middle_is_kept() {
        let (lines, good) = read(b"{\"a\":1}\nnot json\n{\"b\":2}\n{\"c\":");
        assert_eq!((lines.len(), good), (2, 25));
        assert_eq!(lines[1].at, 17);
        assert_eq!(read(b"{\"a\":1}\n\0\0\0\n").1, 8);
        assert_eq!(read(b"{\"a\":1}").1, 0);
        assert_eq!(read(b"").1, 0);
    }
}
