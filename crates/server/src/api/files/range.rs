//! Which part of a file a request wants, and whether it wants it at all (RFC 9110, sections 13 and 14).

use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};

/// What a `Range` asks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// No range, or none that is understood: all of it.
    Whole,
    /// So many bytes from there.
    Some { offset: u64, length: u64 },
    /// Nothing of the file is in it.
    Outside,
}

/// Finds the part of a file with this size and tag that the headers ask for. Several ranges at once are answered with all.
pub(super) fn part(headers: &HeaderMap, size: u64, etag: &str) -> Part {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if header(IF_RANGE).is_some_and(|wanted| wanted.trim() != etag) {
        return Part::Whole;
    }
    let Some(spec) = header(RANGE).and_then(|range| range.trim().strip_prefix("bytes=")) else {
        return Part::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else {
        return Part::Whole;
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        // A number over all bounds is as good as the highest.
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = (first.trim(), last.trim());
    let (offset, end) = match (number(first), number(last)) {
        (None, Some(suffix)) if first.is_empty() => (size.saturating_sub(suffix), size),
        (Some(offset), None) if last.is_empty() => (offset, size),
        (Some(offset), Some(last)) if offset <= last => (offset, last.saturating_add(1).min(size)),
        _ => return Part::Whole,
    };
    if offset >= end {
        return Part::Outside;
    }
    Part::Some {
        offset,
        length: end - offset,
    }
}

/// The tags of a conditional header: none of them for `*`. A tag that is weak never matches.
pub(super) fn tags(headers: &HeaderMap, name: axum::http::HeaderName) -> Option<Vec<String>> {
    let mut found: Option<Vec<String>> = None;
    for value in headers.get_all(name) {
        let tags = found.get_or_insert_default();
        let text = value.to_str().unwrap_or_default();
        if text.trim() == "*" {
            return Some(Vec::new());
        }
        // Without a quote it is nothing of ours, and stands for something that never matches.
        tags.extend(text.split(',').map(|tag| {
            let tag = tag.trim();
            let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            inner.unwrap_or("?").to_owned()
        }));
    }
    found
}

/// What a conditional read comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Yes,
    /// The caller has it already.
    NotModified,
    /// It is another than the caller wants.
    Unmet,
}

pub(super) fn wanted(headers: &HeaderMap, tag: &str) -> Wanted {
    let is_one = |tags: &Vec<String>| tags.is_empty() || tags.iter().any(|t| t == tag);
    if tags(headers, IF_MATCH).is_some_and(|tags| !is_one(&tags)) {
        return Wanted::Unmet;
    }
    if tags(headers, IF_NONE_MATCH).is_some_and(|tags| is_one(&tags)) {
        return Wanted::NotModified;
    }
    Wanted::Yes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(range: &str, size: u64) -> Part {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, range.parse().unwrap());
        part(&headers, size, "\"t\"")
    }

    #[test]
    fn the_table_of_ranges() {
        let some = |offset, length| Part::Some { offset, length };
        let table = [
            ("bytes=0-0", 10, some(0, 1)),
            ("bytes=2-4", 10, some(2, 3)),
            ("bytes=2-", 10, some(2, 8)),
            ("bytes=-3", 10, some(7, 3)),
            ("bytes=-99", 10, some(0, 10)),
            ("bytes=9-99999999999999999999999", 10, some(9, 1)),
            ("bytes=10-", 10, Part::Outside),
            ("bytes=-0", 10, Part::Outside),
            ("bytes=0-", 0, Part::Outside),
            ("bytes=4-2", 10, Part::Whole),
            ("bytes=a-b", 10, Part::Whole),
            ("bytes=-", 10, Part::Whole),
            ("bytes=0-1,4-5", 10, Part::Whole),
            ("lines=0-1", 10, Part::Whole),
        ];
        for (range, size, wanted) in table {
            assert_eq!(of(range, size), wanted, "{range} of {size}");
        }
    }

    #[test]
    fn conditions_are_held_against_the_tag() {
        let with = |name: axum::http::HeaderName, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            headers
        };
        assert_eq!(wanted(&with(IF_MATCH, "\"a\", \"b\""), "b"), Wanted::Yes);
        assert_eq!(wanted(&with(IF_MATCH, "\"a\""), "b"), Wanted::Unmet);
        assert_eq!(wanted(&with(IF_MATCH, "W/\"b\""), "b"), Wanted::Unmet);
        assert_eq!(wanted(&with(IF_MATCH, "*"), "b"), Wanted::Yes);
        let seen = wanted(&with(IF_NONE_MATCH, "\"b\""), "b");
        assert_eq!(seen, Wanted::NotModified);
        let mut headers = with(IF_RANGE, "\"old\"");
        headers.insert(RANGE, "bytes=1-2".parse().unwrap());
        assert_eq!(part(&headers, 10, "\"new\""), Part::Whole);
    }
}
