//! Which paths a caller means: a path with all below it, or a pattern with `*`, `?`, `[…]` and `**`.

/// Whether one of the patterns means this path. No pattern means every path.
///
/// A pattern without a slash is held against each name on the way; `*` and `?` stand for no slash, `**` for anything.
pub(crate) fn selects(patterns: &[Vec<u8>], path: &[u8]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| means(pattern, path))
}

fn means(pattern: &[u8], path: &[u8]) -> bool {
    let pattern = pattern.strip_suffix(b"/").unwrap_or(pattern);
    if pattern.is_empty() || pattern == b"." {
        return true;
    }
    if !pattern.iter().any(|byte| b"*?[".contains(byte)) {
        let rest = path.strip_prefix(pattern);
        return rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    }
    if !pattern.contains(&b'/') && !pattern.starts_with(b"**") {
        return path
            .split(|&byte| byte == b'/')
            .any(|name| matches(pattern, name));
    }
    // What lies below a directory that is meant is meant too.
    let ends = (0..path.len())
        .filter(|&at| path[at] == b'/')
        .chain([path.len()]);
    ends.into_iter().any(|end| matches(pattern, &path[..end]))
}

/// Tries the pattern with two points of return, one for the last `*` and one for the last `**`: a hostile pattern costs no
/// more than its length times the path's for each.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    let mut stars: Option<(usize, usize)> = None;
    loop {
        let rest = &pattern[at..];
        if let Some(after) = rest.strip_prefix(b"**") {
            // `**/` stands for no directory as well.
            let skip = if after.starts_with(b"/") { 3 } else { 2 };
            at += skip;
            stars = Some((at, in_text));
            star = None;
            continue;
        }
        if rest.first() == Some(&b'*') {
            at += 1;
            star = Some((at, in_text));
            continue;
        }
        if in_text == text.len() && rest.is_empty() {
            return true;
        }
        if let Some(&byte) = text.get(in_text)
            && let Some(len) = one(rest, byte)
        {
            at += len;
            in_text += 1;
            continue;
        }
        if let Some((back, from)) = star
            && from < text.len()
            && text[from] != b'/'
        {
            star = Some((back, from + 1));
            (at, in_text) = (back, from + 1);
        } else if let Some((back, from)) = stars
            && let Some(next) = next_try(pattern, back, text, from)
        {
            star = None;
            stars = Some((back, next));
            (at, in_text) = (back, next);
        } else {
            return false;
        }
    }
}

/// Where `**` may end next: anywhere, but `**/` only behind a slash.
fn next_try(pattern: &[u8], back: usize, text: &[u8], from: usize) -> Option<usize> {
    let whole = pattern[..back].ends_with(b"/");
    (from + 1..=text.len()).find(|&at| !whole || text[at - 1] == b'/')
}

/// How long the element at the head of a pattern is, if it stands for this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => (byte != b'/').then_some(1),
        b'[' => class(pattern, byte),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        plain => (plain == byte).then_some(1),
    }
}

fn class(pattern: &[u8], byte: u8) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    // A bracket right at the begin is one of the set.
    let Some(len) = pattern
        .iter()
        .skip(first + 1)
        .position(|&byte| byte == b']')
    else {
        return (byte == b'[').then_some(1);
    };
    let end = first + 1 + len;
    let set = &pattern[first..end];
    let (mut at, mut found) = (0, false);
    while at < set.len() {
        let range = at + 2 < set.len() && set[at + 1] == b'-';
        let last = if range { set[at + 2] } else { set[at] };
        found |= (set[at]..=last).contains(&byte);
        at += if range { 3 } else { 1 };
    }
    (found != negated && byte != b'/').then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::selects;

    fn is_meant(pattern: &str, path: &str) -> bool {
        selects(&[pattern.into()], path.as_bytes())
    }

    #[test]
    fn a_path_means_all_below_it() {
        assert!(selects(&[], b"any/thing"));
        assert!(is_meant("src", "src") && is_meant("src/", "src/a") && is_meant(".", "x"));
        assert!(!is_meant("src", "srcs") && !is_meant("a/b", "a"));
    }

    #[test]
    fn patterns_mean_what_shells_mean() {
        assert!(is_meant("*.rs", "deep/down/x.rs") && is_meant("t?st", "a/test/in"));
        assert!(is_meant("src/*.rs", "src/x.rs") && !is_meant("src/*.rs", "src/a/x.rs"));
        assert!(is_meant("src/**/x", "src/x") && is_meant("src/**/x", "src/a/b/x"));
        assert!(!is_meant("src/**/x", "src/ax") && is_meant("**/x", "x") && is_meant("**", "a/b"));
        assert!(is_meant("[a-c]/[!x]", "b/y") && !is_meant("[a-c]/[!x]", "b/x"));
        assert!(is_meant("[]]/*", "]/a") && is_meant("[/a", "[/a") && is_meant(r"\*[x]", "*x"));
        assert!(is_meant("a/*/c*d/**/e", "a/b/cxd/y/z/e") && !is_meant("a/*/c", "a/b/b/c"));
    }

    #[test]
    fn a_hostile_pattern_is_answered_at_once() {
        let pattern = "a/".to_owned() + &"*a".repeat(2000) + "**b" + &"*a".repeat(2000);
        assert!(!is_meant(&pattern, &("a/".to_owned() + &"a".repeat(4000))));
    }
}
