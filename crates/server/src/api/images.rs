//! Images: list, pull, remove.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use engine::Engine;
use protocol::ApiError;
use protocol::api::{ImageView, PullImage};
use serde::Deserialize;

use super::sandboxes::json;
use crate::error::Answer;

/// Lists the images that are here, those used last first.
#[utoipa::path(get, path = "/v1/images", responses((status = 200, body = Vec<ImageView>)))]
pub(crate) async fn list(State(engine): State<Arc<Engine>>) -> Answer<Json<Vec<ImageView>>> {
    Ok(Json(engine.images().await?))
}

/// Pulls an image anew; answers when it is unpacked.
#[utoipa::path(post, path = "/v1/images", request_body = PullImage, responses(
    (status = 200, body = ImageView), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn pull(
    State(engine): State<Arc<Engine>>,
    body: Bytes,
) -> Answer<Json<ImageView>> {
    let ask: PullImage = json(&body)?;
    Ok(Json(engine.pull_image(&ask.image).await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Its digest, or the name that it was pulled under.
    image: String,
}

/// Removes an image that no sandbox stands on.
#[utoipa::path(delete, path = "/v1/images", params(Which), responses(
    (status = 204), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn remove(
    State(engine): State<Arc<Engine>>,
    Query(which): Query<Which>,
) -> Answer<StatusCode> {
    engine.remove_image(&which.image).await?;
    Ok(StatusCode::NO_CONTENT)
}
