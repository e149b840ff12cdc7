//! Whether a GraphQL request only queries: its operations are read as the specification has it (October 2021, section 2), and
//! what is not understood is taken for a mutation.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::{Error, MapAccess, Visitor};

/// The longest document that is read; a longer one counts as a mutation.
const MAX_DOCUMENT: usize = 1 << 20;

/// Whether all requests of a JSON body, one or a batch, only query. The body must be whole.
pub(crate) fn json_reads(body: &[u8]) -> bool {
    if body.len() > MAX_DOCUMENT {
        return false;
    }
    let batch = body.trim_ascii_start().starts_with(b"[");
    let all: Vec<Posted> = match batch {
        true => serde_json::from_slice(body).unwrap_or_default(),
        false => serde_json::from_slice(body)
            .map(|one| vec![one])
            .unwrap_or_default(),
    };
    !all.is_empty() && all.iter().all(|one| reads(&one.query, one.name.as_deref()))
}

/// Whether a document posted as it is only queries.
pub(crate) fn document_reads(body: &[u8]) -> bool {
    let text = std::str::from_utf8(body)
        .ok()
        .filter(|text| text.len() <= MAX_DOCUMENT);
    text.is_some_and(|text| reads(text, None))
}

/// Whether the operation that is run is a query: the one of this name, or the only one.
fn reads(document: &str, name: Option<&str>) -> bool {
    let Some(operations) = operations(document) else {
        return false;
    };
    let mut names = BTreeSet::new();
    if !operations
        .iter()
        .all(|operation| names.insert(operation.name))
    {
        return false;
    }
    match name {
        None => matches!(operations.as_slice(), [only] if only.query),
        Some(name) => operations
            .iter()
            .any(|operation| operation.name == Some(name) && operation.query),
    }
}

/// `{"query": …, "operationName": …}`, and whatever else.
struct Posted {
    query: String,
    name: Option<String>,
}

impl<'de> Deserialize<'de> for Posted {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Posted;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a request of GraphQL")
    }

    /// Keys that are the same but for case are refused: one server takes the first, another the last.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Posted, A::Error> {
        let (mut query, mut name) = (None, None);
        let mut seen = BTreeSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.to_lowercase()) {
                return Err(A::Error::custom("a key that is there twice"));
            }
            match key.as_str() {
                "query" => query = Some(map.next_value()?),
                "operationName" => name = map.next_value()?,
                _ => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
        }
        let query = query.ok_or_else(|| A::Error::missing_field("query"))?;
        Ok(Posted { query, name })
    }
}

struct Operation<'a> {
    name: Option<&'a str>,
    query: bool,
}

/// Returns the operations of a document; none where it is no executable one.
fn operations(document: &str) -> Option<Vec<Operation<'_>>> {
    let mut tokens = Tokens {
        rest: document.strip_prefix('\u{feff}').unwrap_or(document),
    };
    let mut all = Vec::new();
    while let Some(token) = tokens.next()? {
        match token {
            Token::Open('{') => {
                tokens.skip_group('{')?;
                all.push(Operation {
                    name: None,
                    query: true,
                });
            }
            Token::Name("fragment") => tokens.skip_fragment()?,
            Token::Name(word @ ("query" | "mutation" | "subscription")) => {
                let name = tokens.skip_operation()?;
                all.push(Operation {
                    name,
                    query: word == "query",
                });
            }
            Token::Name(_) | Token::Open(_) | Token::Close(_) | Token::At | Token::Other => {
                return None;
            }
        }
    }
    Some(all)
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    Open(char),
    Close(char),
    At,
    Other,
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// Goes behind an operation whose keyword was read, and returns its name.
    fn skip_operation(&mut self) -> Option<Option<&'a str>> {
        let mut token = self.next()??;
        let mut name = None;
        if let Token::Name(text) = token {
            name = Some(text);
            token = self.next()??;
        }
        if token == Token::Open('(') {
            self.skip_group('(')?;
            token = self.next()??;
        }
        self.skip_selection(token)?;
        Some(name)
    }

    /// Goes behind a fragment whose keyword was read.
    fn skip_fragment(&mut self) -> Option<()> {
        match (self.next()??, self.next()??, self.next()??) {
            (Token::Name(name), Token::Name("on"), Token::Name(_)) if name != "on" => {
                let token = self.next()??;
                self.skip_selection(token)
            }
            _ => None,
        }
    }

    /// Goes behind directives and the selection set after them, the first token of which was read.
    fn skip_selection(&mut self, mut token: Token<'a>) -> Option<()> {
        while token == Token::At {
            let Token::Name(_) = self.next()?? else {
                return None;
            };
            token = self.next()??;
            if token == Token::Open('(') {
                self.skip_group('(')?;
                token = self.next()??;
            }
        }
        match token {
            Token::Open('{') => self.skip_group('{'),
            _ => None,
        }
    }

    /// Goes behind the bracket that closes the one that was read.
    fn skip_group(&mut self, open: char) -> Option<()> {
        let mut inside = vec![open];
        while let Some(last) = inside.last() {
            match (self.next()??, last) {
                (Token::Open(open), _) => inside.push(open),
                (Token::Close('}'), '{') | (Token::Close(')'), '(') | (Token::Close(']'), '[') => {
                    inside.pop();
                }
                (Token::Close(_), _) => return None,
                (Token::Name(_) | Token::At | Token::Other, _) => {}
            }
        }
        Some(())
    }

    /// Returns the next token; `Some(None)` at the end, and none where there is no token of GraphQL.
    fn next(&mut self) -> Option<Option<Token<'a>>> {
        self.skip_ignored();
        let Some(c) = self.rest.chars().next() else {
            return Some(None);
        };
        let (token, len) = match c {
            '{' | '(' | '[' => (Token::Open(c), 1),
            '}' | ')' | ']' => (Token::Close(c), 1),
            '@' => (Token::At, 1),
            '!' | '$' | '&' | ':' | '=' | '|' => (Token::Other, 1),
            '.' => (Token::Other, self.rest.starts_with("...").then_some(3)?),
            '"' => (Token::Other, string(self.rest)?),
            'a'..='z' | 'A'..='Z' | '_' => {
                let len = self.run(|b| b.is_ascii_alphanumeric() || b == b'_');
                (Token::Name(&self.rest[..len]), len)
            }
            '0'..='9' | '-' => {
                let digits =
                    |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'+' | b'-' | b'.');
                (Token::Other, self.run(digits))
            }
            _ => return None,
        };
        self.rest = &self.rest[len..];
        Some(Some(token))
    }

    fn skip_ignored(&mut self) {
        loop {
            self.rest = self
                .rest
                .trim_start_matches([' ', '\t', '\n', '\r', ',', '\u{feff}']);
            let Some(comment) = self.rest.strip_prefix('#') else {
                return;
            };
            self.rest = &comment[comment.find(['\n', '\r']).unwrap_or(comment.len())..];
        }
    }

    fn run(&self, belongs: impl Fn(u8) -> bool) -> usize {
        let end = self.rest.bytes().position(|byte| !belongs(byte));
        end.unwrap_or(self.rest.len())
    }
}

