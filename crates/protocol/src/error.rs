//! An error at the edge: few kinds, each telling the caller what to do.

use serde::{Deserialize, Serialize};

/// What the caller must do. Stable, and the same in the API, the CLI and the SDKs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is wrong; change it.
    Invalid,
    /// The thing named does not exist.
    NotFound,
    /// The thing exists and is something else; pick another name or id.
    Conflict,
    /// Somebody else holds the right to write; ask there.
    Fenced,
    /// Not now; the same request may work later.
    Unavailable,
    /// Not allowed.
    Denied,
    /// Stored data is damaged; nothing goes on until a person has looked.
    Corrupt,
    /// Our fault.
    Internal,
}

impl ErrorCode {
    /// Returns its name as it stands in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Corrupt => "corrupt",
            Self::Internal => "internal",
        }
    }

    /// Returns the HTTP status it travels under.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::NotFound => 404,
            Self::Conflict | Self::Fenced => 409,
            Self::Unavailable => 503,
            Self::Denied => 403,
            Self::Corrupt | Self::Internal => 500,
        }
    }
}

/// An error as a client sees it.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema,
)]
#[error("{message}")]
pub struct ApiError {
    /// What the caller must do.
    pub code: ErrorCode,
    /// What failed on what, one sentence in lower case.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    /// Makes an error without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
