//! Patterns over segments between slashes: `*` stands for anything in one segment, `**` for any number of whole segments.
//!
//! Two points of return, one a kind of star, keep the work below pattern times text: no pattern and no request is slow.

/// A pattern of a path, a repository or a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// One segment.
    One(String),
    /// `**`.
    Deep,
}

/// Whether upper and lower case differ. They do in what a rule allows, and not in what one denies: whoever is asked may not
/// tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Matters,
    Ignored,
}

impl Glob {
    /// Reads a pattern; what is wrong with it in words.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("the pattern is empty");
        }
        if text.chars().any(|c| c.is_control() || c == '\\') {
            return Err("a pattern has no backslashes and no control characters");
        }
        if text.contains('%') {
            return Err(
                "a pattern is written without percent-encoding: it is compared with what that means",
            );
        }
        let mut parts = Vec::new();
        for segment in text.strip_prefix('/').unwrap_or(text).split('/') {
            parts.push(match segment {
                "**" => Part::Deep,
                "." | ".." => return Err("a pattern has no segments `.` and `..`"),
                other if other.contains("**") => {
                    return Err("`**` stands alone between two slashes");
                }
                other => Part::One(other.to_owned()),
            });
        }
        let last = parts.len() - 1;
        if parts[..last]
            .iter()
            .any(|part| matches!(part, Part::One(text) if text.is_empty()))
        {
            return Err("a pattern has no empty segments");
        }
        let text = text.to_owned();
        Ok(Self { text, parts })
    }

    /// Returns the pattern as it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the pattern means these segments. A `**` at its end stands for at least one, elsewhere for none as well.
    pub(crate) fn matches<S: AsRef<[u8]>>(&self, segments: &[S], case: Case) -> bool {
        let (mut at, mut seen) = (0, 0);
        let mut back: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(at) {
                Some(Part::Deep) if at + 1 == self.parts.len() => return seen < segments.len(),
                Some(Part::Deep) => {
                    at += 1;
                    back = Some((at, seen));
                    continue;
                }
                None if seen == segments.len() => return true,
                Some(Part::One(pattern)) if seen < segments.len() => {
                    if star(pattern.as_bytes(), segments[seen].as_ref(), case) {
                        at += 1;
                        seen += 1;
                        continue;
                    }
                }
                Some(Part::One(_)) | None => {}
            }
            match &mut back {
                Some((again, from)) if *from < segments.len() => {
                    *from += 1;
                    (at, seen) = (*again, *from);
                }
                _ => return false,
            }
        }
    }

    /// [`Glob::matches`] on text that has its slashes yet, as a repository's or a ref's name.
    pub(crate) fn matches_text(&self, text: &str, case: Case) -> bool {
        let segments: Vec<&str> = text.split('/').collect();
        self.matches(&segments, case)
    }
}

/// Whether a pattern with `*` means all of a text; here a star stands for slashes too.
pub(crate) fn star(pattern: &[u8], text: &[u8], case: Case) -> bool {
    let same = |a: u8, b: u8| match case {
        Case::Matters => a == b,
        Case::Ignored => a.eq_ignore_ascii_case(&b),
    };
    let (mut at, mut seen) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    loop {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                back = Some((at, seen));
                continue;
            }
            Some(&byte) if seen < text.len() && same(byte, text[seen]) => {
                at += 1;
                seen += 1;
                continue;
            }
            None if seen == text.len() => return true,
            Some(_) | None => {}
        }
        match &mut back {
            Some((again, from)) if *from < text.len() => {
                *from += 1;
                (at, seen) = (*again, *from);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Case, Glob, star};

    fn means(pattern: &str, path: &str) -> bool {
        let glob = Glob::parse(pattern).unwrap();
        glob.matches_text(path.strip_prefix('/').unwrap_or(path), Case::Matters)
    }

    #[test]
    fn a_star_stays_in_its_segment_and_two_cross_them() {
        assert!(means("/acme/*", "/acme/app") && !means("/acme/*", "/acme/app/x"));
        assert!(means("/acme/**", "/acme/app/x") && means("/acme/**", "/acme/"));
        assert!(!means("/acme/**", "/acme") && !means("/acme/**", "/acmex/a"));
        assert!(means("/**", "/") && means("/**", "/a/b") && means("/", "/") && !means("/", "/a"));
        assert!(means("/a/**/z", "/a/z") && means("/a/**/z", "/a/b/c/z"));
        assert!(!means("/a/**/z", "/a/z/b") && means("/**/z", "/z") && means("/**/b/**", "/a/b/b"));
        assert!(means("/v*/x", "/v1/x") && means("/*", "/") && !means("/*/x", "/x"));
        assert!(means("refs/heads/agent/*", "refs/heads/agent/a"));
        assert!(!means("refs/heads/agent/*", "refs/heads/agentx"));
    }

    #[test]
    fn case_is_ignored_only_where_that_is_asked() {
        let glob = Glob::parse("/Admin/*").unwrap();
        assert!(glob.matches_text("aDMIN/x", Case::Ignored));
        assert!(!glob.matches_text("admin/x", Case::Matters));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "", "/a//b", "/a/../b", "/./a", "/a**", "/%61", "/a\\b", "/a\nb",
        ] {
            assert!(Glob::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_hostile_pattern_is_answered_at_once() {
        let pattern = "*a".repeat(2000) + "b";
        assert!(!star(
            pattern.as_bytes(),
            "a".repeat(4000).as_bytes(),
            Case::Matters
        ));
        let deep = Glob::parse(&("/**/a".repeat(1000) + "/b")).unwrap();
        assert!(!deep.matches_text(&vec!["a"; 2000].join("/"), Case::Matters));
    }
}
