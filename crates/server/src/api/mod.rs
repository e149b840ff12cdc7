//! The routes, one file per noun.

pub(crate) mod checkpoints;
pub(crate) mod egress;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod journal;
pub(crate) mod ops;
pub(crate) mod remote;
pub(crate) mod sandboxes;
pub(crate) mod sessions;
pub(crate) mod trees;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{delete, get, post, put};
use engine::Engine;
use protocol::{ApiError, ErrorCode};

use crate::error::Refused;

/// The longest request body: a piece of input, or a command with a large environment.
const MAX_BODY: usize = 64 << 20;

pub(crate) fn router() -> Router<Arc<Engine>> {
    Router::new()
        .route("/v1/health", get(sandboxes::health))
        .route("/v1/openapi.json", get(crate::openapi::serve))
        .route(
            "/v1/sandboxes",
            get(sandboxes::list).post(sandboxes::create),
        )
        .route(
            "/v1/sandboxes/{name}",
            get(sandboxes::show).delete(sandboxes::remove),
        )
        .route("/v1/sandboxes/{name}/start", post(sandboxes::start))
        .route("/v1/sandboxes/{name}/stop", post(sandboxes::stop))
        .route(
            "/v1/sandboxes/{name}/checkpoints",
            get(checkpoints::list).post(checkpoints::take),
        )
        .route(
            "/v1/sandboxes/{name}/checkpoints/{at}",
            delete(checkpoints::remove),
        )
        .route(
            "/v1/sandboxes/{name}/checkpoints/{at}/label",
            put(checkpoints::label),
        )
        .route("/v1/sandboxes/{name}/forks", post(checkpoints::fork))
        .route(
            "/v1/sandboxes/{name}/forks/bound",
            post(checkpoints::fork_bound),
        )
        .route("/v1/sandboxes/{name}/keep", post(checkpoints::keep))
        .route(
            "/v1/sandboxes/{name}/policy",
            get(egress::policy).put(egress::set_policy),
        )
        .route("/v1/sandboxes/{name}/policy/check", post(egress::check))
        .route("/v1/sandboxes/{name}/denials", get(egress::denials))
        .route("/v1/sandboxes/{name}/effects", get(egress::effects))
        .route("/v1/sandboxes/{name}/approvals", get(egress::approvals))
        .route(
            "/v1/sandboxes/{name}/approvals/{approval}",
            put(egress::decide),
        )
        .route("/v1/secrets", get(egress::secrets))
        .route(
            "/v1/secrets/{name}",
            put(egress::set_secret).delete(egress::remove_secret),
        )
        .route(
            "/v1/images",
            get(images::list).post(images::pull).delete(images::remove),
        )
        .route("/v1/diff", get(trees::diff))
        .route("/v1/sandboxes/{name}/compose", post(trees::compose))
        .route("/v1/sandboxes/{name}/blame", get(trees::blame))
        .route("/v1/sandboxes/{name}/rewind", post(checkpoints::rewind))
        .route("/v1/sandboxes/{name}/push", post(remote::push))
        .route("/v1/pull", post(remote::pull))
        .route("/v1/sandboxes/{name}/journal", get(journal::read))
        .route("/v1/sandboxes/{name}/ops", get(ops::list))
        .route(
            "/v1/sandboxes/{name}/ops/{op}",
            get(ops::show).put(ops::exec),
        )
        .route("/v1/sandboxes/{name}/ops/{op}/frames", get(ops::frames))
        .route(
            "/v1/sandboxes/{name}/ops/{op}/output/{stream}",
            get(ops::output),
        )
        .route(
            "/v1/sandboxes/{name}/ops/{op}/stdin",
            get(ops::stdin_taken).put(ops::stdin),
        )
        .route("/v1/sandboxes/{name}/ops/{op}/signal", post(ops::signal))
        .route("/v1/sandboxes/{name}/ops/{op}/cancel", post(ops::cancel))
        .route("/v1/sandboxes/{name}/ops/{op}/resize", post(ops::resize))
        .route(
            "/v1/sandboxes/{name}/sessions",
            get(sessions::list).post(sessions::start),
        )
        .route(
            "/v1/sandboxes/{name}/sessions/{session}",
            get(sessions::show),
        )
        .route(
            "/v1/sandboxes/{name}/files",
            get(files::read::content)
                .put(files::write::put)
                .delete(files::write::remove),
        )
        .route("/v1/sandboxes/{name}/files/stat", get(files::read::stat))
        .route("/v1/sandboxes/{name}/files/list", get(files::read::list))
        .route("/v1/sandboxes/{name}/files/watch", get(files::read::watch))
        .route(
            "/v1/sandboxes/{name}/files/tree",
            get(files::read::tree).put(files::write::unpack),
        )
        .route(
            "/v1/sandboxes/{name}/files/mkdir",
            post(files::write::mkdir),
        )
        .route(
            "/v1/sandboxes/{name}/files/rename",
            post(files::write::rename),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// Goes on although the client has gone: what was begun is brought to its end.
pub(crate) async fn to_its_end<T, E>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Refused>
where
    T: Send + 'static,
    E: Into<Refused> + Send + 'static,
{
    let done = tokio::spawn(work).await;
    let done = done.map_err(|e| ApiError::new(ErrorCode::Internal, e.to_string()))?;
    done.map_err(Into::into)
}
