//! What a request about files names: paths of any bytes, and how.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::Uri;
use axum::http::request::Parts;
use engine::{Engine, Files, Refusal};
use protocol::files::Name;
use protocol::{ApiError, ErrorCode};

use crate::error::{Refused, parse};

/// What every request about files says: whose they are, at which path, and with whose rights.
pub(crate) struct Asked {
    /// The sandbox's files as the request's user sees them.
    pub(super) files: Files,
    pub(super) path: Name,
    pub(super) query: Query,
}

impl FromRequestParts<Arc<Engine>> for Asked {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, engine: &Arc<Engine>) -> Result<Self, Refused> {
        let name = Path::<String>::from_request_parts(parts, engine).await;
        let Path(name) = name.map_err(|e| invalid(e.to_string()))?;
        let query = Query::of(&parts.uri);
        let user = query.text("user")?.map(str::to_owned);
        let files = engine.get(&parse(&name)?)?.files(user).await?;
        let path = query.path(&files, "path")?;
        Ok(Self { files, path, query })
    }
}

/// The query, by hand: the usual readers lose bytes that are no UTF-8.
pub(super) struct Query(Vec<(Vec<u8>, Vec<u8>)>);

impl Query {
    fn of(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key), decoded(value))
        });
        Self(pairs.collect())
    }

    fn bytes(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(name, _)| name == key.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ApiError> {
        let Some(bytes) = self.bytes(key) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(bytes);
        text.map(Some)
            .map_err(|_| invalid(format!("`{key}` is no UTF-8")))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        self.flag_or(key, false)
    }

    pub(super) fn flag_or(&self, key: &str, usual: bool) -> Result<bool, ApiError> {
        match self.text(key)? {
            None => Ok(usual),
            Some("" | "true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(_) => Err(invalid(format!("`{key}` is `true` or `false`"))),
        }
    }

    /// Permission bits, as `chmod` takes them.
    pub(super) fn mode(&self) -> Result<Option<u32>, ApiError> {
        let Some(text) = self.text("mode")? else {
            return Ok(None);
        };
        let mode = u32::from_str_radix(text, 8).ok();
        mode.filter(|mode| *mode <= 0o7777)
            .map(Some)
            .ok_or_else(|| invalid("`mode` is octal, such as 644".to_owned()))
    }

    /// `UID:GID`.
    pub(super) fn owner(&self) -> Result<Option<(u32, u32)>, ApiError> {
        let Some(text) = self.text("owner")? else {
            return Ok(None);
        };
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        text.split_once(':')
            .and_then(|(uid, gid)| Some((number(uid)?, number(gid)?)))
            .map(Some)
            .ok_or_else(|| invalid("`owner` is UID:GID, in numbers".to_owned()))
    }

    pub(super) fn path(&self, files: &Files, key: &str) -> Result<Name, ApiError> {
        let path = self.bytes(key);
        let path = path.ok_or_else(|| invalid(format!("the request names no `{key}`")))?;
        files.path(path)
    }
}

fn invalid(words: String) -> ApiError {
    ApiError::new(ErrorCode::Invalid, words)
}

/// As forms encode it: `%NN` is a byte, `+` a space. What is no escape stays as it is.
fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escape = bytes
            .get(at + 1..at + 3)
            .filter(|_| *byte == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escape {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if *byte == b'+' { b' ' } else { *byte });
                at += 1;
            }
        }
    }
    out
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        if refusal.unmet {
            return Self::unmet(refusal.error);
        }
        refusal.error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_come_through_a_query() {
        let uri: Uri = "/x?path=%2Fa+b%FF%0a%2B%zz%4&user=&deep".parse().unwrap();
        let query = Query::of(&uri);
        assert_eq!(query.bytes("path"), Some(&b"/a b\xff\n+%zz%4"[..]));
        assert_eq!(query.text("user").unwrap(), Some(""));
        assert!(query.flag("deep").unwrap());
        assert!(!query.flag("other").unwrap());
        assert!(query.text("path").is_err());
    }
}
