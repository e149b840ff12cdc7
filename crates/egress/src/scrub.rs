//! Values that were put into a request, taken out of its answer: for services that echo what they are sent. Best effort, no
//! boundary: a service that wants to give a secret away can always say it in another way.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use secret::Value;
use secret::scrub::{Needles, Scrubber};

/// The values that must not come back.
#[derive(Clone)]
pub(crate) struct Scrub(Needles);

impl Scrub {
    /// Returns what scrubs these values; none where there are none.
    pub(crate) fn of(values: &[Arc<Value>]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let needles = Needles::of(values.iter().map(AsRef::as_ref));
        (!needles.is_empty()).then(|| Self(needles))
    }

    /// Returns what goes over a stream.
    pub(crate) fn scrubber(&self) -> Scrubber {
        Scrubber::new(&self.0)
    }

    fn whole(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut scrubber = self.scrubber();
        scrubber.push(bytes, &mut out);
        scrubber.finish(&mut out);
        out
    }

    /// Goes over headers or trailers.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            let scrubbed = self.whole(value.as_bytes());
            if scrubbed != value.as_bytes() {
                *value = HeaderValue::from_bytes(&scrubbed)
                    .unwrap_or_else(|_| HeaderValue::from_static("*"));
            }
        }
    }
}
