//! Asking again where the daemon was lost: for what may be asked twice.

use std::time::Duration;

use protocol::{ApiError, ErrorCode};

/// How long a command keeps looking for a daemon that was lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the daemon was lost in the middle of a request.
pub(crate) fn broken(error: &ApiError) -> bool {
    error.message.contains("connection to the daemon broke")
}

/// Asks, and asks again for a while where the daemon was lost in the middle. Only for what may be asked twice.
pub(crate) async fn retry_broken<T, F, Fut>(ask: F) -> Result<T, ApiError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, ApiError>>,
{
    match ask().await {
        Err(error) if broken(&error) => retry(ask).await,
        other => other,
    }
}

/// Asks again until the daemon is back; a daemon is started where none runs.
pub(crate) async fn retry<T, F, Fut>(ask: F) -> Result<T, ApiError>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, ApiError>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut wait = Duration::from_millis(10);
    loop {
        match ask().await {
            Err(error)
                if error.code == ErrorCode::Unavailable
                    && tokio::time::Instant::now() + wait < deadline =>
            {
                // The daemon is being started by somebody, or dies again: there is no event to wait for.
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(1));
            }
            other => return other,
        }
    }
}
