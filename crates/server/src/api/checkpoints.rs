//! Checkpoints, forks and rewinds of a sandbox.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use engine::{Bound, Engine, Force};
use futures_util::stream;
use protocol::ApiError;
use protocol::api::{CheckpointView, ForkSandbox, RewindSandbox, SandboxView, TakeCheckpoint};
use serde::Deserialize;

use super::sandboxes::{Grace, json};
use super::to_its_end;
use crate::body::{line, ndjson};
use crate::error::{Answer, parse};

/// Takes a checkpoint of the files as they are now; processes go on. The last one where nothing changed since.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/checkpoints", params(("name" = String, Path)),
    request_body = TakeCheckpoint, responses((status = 201, body = CheckpointView), (status = 400, body = ApiError),
    (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn take(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<(StatusCode, Json<CheckpointView>)> {
    let ask: TakeCheckpoint = json(&body)?;
    let view = engine.get(&parse(&name)?)?.checkpoint(ask.label).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// Lists the checkpoints of a sandbox, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/checkpoints", params(("name" = String, Path)), responses(
    (status = 200, body = Vec<CheckpointView>), (status = 404, body = ApiError)))]
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<CheckpointView>>> {
    Ok(Json(engine.get(&parse(&name)?)?.checkpoints().await?))
}

/// Gives a checkpoint a name; without one, takes the name off, so that it may be given back.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/checkpoints/{at}/label",
    params(("name" = String, Path), ("at" = String, Path, description = "Its id, label or place in the journal.")),
    request_body = TakeCheckpoint,
    responses((status = 204), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn label(
    State(engine): State<Arc<Engine>>,
    Path((name, at)): Path<(String, String)>,
    body: Bytes,
) -> Answer<StatusCode> {
    let ask: TakeCheckpoint = json(&body)?;
    engine.get(&parse(&name)?)?.label(at, ask.label).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Anyway {
    /// Also one with a label.
    #[serde(default)]
    force: bool,
}

/// Removes a checkpoint that nothing needs; its room is given back on return.
///
/// Refused for the one that the files go on from, for one in use, and for one with a label unless it is forced.
#[utoipa::path(delete, path = "/v1/sandboxes/{name}/checkpoints/{at}",
    params(("name" = String, Path), ("at" = String, Path, description = "Its id or label."), Anyway),
    responses((status = 204), (status = 404, body = ApiError), (status = 409, body = ApiError),
    (status = 503, body = ApiError)))]
pub(crate) async fn remove(
    State(engine): State<Arc<Engine>>,
    Path((name, at)): Path<(String, String)>,
    Query(anyway): Query<Anyway>,
) -> Answer<StatusCode> {
    let force = if anyway.force { Force::Yes } else { Force::No };
    engine
        .get(&parse(&name)?)?
        .drop_checkpoint(at, force)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes forks of a sandbox: all of them, or none.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/forks", params(("name" = String, Path)),
    request_body = ForkSandbox, responses((status = 201, body = Vec<SandboxView>), (status = 400, body = ApiError),
    (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn fork(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<(StatusCode, Json<Vec<SandboxView>>)> {
    let (name, ask) = (parse(&name)?, json(&body)?);
    let forks = to_its_end(async move { engine.fork(&name, ask).await });
    Ok((StatusCode::CREATED, Json(forks.await?)))
}

/// Makes forks that go when this answer ends, however that comes about: all of them, or none. A line for each, a
/// [`SandboxView`], then nothing more. Those that were kept or removed by then are left alone; a daemon that starts removes
/// those of the one before it.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/forks/bound", params(("name" = String, Path)),
    request_body = ForkSandbox, responses(
    (status = 201, content_type = "application/x-ndjson", body = SandboxView), (status = 400, body = ApiError),
    (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn fork_bound(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<(StatusCode, Response)> {
    let (name, ask) = (parse(&name)?, json(&body)?);
    // A client that goes away meanwhile takes them with it: nobody takes what this returns.
    let bound = to_its_end(async move { Bound::fork(engine, &name, ask).await }).await?;
    let mut lines = Vec::new();
    bound.views().for_each(|view| line(&mut lines, view));
    let state = (Some(lines), bound);
    let body = Body::from_stream(stream::unfold(state, async |(lines, bound)| match lines {
        Some(lines) => Some((Ok::<_, Infallible>(Bytes::from(lines)), (None, bound))),
        None => pending().await,
    }));
    Ok((StatusCode::CREATED, ndjson(body)))
}

/// Lets a fork stay that would go with the client that asked for it. Any other sandbox stays anyway.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/keep", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = ApiError)))]
pub(crate) async fn keep(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    engine.keep(&parse(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends every process and puts files and journal position back together. What came after stays readable.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/rewind", params(("name" = String, Path), Grace),
    request_body = RewindSandbox, responses((status = 200, body = SandboxView), (status = 404, body = ApiError)))]
pub(crate) async fn rewind(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    Query(grace): Query<Grace>,
    body: Bytes,
) -> Answer<Json<SandboxView>> {
    let ask: RewindSandbox = json(&body)?;
    let handle = engine.get(&parse(&name)?)?;
    handle.rewind(ask.to, grace.grace_ms).await?;
    Ok(Json(handle.view().await?))
}
