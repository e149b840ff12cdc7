//! Harness sessions.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::Engine;
use protocol::ApiError;
use protocol::api::{SessionView, StartSession};
use serde::Deserialize;

use super::sandboxes::json;
use crate::error::{Answer, parse};

/// Lists a sandbox's sessions.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/sessions", params(("name" = String, Path)), responses(
    (status = 200, body = Vec<SessionView>), (status = 404, body = ApiError)))]
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<SessionView>>> {
    Ok(Json(engine.get(&parse(&name)?)?.sessions().await?))
}

/// Starts a harness that is kept running until it ends by itself.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/sessions", request_body = StartSession,
    params(("name" = String, Path)), responses(
    (status = 201, body = SessionView), (status = 400, body = ApiError), (status = 404, body = ApiError),
    (status = 409, body = ApiError)))]
pub(crate) async fn start(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<(StatusCode, Json<SessionView>)> {
    let ask: StartSession = json(&body)?;
    let view = engine.start_session(&parse(&name)?, ask).await?;
    Ok((StatusCode::CREATED, Json(view)))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct After {
    /// Wait up to 30 s for an attempt later than this one, or the session's end.
    after: Option<u32>,
}

/// Shows a session.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/sessions/{session}",
    params(("name" = String, Path), ("session" = String, Path), After), responses(
    (status = 200, body = SessionView), (status = 404, body = ApiError)))]
pub(crate) async fn show(
    State(engine): State<Arc<Engine>>,
    Path((name, session)): Path<(String, String)>,
    Query(after): Query<After>,
) -> Answer<Json<SessionView>> {
    Ok(Json(
        engine
            .session(&parse(&name)?, &parse(&session)?, after.after)
            .await?,
    ))
}
