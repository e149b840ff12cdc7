//! Differences of two texts by lines, with git's default algorithm.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput, TokenSource};

/// A run of lines that differs: which lines of the old text became which of the new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hunk {
    pub(crate) before: Range<usize>,
    pub(crate) after: Range<usize>,
}

/// Among places of a hunk that are equally right, which is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slide {
    /// The one that reads best, as `git diff` does.
    ByIndent,
    /// The last one, as `git merge-file` does.
    Down,
}

/// Splits a text into lines that keep their ends.
pub(crate) fn of(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').collect()
}

/// Whether git would call this binary: a zero byte near its begin.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(8000)].contains(&0)
}

struct Lines<'l, 't>(&'l [&'t [u8]]);

impl<'l, 't> TokenSource for Lines<'l, 't> {
    type Token = &'t [u8];
    type Tokenizer = std::iter::Copied<std::slice::Iter<'l, &'t [u8]>>;

    fn tokenize(&self) -> Self::Tokenizer {
        self.0.iter().copied()
    }

    fn estimate_tokens(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

/// Compares two texts of at most [`TEXT_BYTES`](crate::TEXT_BYTES) each.
pub(crate) fn diff(before: &[&[u8]], after: &[&[u8]], slide: Slide) -> Vec<Hunk> {
    let input = InternedInput::new(Lines(before), Lines(after));
    let mut diff = Diff::compute(Algorithm::Myers, &input);
    match slide {
        Slide::ByIndent => diff.postprocess_lines(&input),
        Slide::Down => diff.postprocess_no_heuristic(&input),
    }
    let range = |range: Range<u32>| range.start as usize..range.end as usize;
    diff.hunks()
        .map(|hunk| Hunk {
            before: range(hunk.before),
            after: range(hunk.after),
        })
        .collect()
}
