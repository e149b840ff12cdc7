//! The query of a request, as pairs.

use crate::path::hex;

/// Returns the pairs of `a=b&c=d`, decoded as forms are.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
}

/// What is no escape stays as it is, as every reader of forms has it.
fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = match byte {
            b'%' => hex(bytes.get(at + 1).copied(), bytes.get(at + 2).copied()),
            _ => None,
        };
        out.push(match byte {
            b'+' => b' ',
            other => escaped.unwrap_or(other),
        });
        at += if escaped.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn pairs_are_decoded_as_forms_are() {
        let all: Vec<_> = pairs("a=b%20c+d&&e&%66=%zz%").collect();
        let want = [("a", "b c d"), ("e", ""), ("f", "%zz%")];
        assert_eq!(all, want.map(|(key, value)| (key.into(), value.into())));
    }
}
