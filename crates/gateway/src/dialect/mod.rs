//! What differs between the two model APIs that the gateway understands.

pub(crate) mod conversation;
pub(crate) mod resume;
pub(crate) mod stream;

use http::{HeaderMap, Method};

use crate::upstream::KeyHeader;

/// A model API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Anthropic Messages.
    Anthropic,
    /// OpenAI Chat Completions.
    OpenAi,
}

impl Dialect {
    /// Returns the dialect of a request that is a model's turn; `None` for all others (lists of models, token counts …).
    pub(crate) fn of_turn(method: &Method, path: &str) -> Option<Self> {
        if method != Method::POST {
            return None;
        }
        Self::of_path(path)
    }

    /// Returns the dialect whose turns are asked for at this path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or(path);
        if path.ends_with("/v1/messages") {
            Some(Self::Anthropic)
        } else if path.ends_with("/chat/completions") {
            Some(Self::OpenAi)
        } else {
            None
        }
    }

    /// Returns the dialect that a client of any other path speaks.
    pub(crate) fn of_client(path: &str, headers: &HeaderMap) -> Self {
        let anthropic = headers.contains_key("anthropic-version")
            || headers.contains_key("x-api-key")
            || path.contains("/v1/messages");
        if anthropic {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    pub(crate) fn key_header(self) -> KeyHeader {
        match self {
            Self::Anthropic => KeyHeader::ApiKey,
            Self::OpenAi => KeyHeader::Bearer,
        }
    }

    /// Returns an error in the shape that the dialect's clients read.
    pub(crate) fn error(self, kind: &str, message: &str) -> String {
        let inner = serde_json::json!({ "type": kind, "message": message });
        match self {
            Self::Anthropic => serde_json::json!({ "type": "error", "error": inner }),
            Self::OpenAi => serde_json::json!({ "error": inner }),
        }
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_told_by_method_and_path() {
        let of = |method, path| Dialect::of_turn(&method, path);
        let (anthropic, openai) = (Some(Dialect::Anthropic), Some(Dialect::OpenAi));
        assert_eq!(of(Method::POST, "/v1/messages?beta=true"), anthropic);
        assert_eq!(of(Method::POST, "/v1/chat/completions"), openai);
        assert_eq!(of(Method::POST, "/api/chat/completions?x=1"), openai);
        assert_eq!(
            of(Method::POST, "/v1/messages/count_tokens?beta=true"),
            None
        );
        assert_eq!(of(Method::POST, "/v1/messages/batches"), None);
        assert_eq!(of(Method::GET, "/v1/messages"), None);
        assert_eq!(of(Method::GET, "/v1/models"), None);
    }
}
