//! Three texts made one, by lines: what one side changed is taken, what both changed alike is taken once, and where their
//! changes touch there is a conflict. Agrees with `git merge-file`, and its marks are those of `--diff3`.

use std::ops::Range;

use crate::lines::{self, Hunk, Slide};

/// What the conflict marks say of each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels<'a> {
    /// After `<<<<<<<`.
    pub ours: &'a str,
    /// After `|||||||`.
    pub base: &'a str,
    /// After `>>>>>>>`.
    pub theirs: &'a str,
}

/// What is written where both sides changed the same lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnConflict<'a> {
    /// All three, between marks.
    Mark(Labels<'a>),
    /// Our lines.
    Ours,
    /// Their lines.
    Theirs,
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Woven {
    pub(crate) text: Vec<u8>,
    /// How many places both sides changed differently.
    pub(crate) conflicts: usize,
    /// Whether nothing of theirs came in.
    pub(crate) is_ours: bool,
}

/// Merges three texts of at most [`TEXT_BYTES`](crate::TEXT_BYTES) each.
pub(crate) fn weave(base: &[u8], ours: &[u8], theirs: &[u8], on: OnConflict<'_>) -> Woven {
    let three = Three {
        base: lines::of(base),
        ours: lines::of(ours),
        theirs: lines::of(theirs),
    };
    let mut left = Changed::new(lines::diff(&three.base, &three.ours, Slide::Down));
    let mut right = Changed::new(lines::diff(&three.base, &three.theirs, Slide::Down));
    let mut woven = Woven {
        text: Vec::with_capacity(ours.len().max(theirs.len())),
        conflicts: 0,
        is_ours: false,
    };
    let mut at = 0;
    while let Some(start) = left
        .next_start()
        .into_iter()
        .chain(right.next_start())
        .min()
    {
        let mut end = start;
        // A hunk that begins where another ends belongs to it: there is no line between that says which is first.
        while left.take(start, &mut end) | right.take(start, &mut end) {}
        copy(&three.base[at..start], &mut woven.text);
        at = end;
        let (one, two) = (left.range(start, end), right.range(start, end));
        let (ours, theirs) = (&three.ours[one.clone()], &three.theirs[two.clone()]);
        match (left.taken(), right.taken()) {
            (_, false) => copy(ours, &mut woven.text),
            (false, true) => copy(theirs, &mut woven.text),
            (true, true) if ours == theirs => copy(ours, &mut woven.text),
            (true, true) => {
                woven.conflicts += 1;
                match on {
                    OnConflict::Ours => copy(ours, &mut woven.text),
                    OnConflict::Theirs => copy(theirs, &mut woven.text),
                    OnConflict::Mark(labels) => {
                        three.mark((start..end, one, two), labels, &mut woven.text);
                    }
                }
            }
        }
    }
    copy(&three.base[at..], &mut woven.text);
    woven.is_ours = woven.text == ours;
    woven
}

/// The hunks of one side, handed out in order.
struct Changed {
    hunks: std::iter::Peekable<std::vec::IntoIter<Hunk>>,
    /// What a line of the base is further down on this side: before the hunks taken last, and after them.
    before: isize,
    after: isize,
    took: bool,
}

impl Changed {
    fn new(hunks: Vec<Hunk>) -> Self {
        Self {
            hunks: hunks.into_iter().peekable(),
            before: 0,
            after: 0,
            took: false,
        }
    }

    fn next_start(&mut self) -> Option<usize> {
        self.before = self.after;
        self.took = false;
        self.hunks.peek().map(|hunk| hunk.before.start)
    }

    /// Takes the next hunk if it touches what begins at `start` and ends at `end`, and moves the end.
    fn take(&mut self, start: usize, end: &mut usize) -> bool {
        let Some(hunk) = self
            .hunks
            .next_if(|hunk| (start..=*end).contains(&hunk.before.start))
        else {
            return false;
        };
        *end = hunk.before.end.max(*end);
        self.after += hunk.after.len().cast_signed() - hunk.before.len().cast_signed();
        self.took = true;
        true
    }

    fn taken(&self) -> bool {
        self.took
    }

    /// Where lines of the base, up to the hunks taken last, are on this side.
    fn range(&self, start: usize, end: usize) -> Range<usize> {
        start.saturating_add_signed(self.before)..end.saturating_add_signed(self.after)
    }
}

struct Three<'t> {
    base: Vec<&'t [u8]>,
    ours: Vec<&'t [u8]>,
    theirs: Vec<&'t [u8]>,
}

type Ranges = (Range<usize>, Range<usize>, Range<usize>);

impl Three<'_> {
    fn mark(&self, (base, ours, theirs): Ranges, labels: Labels<'_>, out: &mut Vec<u8>) {
        let end: &[u8] = if self.ends_with_cr(&ours, &theirs) {
            b"\r\n"
        } else {
            b"\n"
        };
        let mut part = |mark: &str, label: &str, lines: &[&[u8]]| {
            out.extend(mark.as_bytes());
            if !label.is_empty() {
                out.push(b' ');
                out.extend(label.as_bytes());
            }
            out.extend(end);
            copy(lines, out);
            if lines.last().is_some_and(|line| !line.ends_with(b"\n")) {
                out.extend(end);
            }
        };
        part("<<<<<<<", labels.ours, &self.ours[ours]);
        part("|||||||", labels.base, &self.base[base]);
        part("=======", "", &self.theirs[theirs]);
        part(">>>>>>>", labels.theirs, &[]);
    }

    /// Whether the lines around end as on Windows; the marks then do too.
    fn ends_with_cr(&self, ours: &Range<usize>, theirs: &Range<usize>) -> bool {
        let style = |lines: &[&[u8]], at: usize| -> Option<bool> {
            let ended = |line: &&[u8]| line.ends_with(b"\n").then(|| line.ends_with(b"\r\n"));
            let line = lines.get(at)?;
            ended(line).or_else(|| lines.get(at.checked_sub(1)?).and_then(ended))
        };
        let around = [
            style(&self.ours, ours.start.saturating_sub(1)),
            style(&self.theirs, theirs.start.saturating_sub(1)),
        ];
        match around {
            [Some(false), _] | [_, Some(false)] => false,
            [None, None] => style(&self.base, 0).unwrap_or(false),
            _ => style(&self.base, 0).unwrap_or(true),
        }
    }
}

fn copy(lines: &[&[u8]], out: &mut Vec<u8>) {
    for line in lines {
        out.extend(*line);
    }
}
