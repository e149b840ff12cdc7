//! Sandboxes to and from blob stores.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use engine::Engine;
use protocol::ApiError;
use protocol::api::{PullSandbox, PushSandbox, PushView, SandboxView};

use super::sandboxes::json;
use super::to_its_end;
use crate::error::{Answer, parse};

/// Puts a sandbox into a blob store: its files as they are now, its journal and the output of its operations.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/push", params(("name" = String, Path)),
    request_body = PushSandbox, responses((status = 200, body = PushView), (status = 400, body = ApiError),
    (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn push(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<PushView>> {
    Ok(Json(engine.push(&parse(&name)?, json(&body)?).await?))
}

/// Brings a sandbox out of a blob store. It goes on here; what was running when it was pushed is lost.
#[utoipa::path(post, path = "/v1/pull", request_body = PullSandbox, responses((status = 201, body = SandboxView),
    (status = 400, body = ApiError), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn pull(
    State(engine): State<Arc<Engine>>,
    body: Bytes,
) -> Answer<(StatusCode, Json<SandboxView>)> {
    let ask = json(&body)?;
    let pulled = to_its_end(async move { engine.pull(ask).await?.view().await });
    Ok((StatusCode::CREATED, Json(pulled.await?)))
}
