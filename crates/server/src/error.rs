//! Errors as HTTP answers: the status says what to do, the body is an [`ApiError`].

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use protocol::{ApiError, ErrorCode};

/// An answer that is an error.
pub(crate) struct Refused(pub(crate) ApiError, Option<StatusCode>);

impl Refused {
    /// A condition of the request's own does not hold.
    pub(crate) fn unmet(error: ApiError) -> Self {
        Self(error, Some(StatusCode::PRECONDITION_FAILED))
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self(error, None)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = self.1.unwrap_or_else(|| {
            StatusCode::from_u16(self.0.code.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
        });
        (status, Json(self.0)).into_response()
    }
}

/// What a handler returns.
pub(crate) type Answer<T> = Result<T, Refused>;

/// Reads an id out of a path; a bad one is the caller's error, in words.
pub(crate) fn parse<T: std::str::FromStr<Err = protocol::IdError>>(text: &str) -> Answer<T> {
    text.parse().map_err(|error: protocol::IdError| {
        Refused::from(ApiError::new(ErrorCode::Invalid, error.to_string()).hint(
            "names: lower-case letters, digits, `-`, `_`, `.`; ids: letters, digits and `_ . : ~ | = + @ , -`",
        ))
    })
}
