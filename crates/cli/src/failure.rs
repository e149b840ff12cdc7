//! What a command says when it fails, and with which exit code.
//!
//! An operation's own exit code is passed through, so ours are above what programs commonly use: 125 for everything that
//! failed before or beside the command, as `docker` and `env` do it; 124 for a timeout, 128+n for a signal, 123 for `lost`.

use std::process::ExitCode;

use protocol::ApiError;
use protocol::api::OpView;

/// Something failed that is not the operation.
pub(crate) const FAILED: u8 = 125;
/// The operation timed out, as `timeout` does it.
pub(crate) const TIMED_OUT: u8 = 124;
/// The operation's outcome is unknown.
pub(crate) const LOST: u8 = 123;
/// The operation was cancelled.
pub(crate) const CANCELLED: u8 = 130;

/// How errors are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One line for people, the hint in a second one.
    Text,
    /// One JSON object.
    Json,
}

/// Tells an error on stderr.
#[expect(
    clippy::print_stderr,
    reason = "this is where a command talks to its user"
)]
pub(crate) fn tell(error: &ApiError, form: Form) -> ExitCode {
    match form {
        Form::Text => {
            let hint = error
                .hint
                .as_ref()
                .map(|h| format!(" (hint: {h})"))
                .unwrap_or_default();
            eprintln!("error[{}]: {}{hint}", error.code.name(), error.message);
        }
        Form::Json => eprintln!("{}", serde_json::json!({ "error": error })),
    }
    ExitCode::from(FAILED)
}

/// Says something beside the answer.
#[expect(
    clippy::print_stderr,
    reason = "this is where a command talks to its user"
)]
pub(crate) fn note(text: &str) {
    eprintln!("durable: {text}");
}

/// Returns the exit code that stands for how an operation ended.
pub(crate) fn exit_of(view: &OpView) -> u8 {
    match view.outcome.as_deref() {
        Some("exited") => view.exit_code.unwrap_or(FAILED),
        Some("signaled") => 128_u8.wrapping_add(view.signal.unwrap_or(0)),
        Some("timed_out") => TIMED_OUT,
        Some("cancelled") => CANCELLED,
        _ => LOST,
    }
}
