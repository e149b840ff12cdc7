//! Values that were put into a request, taken out of its answer: for services that echo what they are sent. Best effort, no
//! boundary: a service that wants to give a secret away can always say it in another way.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use secret::Value;
use secret::scrub::{Needles, Scrubber};

/// The values that must not come back.
#[derive(Clone)]
pub(crate) struct Scrub {
    values: Needles,
    /// The same in small letters, as names of headers come.
    names: Needles,
}

impl Scrub {
    /// Returns what scrubs these values; none where there are none.
    pub(crate) fn of(values: &[Arc<Value>]) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
