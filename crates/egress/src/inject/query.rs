//! The query of a request, taken apart and put together.

use http::uri::PathAndQuery;

use super::Work;
use crate::deny::Denial;
use crate::placeholder::{percent_decode, percent_encode};

/// Whether a value is written as a URL wants it.
pub(super) enum Encoded {
    Already,
    No,
}

impl Work {
    /// Takes a parameter out of the query; returns its values as they were written.
    pub(super) fn take_query(&mut self, key: &str) -> Vec<String> {
        let Some(query) = &self.query else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        let mut kept = Vec::new();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if form_decode(name) == key.as_bytes() {
                taken.push(value.to_owned());
            } else {
                kept.push(pair);
            }
        }
        if !taken.is_empty() {
            let kept = kept.join("&");
            self.query = (!kept.is_empty()).then_some(kept);
        }
        taken
    }

    pub(super) fn add_query(&mut self, key: &str, value: &[u8], encoded: Encoded) {
        let value = match encoded {
            Encoded::Already => String::from_utf8_lossy(value).into_owned(),
            Encoded::No => percent_encode(value),
        };
        let pair = format!("{}={value}", percent_encode(key.as_bytes()));
        self.query = Some(match self.query.take() {
            Some(query) if !query.is_empty() => format!("{query}&{pair}"),
            _none => pair,
        });
    }

    pub(super) fn path_and_query(&self) -> Result<PathAndQuery, Denial> {
        let text = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        };
        text.parse()
            .map_err(|_| Denial::malformed("the target is no path"))
    }
}

/// A name in a query: `+` is a space there.
fn form_decode(text: &str) -> Vec<u8> {
    percent_decode(text.replace('+', " ").as_bytes())
}
