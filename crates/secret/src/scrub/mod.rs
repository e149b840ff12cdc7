//! Takes the values of secrets out of a stream: each byte of one becomes a `*`, in whatever pieces the stream comes.
//!
//! A value is found as it is, in base64 (at each of the three places it can have among other bytes), percent-encoded, as
//! a JSON string, escaped for HTML, in hex, and with each of its characters spelled as an escape of these. Bytes wait only while they may be the beginning of one of these; what cannot be goes on at
//! once. A value that is packed, encrypted or spelled in another way is not found: this is a net below the policy, no wall.

mod forms;
mod scrubber;
mod trie;

pub use scrubber::Scrubber;

use std::fmt;
use std::sync::Arc;

use crate::value::Value;
use trie::Trie;

/// Values that are shorter are not looked for: they stand in every text by chance.
pub const SHORTEST: usize = 6;

/// What is looked for: values in all forms that are known here. Cheap to clone.
#[derive(Clone)]
pub struct Needles(Arc<Trie>);

impl Needles {
    /// Takes the values to look for. Those shorter than [`SHORTEST`] are left out.
    #[must_use]
    pub fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut trie = Trie::new();
        for value in values {
            if value.expose().len() >= SHORTEST {
                for form in forms::of(value.expose()) {
                    trie.add(&form);
                }
            }
        }
        trie.link();
        Self(Arc::new(trie))
    }

    /// Tells whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Needles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Needles(…)")
    }
}
