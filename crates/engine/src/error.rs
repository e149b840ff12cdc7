//! Errors of the parts below, as the caller of the API must hear them.

use protocol::{ApiError, ErrorCode, OpId, SandboxName};

/// Joins an error with its causes in one line. Some crates say their cause in their own text; it is told once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let line = |error: &dyn std::error::Error| {
        let text = error.to_string();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut text = line(error);
    let mut cause = error.source();
    while let Some(inner) = cause {
        let told = line(inner);
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = inner.source();
    }
    text
}

pub(crate) fn of_journal(error: &journal::Error) -> ApiError {
    let hint = match error {
        journal::Error::NameTaken { .. } => {
            Some("pick another name, or `durable rm` the one that has it")
        }
        journal::Error::Fenced { .. } => Some("another daemon owns this sandbox; ask there"),
        journal::Error::NoSpace => {
            Some("free space on the disk of the data directory, then do it again")
        }
        journal::Error::Failed(_) => {
            Some("free space or repair the disk, then start the daemon again")
        }
        journal::Error::Damaged { .. } => Some("`durable log NAME` shows what can still be read"),
        _ => None,
    };
    let api = ApiError::new(error.code(), chain(error));
    match hint {
        Some(hint) => api.hint(hint),
        None => api,
    }
}

pub(crate) fn of_pool(error: &workspace::Error) -> ApiError {
    let api = ApiError::new(error.code(), chain(error));
    match error.hint() {
        Some(hint) => api.hint(hint),
        None => api,
    }
}

pub(crate) fn of_level(error: &isolation::Error) -> ApiError {
    let code = match error {
        isolation::Error::Image { .. } | isolation::Error::Limit { .. } => ErrorCode::Invalid,
        isolation::Error::Step { .. }
        | isolation::Error::Inside { .. }
        | isolation::Error::Unsupported { .. } => ErrorCode::Unavailable,
    };
    let api = ApiError::new(code, chain(error));
    match error.remedy() {
        Some(hint) if !hint.is_empty() => api.hint(hint),
        _ => api.hint("`durable doctor` tells what this machine can do"),
    }
}

pub(crate) fn internal(what: &str, error: &dyn std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::Internal, format!("{what}: {}", chain(error)))
}

pub(crate) fn gone(name: &SandboxName) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("sandbox `{name}` does not exist"),
    )
    .hint("`durable ps` lists the ones that do")
}

pub(crate) fn no_op(name: &SandboxName, op: &OpId) -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        format!("sandbox `{name}` has no operation `{op}`"),
    )
    .hint(format!("`durable ps {name}` lists its operations"))
}

pub(crate) fn other_command(name: &SandboxName, op: &OpId) -> ApiError {
    ApiError::new(
        ErrorCode::Conflict,
        format!("operation `{op}` in sandbox `{name}` was started with another command"),
    )
    .hint(format!(
        "pick a new id, or run `durable op {name} {op}` to see the first one"
    ))
}
