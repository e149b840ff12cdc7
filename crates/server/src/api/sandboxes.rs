//! Sandboxes: create, list, start, stop, remove; and how the daemon is.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::Engine;
use protocol::api::{CreateSandbox, Health, SandboxView};
use protocol::{ApiError, ErrorCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::to_its_end;
use crate::error::{Answer, Refused, parse};

/// Reads a JSON body; what is wrong with it is told in one sentence.
pub(crate) fn json<T: DeserializeOwned>(body: &Bytes) -> Answer<T> {
    serde_json::from_slice(body).map_err(|error| {
        Refused::from(
            ApiError::new(
                ErrorCode::Invalid,
                format!("the request's body is not usable: {error}"),
            )
            .hint("see /v1/openapi.json"),
        )
    })
}

/// Tells how the daemon is.
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health)))]
pub(crate) async fn health(State(engine): State<Arc<Engine>>) -> Json<Health> {
    Json(Health {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        pool: engine.shared().pool.kind().to_owned(),
        sandboxes: engine.count() as u64,
    })
}

/// Lists every sandbox by name.
#[utoipa::path(get, path = "/v1/sandboxes", responses((status = 200, body = Vec<SandboxView>)))]
pub(crate) async fn list(State(engine): State<Arc<Engine>>) -> Json<Vec<SandboxView>> {
    Json(engine.list().await)
}

/// Creates a sandbox; its first operation starts it.
#[utoipa::path(post, path = "/v1/sandboxes", request_body = CreateSandbox, responses(
    (status = 201, body = SandboxView), (status = 400, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn create(
    State(engine): State<Arc<Engine>>,
    body: Bytes,
) -> Answer<(StatusCode, Json<SandboxView>)> {
    let ask = json(&body)?;
    let created = to_its_end(async move { engine.create(ask).await?.view().await });
    Ok((StatusCode::CREATED, Json(created.await?)))
}

/// Shows a sandbox.
#[utoipa::path(get, path = "/v1/sandboxes/{name}", params(("name" = String, Path)), responses(
    (status = 200, body = SandboxView), (status = 404, body = ApiError)))]
pub(crate) async fn show(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<SandboxView>> {
    Ok(Json(engine.get(&parse(&name)?)?.view().await?))
}

/// Removes a sandbox: its processes, workspace, output and journal.
#[utoipa::path(delete, path = "/v1/sandboxes/{name}", params(("name" = String, Path)), responses(
    (status = 204), (status = 404, body = ApiError)))]
pub(crate) async fn remove(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    let name = parse(&name)?;
    to_its_end(async move { engine.remove(&name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts a sandbox's supervisor ahead of its first operation.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/start", params(("name" = String, Path)), responses(
    (status = 200, body = SandboxView), (status = 404, body = ApiError), (status = 503, body = ApiError)))]
pub(crate) async fn start(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<SandboxView>> {
    let handle = engine.get(&parse(&name)?)?;
    handle.start().await?;
    Ok(Json(handle.view().await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Grace {
    /// Milliseconds between SIGTERM and SIGKILL.
    #[serde(default = "grace")]
    pub(crate) grace_ms: u64,
}

fn grace() -> u64 {
    2000
}

/// Ends every process of a sandbox; open operations settle as cancelled. The workspace stays.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/stop", params(("name" = String, Path), Grace), responses(
    (status = 200, body = SandboxView), (status = 404, body = ApiError)))]
pub(crate) async fn stop(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    Query(grace): Query<Grace>,
) -> Answer<Json<SandboxView>> {
    let handle = engine.get(&parse(&name)?)?;
    handle.stop(grace.grace_ms).await?;
    Ok(Json(handle.view().await?))
}