/// Returns how long the string at the begin of a text is, its quotes included.
fn string(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    if bytes.starts_with(b"\"\"\"") {
        let mut at = 3;
        loop {
            match &bytes[at..] {
                [b'\\', b'"', b'"', b'"', ..] => at += 4,
                [b'"', b'"', b'"', ..] => return Some(at + 3),
                [_, ..] => at += 1,
                [] => return None,
            }
        }
    }
    let mut at = 1;
    loop {
        match &bytes[at..] {
            [b'"', ..] => return Some(at + 1),
            [b'\n' | b'\r', ..] | [] => return None,
            [
                b'\\',
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u',
                ..,
            ] => at += 2,
            [b'\\', ..] => return None,
            [_, ..] => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{document_reads, json_reads, reads};

    #[test]
    fn queries_read_and_nothing_else_does() {
        for text in [
            "{ a }",
            "query { a }",
            "query Q($a: [In!] = [{x: \"}\", y: {z: 1}}]) @d(if: true) { a(b: -1.5e3) { ...F } } fragment F on T @d { b }",
            "# mutation { x }\nquery Q { a } # {",
            "\u{feff}query Q { a(text: \"mutation { x }\") }",
            "query { a(text: \"\"\"} \\\"\"\" mutation { x \"\"\") }",
            "query mutation { mutation }",
            "{ a(s: \"\\u0022\\\"\") }",
        ] {
            assert!(reads(text, None), "{text}");
        }
        for text in [
            "",
            "mutation { x }",
            "mutation M { x }",
            "subscription { x }",
            "query { a } mutation M { x }",
            "fragment F on T { b }",
            "{ a",
            "{ a }}",
            "{ a ) }",
            "query Q",
            "query { a(text: \"\n\") }",
            "query { a(text: \"\"\" ) }",
            "type T { a: Int }",
            "{ a } \u{a0}",
            "query Q mutation M { x }",
            "query Q @d mutation M { x }",
            "query Q ($a: I) M { x }",
            "fragment on on T { b } { a }",
            "# query\rmutation { x }",
            "query A { a } query B { b }",
            "\"\"\"d\"\"\" query { a }",
        ] {
            assert!(!reads(text, None), "{text}");
        }
    }

    #[test]
    fn of_many_operations_the_named_one_counts() {
        let two = "query A { a } mutation B { b }";
        assert!(reads(two, Some("A")) && !reads(two, Some("B")) && !reads(two, Some("C")));
        assert!(!reads("query A { a } mutation A { b }", Some("A")));
        assert!(!reads("{ a }", Some("")));
    }

    #[test]
    fn a_body_reads_if_all_of_it_does() {
        let reads = |body: &str| json_reads(body.as_bytes());
        assert!(reads(
            r#"{"query": "{ a }", "variables": {"query": "mutation { x }"}, "operationName": null}"#
        ));
        assert!(reads(
            r#"{"query": "query \u0041 { a }", "operationName": "A"}"#
        ));
        assert!(reads(r#" [{"query": "{ a }"}, {"query": "{ b }"}]"#));
        for body in [
            "",
            "[]",
            "{}",
            r#"{"query": "{ a }""#,
            r#"{"query": "\u006dutation { x }"}"#,
            r#"{"query": "{ a }", "query": "mutation { x }"}"#,
            r#"{"query": "{ a }", "Query": "mutation { x }"}"#,
            r#"[{"query": "{ a }"}, {"query": "mutation { x }"}]"#,
            r#"{"extensions": {"persistedQuery": {"sha256Hash": "00"}}}"#,
            r#"{"query": null}"#,
            r#"{"query": "{ a }"} {"query": "mutation { x }"}"#,
        ] {
            assert!(!reads(body), "{body}");
        }
        assert!(
            document_reads(b"{ a }")
                && !document_reads(b"mutation { x }")
                && !document_reads(b"{ \xff }")
        );
    }
}
