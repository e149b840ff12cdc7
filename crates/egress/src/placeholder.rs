//! Stand-ins for secrets, wherever a program puts them: one that stands where the policy does not name is refused, since the
//! upstream could pass it on to where it becomes the secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use memchr::memmem;
use protocol::DenyReason;

use crate::deny::Denial;
use crate::seam::Placeholder;

/// Looks for placeholders in a stream.
pub(crate) struct Watch {
    wanted: Vec<Placeholder>,
    /// The end of what came before: a placeholder may lie over two pieces.
    tail: Vec<u8>,
    longest: usize,
}

impl Watch {
    /// Returns what looks for these; none where there are none.
    pub(crate) fn new(wanted: &[Placeholder]) -> Option<Self> {
        let wanted: Vec<_> = wanted
            .iter()
            .filter(|one| !one.text.is_empty())
            .cloned()
            .collect();
        let longest = wanted.iter().map(|one| one.text.len()).max()?;
        Some(Self {
            wanted,
            tail: Vec::new(),
            longest,
        })
    }

    /// Returns the secret whose placeholder ends in these bytes.
    pub(crate) fn find(&mut self, data: &[u8]) -> Option<String> {
        let keep = self.longest - 1;
        let mut seam = std::mem::take(&mut self.tail);
        seam.extend_from_slice(&data[..data.len().min(keep)]);
        let found = self.wanted.iter().find(|one| {
            let text = one.text.as_bytes();
            memmem::find(&seam, text).is_some() || memmem::find(data, text).is_some()
        });
        if let Some(found) = found {
            return Some(found.secret.clone());
        }
        if data.len() >= keep {
            self.tail = data[data.len() - keep..].to_vec();
        } else {
            let from = seam.len().saturating_sub(keep);
            self.tail = seam.split_off(from);
        }
        None
    }
}

impl Watch {
    /// Returns the secret whose placeholder stands in what comes behind a body.
    pub(crate) fn in_trailers(&self, trailers: &HeaderMap) -> Option<String> {
        let mut found = trailers
            .values()
            .filter_map(|value| in_header(&self.wanted, value));
        found.next().map(|one| one.secret.clone())
    }
}

/// Returns the refusal of a placeholder in the wrong place.
pub(crate) fn misplaced(secret: &str, place: &str) -> Denial {
    Denial::forbidden(
        DenyReason::Placeholder,
        format!(
            "the placeholder of secret `{secret}` stands in {place}, where it is not replaced; the policy names the places \
             in which it is (a rule's `inject`)"
        ),
    )
}

/// Returns the secret whose placeholder stands in a text, raw or percent-encoded.
pub(crate) fn in_text<'a>(wanted: &'a [Placeholder], text: &[u8]) -> Option<&'a Placeholder> {
    if wanted.is_empty() {
        return None;
    }
    let decoded = percent_decode(text);
    wanted.iter().find(|one| {
        let wanted = one.text.as_bytes();
        !wanted.is_empty()
            && (memmem::find(text, wanted).is_some() || memmem::find(&decoded, wanted).is_some())
    })
}

/// Returns the secret whose placeholder stands in a header, `Basic` credentials included.
pub(crate) fn in_header<'a>(
    wanted: &'a [Placeholder],
    value: &HeaderValue,
) -> Option<&'a Placeholder> {
    if wanted.is_empty() {
        return None;
    }
    in_text(wanted, value.as_bytes()).or_else(|| in_text(wanted, &basic(value)?))
}

/// Returns `user:password` of `Basic` credentials.
pub(crate) fn basic(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    STANDARD.decode(credentials.trim()).ok()
}

/// Puts `by` into the place of a placeholder; none where it is not there.
pub(crate) fn replace(text: &[u8], placeholder: &str, by: &[u8]) -> Option<Vec<u8>> {
    let wanted = placeholder.as_bytes();
    if wanted.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memmem::find(rest, wanted) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(by);
        rest = &rest[at + wanted.len()..];
    }
    if rest.len() == text.len() {
        return None;
    }
    out.extend_from_slice(rest);
    Some(out)
}

pub(crate) fn percent_decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let pair = (digit(text.get(at + 1)), digit(text.get(at + 2)));
        match (text[at], pair) {
            (b'%', (Some(high), Some(low))) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

pub(crate) fn percent_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(char::from(*byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Returns a path and query for the journal: cut, and with every placeholder taken out.
pub(crate) fn shown(wanted: &[Placeholder], path: &str) -> String {
    const LONGEST: usize = 2048;
    let mut shown = path.to_owned();
    for one in wanted.iter().filter(|one| !one.text.is_empty()) {
        shown = shown.replace(&one.text, "***");
        shown = shown.replace(&percent_encode(one.text.as_bytes()), "***");
    }
    if shown.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| shown.is_char_boundary(*end));
        shown.truncate(end.unwrap_or(0));
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Vec<Placeholder> {
        ["ghp_0123456789", "sk-x/y+z"]
            .map(|text| Placeholder {
                secret: text[..2].to_owned(),
                text: text.to_owned(),
            })
            .to_vec()
    }

    #[test]
    fn a_placeholder_is_found_however_the_stream_is_cut() {
        let body = b"{\"note\":\"ghp_0123456789\"}";
        for cut in 0..=body.len() {
            for piece in [1, 3, body.len()] {
                let mut watch = Watch::new(&wanted()).unwrap();
                let (first, second) = body.split_at(cut);
                let found = first
                    .chunks(piece)
                    .chain(second.chunks(piece))
                    .find_map(|data| watch.find(data));
                assert_eq!(
                    found.as_deref(),
                    Some("gh"),
                    "cut at {cut}, pieces of {piece}"
                );
            }
        }
        let mut watch = Watch::new(&wanted()).unwrap();
        assert!(body[..22].chunks(2).all(|data| watch.find(data).is_none()));
        assert!(Watch::new(&[]).is_none());
    }

    #[test]
    fn encoded_forms_are_found() {
        let wanted = wanted();
        assert!(in_text(&wanted, b"/x?k=sk-x%2Fy%2Bz").is_some());
        assert!(in_text(&wanted, b"/x?k=sk-x%2Fy").is_none());
        let basic =
            HeaderValue::from_str(&format!("Basic {}", STANDARD.encode("me:ghp_0123456789")))
                .unwrap();
        assert!(in_header(&wanted, &basic).is_some());
        assert_eq!(
            shown(&wanted, "/a?k=sk-x%2Fy%2Bz&l=ghp_0123456789"),
            "/a?k=***&l=***"
        );
    }

    #[test]
    fn a_placeholder_is_replaced_wherever_it_stands_in_its_place() {
        assert_eq!(replace(b"token @, @", "@", b"V").unwrap(), b"token V, V");
        assert_eq!(replace(b"x", "a", b"V"), None);
        assert_eq!(
            percent_decode(percent_encode(b"a /\xff%").as_bytes()),
            b"a /\xff%"
        );
    }
}
