//! One stream on its way through.

use std::fmt;
use std::sync::Arc;

use zeroize::{Zeroize as _, Zeroizing};

use super::Needles;
use super::trie::{State, Trie};

/// Scrubs one stream. What it gives back in all is as long as what it was given.
///
/// ```
/// use secret::Value;
/// use secret::scrub::{Needles, Scrubber};
///
/// let mut scrubber = Scrubber::new(&Needles::of([&Value::new("hunter2")]));
/// let mut out = Vec::new();
/// scrubber.push(b"it is hun", &mut out);
/// assert_eq!(out, b"it is ");
/// scrubber.push(b"ter2, he said", &mut out);
/// scrubber.finish(&mut out);
/// assert_eq!(out, b"it is *******, he said");
/// ```
pub struct Scrubber {
    trie: Arc<Trie>,
    state: State,
    /// What may be the beginning of a needle: the last bytes, with what is found already replaced.
    held: Zeroizing<Vec<u8>>,
    found: u64,
}

impl Scrubber {
    /// Begins a stream.
    #[must_use]
    pub fn new(needles: &Needles) -> Self {
        let trie = needles.0.clone();
        Self {
            state: trie.start(),
            trie,
            held: Zeroizing::default(),
            found: 0,
        }
    }

    /// Takes the next bytes, and appends to `out` what can go on.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.trie.is_empty() {
            out.extend_from_slice(bytes);
            return;
        }
        // What is found from now on begins in what was held, or after it, but for a `*` that went on already.
        let from = out.len();
        out.extend_from_slice(&self.held);
        self.held.zeroize();
        let new = out.len();
        out.extend_from_slice(bytes);
        let mut times = 0;
        self.state = self.trie.run(self.state, bytes, |end, found| {
            times += 1;
            let end = new + end;
            out[end.saturating_sub(found).max(from)..end].fill(b'*');
        });
        self.found += times;
        let open = self.trie.open(self.state).min(out.len() - from);
        let mut settled = out.len() - open;
        // What is a `*` stays one, whatever comes: the end of one needle is not held back for a longer one.
        while out.get(settled) == Some(&b'*') {
            settled += 1;
        }
        self.held = Zeroizing::new(out[settled..].to_vec());
        out[settled..].zeroize();
        out.truncate(settled);
    }

    /// Ends the stream: what was held back is the beginning of a needle and nothing more.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.held);
        self.held.zeroize();
        self.state = self.trie.start();
    }

    /// Returns how many bytes are held back now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns how often something was found.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.found
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber")
            .field("held", &self.held.len())
            .field("found", &self.found)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::forms;
    use super::*;
    use crate::value::Value;

    fn needles(values: &[&str]) -> Needles {
        let values: Vec<Value> = values.iter().map(|&value| Value::new(value)).collect();
        Needles::of(&values)
    }

    fn scrub(needles: &Needles, pieces: &[&[u8]]) -> Vec<u8> {
        let (mut scrubber, mut out) = (Scrubber::new(needles), Vec::new());
        for piece in pieces {
            scrubber.push(piece, &mut out);
        }
        scrubber.finish(&mut out);
        out
    }

    #[test]
    fn a_value_is_found_in_every_form_and_what_is_around_it_stays() {
        let secret = "s3cr/t \"k&y\"=";
        let needles = needles(&[secret]);
        for form in forms::of(secret.as_bytes()) {
            let text = [b"<a>", form.as_slice(), b"</a>"].concat();
            let out = scrub(&needles, &[&text]);
            assert_eq!(out.len(), text.len());
            assert!(out.starts_with(b"<a>") && out.ends_with(b"</a>"));
            assert!(out[3..out.len() - 4].iter().all(|&b| b == b'*'));
        }
    }

    #[test]
    fn nothing_is_held_back_where_no_value_can_begin() {
        let needles = needles(&["hunter2"]);
        let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
        for event in ["data: {\"delta\":\"so\"}\n\n", "data: [DONE]\n\n"] {
            scrubber.push(event.as_bytes(), &mut out);
            assert_eq!(scrubber.held(), 0);
        }
        scrubber.push(b"hunter", &mut out);
        assert_eq!(scrubber.held(), 6);
        scrubber.push(b"s", &mut out);
        assert_eq!(scrubber.held(), 0);
        scrubber.push(b"hunter2", &mut out);
        assert_eq!(scrubber.held(), 0);
        assert_eq!(scrubber.found(), 1);
        assert!(out.ends_with(b"hunters*******"));
    }

    #[test]
    fn values_that_overlap_or_hold_one_another_are_all_replaced() {
        let needles = needles(&["abcdefgh", "efghijkl", "cdefgh"]);
        assert_eq!(scrub(&needles, &[b"xabcdefghijklx"]), b"x************x");
        assert_eq!(scrub(&needles, &[b"xxcdefghij"]), b"xx******ij");
        assert_eq!(scrub(&needles, &[b"abcdefg"]), b"abcdefg");
        // The end of what might have become a longer one.
        let needles = self::needles(&["abcdefghX", "cdefgh"]);
        assert_eq!(scrub(&needles, &[b"abcdefghY"]), b"ab******Y");
    }

    #[test]
    fn short_values_and_no_values_leave_everything_as_it_is() {
        assert!(needles(&["short"]).is_empty());
        assert_eq!(
            scrub(&needles(&["short"]), &[b"a short text"]),
            b"a short text"
        );
        assert_eq!(scrub(&needles(&[]), &[b"", b"abc"]), b"abc");
    }

    #[test]
    fn nothing_of_a_value_is_printed() {
        let needles = needles(&["hunter2"]);
        let (mut scrubber, mut out) = (Scrubber::new(&needles), Vec::new());
        scrubber.push(b"hunt", &mut out);
        let printed = format!("{needles:?} {scrubber:?}");
        assert!(!printed.contains("hunt"), "{printed}");
    }

    /// Replaces what any needle covers, by looking everywhere for each.
    fn slowly(values: &[String], text: &[u8]) -> Vec<u8> {
        let mut out = text.to_vec();
        for form in values.iter().flat_map(|value| forms::of(value.as_bytes())) {
            for at in 0..text.len() {
                if text[at..].starts_with(&form) {
                    out[at..at + form.len()].fill(b'*');
                }
            }
        }
        out
    }

    /// Few letters, so that beginnings of values are everywhere; values in some form between them.
    fn text(values: Vec<String>) -> impl Strategy<Value = Vec<u8>> {
        let all: Vec<Vec<u8>> = values
            .iter()
            .flat_map(|value| forms::of(value.as_bytes()))
            .map(|form| form.to_vec())
            .collect();
        let form = proptest::sample::select(all);
        let cut = (form.clone(), 0..100_usize)
            .prop_map(|(form, share)| form[..form.len() * share / 100].to_vec());
        let noise = "[ab/ \"=%]{0,8}".prop_map(String::into_bytes);
        proptest::collection::vec(prop_oneof![form, cut, noise], 0..12)
            .prop_map(|pieces| pieces.concat())
    }

    fn some() -> impl Strategy<Value = (Vec<String>, Vec<u8>, Vec<usize>)> {
        proptest::collection::vec("([ab]{6,12}|[ab/ \"=]{6,9})", 1..4).prop_flat_map(|values| {
            let cuts = proptest::collection::vec(0..400_usize, 0..10);
            (Just(values.clone()), text(values), cuts)
        })
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_same_and_no_value_is_left((values, text, mut cuts) in some()) {
            let needles = Needles::of(&values.iter().map(|v| Value::new(v.as_str())).collect::<Vec<_>>());
            cuts.retain(|&cut| cut <= text.len());
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            pieces.push(&text[from..]);
            let out = scrub(&needles, &pieces);
            prop_assert_eq!(&out, &scrub(&needles, &[&text]));
            prop_assert_eq!(&out, &slowly(&values, &text));
            for form in values.iter().flat_map(|value| forms::of(value.as_bytes())) {
                prop_assert!(!out.windows(form.len()).any(|part| part == form.as_slice()));
            }
        }

        #[test]
        fn bytes_of_all_kinds_pass(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(scrub(&needles(&["hunter2hunter2"]), &[&text]), text);
        }
    }
}
