//! What may leave a sandbox, what did, and what waits for a person's word.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::Engine;
use protocol::egress::{
    ApprovalView, CheckRequest, DecideApproval, DenialView, EffectView, PolicyText, PolicyView,
    SecretView,
};
use protocol::{ApiError, OpId};
use serde::Deserialize;

use super::sandboxes::json;
use super::to_its_end;
use crate::error::{Answer, parse};

/// Returns the policy in force.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/policy", params(("name" = String, Path)),
    responses((status = 200, body = PolicyView), (status = 404, body = ApiError)))]
pub(crate) async fn policy(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<PolicyView>> {
    Ok(Json(engine.get(&parse(&name)?)?.policy().await?))
}

/// Puts another policy in force, at once.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/policy", params(("name" = String, Path)), request_body = PolicyText,
    responses((status = 200, body = PolicyView), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn set_policy(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<PolicyView>> {
    let ask: PolicyText = json(&body)?;
    let handle = engine.get(&parse(&name)?)?;
    let set = to_its_end(async move { handle.set_policy(ask).await });
    Ok(Json(set.await?))
}

/// Says what the policy in force makes of a request, rule by rule, without making it.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/policy/check", params(("name" = String, Path)), request_body = CheckRequest,
    responses((status = 200, body = Object), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn check(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<policy::Explanation>> {
    let ask: CheckRequest = json(&body)?;
    Ok(Json(engine.get(&parse(&name)?)?.check_policy(&ask)))
}

/// Lists what was to leave and did not, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/denials", params(("name" = String, Path)),
    responses((status = 200, body = Vec<DenialView>), (status = 404, body = ApiError)))]
pub(crate) async fn denials(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<DenialView>>> {
    Ok(Json(engine.get(&parse(&name)?)?.denials().await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfOp {
    /// Only those of this operation.
    op: Option<String>,
}

/// Lists the requests that left, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/effects", params(("name" = String, Path), OfOp),
    responses((status = 200, body = Vec<EffectView>), (status = 404, body = ApiError)))]
pub(crate) async fn effects(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    Query(of): Query<OfOp>,
) -> Answer<Json<Vec<EffectView>>> {
    let op: Option<OpId> = of.op.as_deref().map(parse).transpose()?;
    Ok(Json(
        engine.get(&parse(&name)?)?.effects(op.as_ref()).await?,
    ))
}

/// Lists the requests that wait for a person's word, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/approvals", params(("name" = String, Path)),
    responses((status = 200, body = Vec<ApprovalView>), (status = 404, body = ApiError)))]
pub(crate) async fn approvals(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<ApprovalView>>> {
    Ok(Json(engine.get(&parse(&name)?)?.approvals().await?))
}

/// Gives the word for one: it leaves, or is refused. The word is kept for the same request where none waits now.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/approvals/{approval}",
    params(("name" = String, Path), ("approval" = String, Path)), request_body = DecideApproval,
    responses((status = 204), (status = 404, body = ApiError)))]
pub(crate) async fn decide(
    State(engine): State<Arc<Engine>>,
    Path((name, approval)): Path<(String, String)>,
    body: Bytes,
) -> Answer<StatusCode> {
    let word: DecideApproval = json(&body)?;
    let (handle, approval) = (engine.get(&parse(&name)?)?, parse(&approval)?);
    to_its_end(async move { handle.decide(approval, word).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the secrets of the daemon's own store: names, never values.
#[utoipa::path(get, path = "/v1/secrets", responses((status = 200, body = Vec<SecretView>)))]
pub(crate) async fn secrets(State(engine): State<Arc<Engine>>) -> Answer<Json<Vec<SecretView>>> {
    Ok(Json(engine.secrets().await?))
}

/// Keeps a secret, or gives it another value, which the next request uses. The body is the value itself.
#[utoipa::path(put, path = "/v1/secrets/{name}", params(("name" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = SecretView), (status = 400, body = ApiError)))]
pub(crate) async fn set_secret(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<SecretView>> {
    let value = secret::Value::new(body.to_vec());
    let set = to_its_end(async move { engine.set_secret(name, value).await });
    Ok(Json(set.await?))
}

/// Takes a secret out: no request gets it from now on.
#[utoipa::path(delete, path = "/v1/secrets/{name}", params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = ApiError)))]
pub(crate) async fn remove_secret(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    to_its_end(async move { engine.remove_secret(name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
