//! Values that were put into a request, taken out of its answer: for services that echo what they are sent. Best effort, no
//! boundary: a service that wants to give a secret away can always say it in another way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use secret::Value;
use secret::scrub::{Needles, Scrubber};

/// Sets of values that are kept ready; a policy has few rules with secrets.
const KEPT: usize = 16;
/// How long one is kept that no request asks for.
const IDLE: Duration = Duration::from_secs(60);

/// What scrubs the sets of values that were in use lately. One takes a hundred kilobytes and some hundred microseconds, so
/// requests with the same values share it.
#[derive(Default)]
pub(crate) struct Scrubs(Mutex<Vec<Kept>>);

struct Kept {
    values: Vec<Arc<Value>>,
    scrub: Scrub,
    used: Instant,
}

impl Kept {
    fn is_of(&self, values: &[Arc<Value>]) -> bool {
        let mut pairs = self.values.iter().zip(values);
        self.values.len() == values.len() && pairs.all(|(a, b)| a.expose() == b.expose())
    }
}

impl Scrubs {
    /// Returns what scrubs these values; none where there are none.
    pub(crate) fn of(&self, values: &[Arc<Value>]) -> Option<Scrub> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = all.iter().position(|kept| kept.is_of(values));
        let scrub = match kept {
            Some(at) => all.remove(at).scrub,
            None => Scrub::of(values)?,
        };
        if all.len() >= KEPT {
            all.remove(0);
        }
        // The one that was used last is the last to go.
        all.push(Kept {
            values: values.to_vec(),
            scrub: scrub.clone(),
            used: Instant::now(),
        });
        Some(scrub)
    }

    /// Forgets what was not in use for a while: values are not held for longer than they are needed.
    pub(crate) fn tidy(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|kept| kept.used.elapsed() < IDLE);
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// The values that must not come back.
#[derive(Clone)]
pub(crate) struct Scrub {
    values: Needles,
    /// The same in small letters, as names of headers come.
    names: Needles,
}

impl Scrub {
    /// Returns what scrubs these values; none where there are none.
    fn of(values: &[Arc<Value>]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let needles = Needles::of(values.iter().map(AsRef::as_ref));
        let small: Vec<Value> = values
            .iter()
            .map(|value| Value::new(value.expose().to_ascii_lowercase()))
            .collect();
        let names = Needles::of(&small);
        (!needles.is_empty()).then(|| Self {
            values: needles,
            names,
        })
    }

    /// Returns what goes over a stream.
    pub(crate) fn scrubber(&self) -> Scrubber {
        Scrubber::new(&self.values)
    }

    fn whole(mut scrubber: Scrubber, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        scrubber.push(bytes, &mut out);
        scrubber.finish(&mut out);
        out
    }

    /// Goes over headers or trailers. One with a value in its name is left out.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        let named: Vec<HeaderName> = headers
            .keys()
            .filter(|name| {
                let name = name.as_str().as_bytes();
                Self::whole(Scrubber::new(&self.names), name) != name
            })
            .cloned()
            .collect();
        for name in named {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            let scrubbed = Self::whole(self.scrubber(), value.as_bytes());
            if scrubbed != value.as_bytes() {
                *value = HeaderValue::from_bytes(&scrubbed)
                    .unwrap_or_else(|_| HeaderValue::from_static("*"));
            }
        }
    }
}

/// One answer's body on its way through what scrubs it, if anything does.
pub(crate) struct Sieve {
    scrub: Option<Scrub>,
    /// Until the body's end.
    scrubber: Option<Scrubber>,
}

impl Sieve {
    pub(crate) fn new(scrub: Option<Scrub>) -> Self {
        Self {
            scrubber: scrub.as_ref().map(Scrub::scrubber),
            scrub,
        }
    }

    /// Whether something may be held back still. What is scrubbed keeps its length, but ends later.
    pub(crate) fn holds_back(&self) -> bool {
        self.scrubber.is_some()
    }

    /// Scrubs data; none where all of it is held back.
    pub(crate) fn data(&mut self, data: Bytes) -> Option<Bytes> {
        let Some(scrubber) = &mut self.scrubber else {
            return Some(data);
        };
        let mut out = Vec::with_capacity(data.len());
        scrubber.push(&data, &mut out);
        (!out.is_empty()).then(|| out.into())
    }

    /// Returns what is held back still, once.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let mut scrubber = self.scrubber.take()?;
        let mut out = Vec::new();
        scrubber.finish(&mut out);
        (!out.is_empty()).then(|| out.into())
    }

    pub(crate) fn trailers(&self, mut trailers: HeaderMap) -> HeaderMap {
        if let Some(scrub) = &self.scrub {
            scrub.headers(&mut trailers);
        }
        trailers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_the_same_values_share_what_scrubs_them() {
        let scrubs = Scrubs::default();
        let set = |texts: &[&str]| -> Vec<Arc<Value>> {
            let values = texts.iter().map(|text| Arc::new(Value::new(*text)));
            values.collect()
        };
        assert!(scrubs.of(&[]).is_none());
        let kept = || scrubs.0.lock().unwrap().len();
        for _ in 0..3 {
            scrubs.of(&set(&["sk-one-1", "sk-two-2"])).unwrap();
        }
        assert_eq!(kept(), 1);
        scrubs.of(&set(&["sk-one-1"])).unwrap();
        for n in 0..2 * KEPT {
            let other = format!("sk-other-{n}");
            scrubs.of(&set(&[&other])).unwrap();
        }
        assert_eq!(kept(), KEPT);
        scrubs.tidy();
        assert_eq!(kept(), KEPT, "they were just in use");
        scrubs.clear();
        assert_eq!(kept(), 0);
    }

    #[test]
    fn a_value_in_the_name_of_a_header_goes_with_it() {
        let value = Arc::new(Value::new("Sk-Real-0123456789"));
        let scrub = Scrub::of(&[value]).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-sk-real-0123456789", "1"),
            ("x-other", "it is Sk-Real-0123456789"),
        ] {
            let name: HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        scrub.headers(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-other"], "it is ******************");
    }
}
