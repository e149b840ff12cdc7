//! Whether a request only reads. What is not known to read writes: a wrong `Write` costs a question, a wrong `Read` a second
//! payment.

use protocol::EffectKind;

use crate::graphql;

/// Headers with which a client asks for another method than it says.
const OVERRIDES: [&str; 3] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
];

/// Says whether a request only reads.
///
/// `body` is as much of its body as is known, from its begin; none where it has none. Reading are `GET`, `HEAD` and `OPTIONS`
/// without a body, what a git fetch posts, and queries of GraphQL whose whole body is known. Everything else may write: a
/// `GET` with a body, an upgrade, a publish, gRPC, a multipart form.
#[must_use]
pub fn kind<'a>(
    method: &str,
    path: &str,
    headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    body: Option<&[u8]>,
) -> EffectKind {
    let mut content = Content::None;
    let mut has_body = body.is_some_and(|body| !body.is_empty());
    for (name, value) in headers {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if is("upgrade") || OVERRIDES.into_iter().any(is) {
            return EffectKind::Write;
        }
        has_body |= is("transfer-encoding") || is("content-length") && value != b"0";
        if is("content-type") {
            content = content.and(value);
        }
        if is("content-encoding") {
            content = Content::Other;
        }
    }
    let reads = match method {
        "GET" | "HEAD" | "OPTIONS" => !has_body && !asks_graphql(path),
        "POST" => match content {
            Content::GitFetch => path.ends_with("/git-upload-pack"),
            Content::Json => is_graphql(path) && body.is_some_and(graphql::json_reads),
            Content::GraphQl => is_graphql(path) && body.is_some_and(graphql::document_reads),
            Content::None | Content::Other => false,
        },
        _ => false,
    };
    match reads {
        true => EffectKind::Read,
        false => EffectKind::Write,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Content {
    None,
    GitFetch,
    Json,
    GraphQl,
    Other,
}

impl Content {
    /// With one more `content-type`: two that differ are none.
    fn and(self, value: &[u8]) -> Self {
        let essence = value
            .split(|&byte| byte == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let is = |text: &str| essence.eq_ignore_ascii_case(text.as_bytes());
        let found = if is("application/x-git-upload-pack-request") {
            Self::GitFetch
        } else if is("application/json") || is("application/graphql+json") {
            Self::Json
        } else if is("application/graphql") {
            Self::GraphQl
        } else {
            Self::Other
        };
        match self {
            Self::None => found,
            same if same == found => same,
            _ => Self::Other,
        }
    }
}

/// Whether what is posted here is GraphQL, by the name that everybody gives it. A query in the URL would count beside the body.
fn is_graphql(path: &str) -> bool {
    path == "/graphql" || path.ends_with("/graphql")
}

/// A `GET` of GraphQL has its document in the URL, which is not looked into.
fn asks_graphql(path: &str) -> bool {
    path.split_once('?')
        .is_some_and(|(path, _)| is_graphql(path))
}
