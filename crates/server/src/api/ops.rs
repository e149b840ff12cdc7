//! Operations: start or attach, follow, feed, end.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use engine::Engine;
use protocol::api::{OpView, StdinView};
use protocol::{ApiError, ErrorCode, Offset, OpId, OpSpec, Origin, Stream, TtySize};
use serde::Deserialize;

use super::sandboxes::{Grace, json};
use crate::error::{Answer, parse};
use crate::follow;

/// Lists a sandbox's operations, oldest first; without the commands of settled ones.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/ops", params(("name" = String, Path)), responses(
    (status = 200, body = Vec<OpView>), (status = 404, body = ApiError)))]
pub(crate) async fn list(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
) -> Answer<Json<Vec<OpView>>> {
    Ok(Json(engine.get(&parse(&name)?)?.ops().await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Follow {
    /// Answer with frames until the settlement instead of one object.
    #[serde(default)]
    frames: bool,
    /// The first byte of stdout wanted.
    #[serde(default)]
    stdout: u64,
    /// The first byte of stderr wanted.
    #[serde(default)]
    stderr: u64,
}

/// Starts an operation, or attaches to the one that has the id. Returns when its intent is durable.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/ops/{op}", request_body = OpSpec,
    params(("name" = String, Path), ("op" = String, Path), Follow), responses(
    (status = 200, body = OpView), (status = 400, body = ApiError), (status = 404, body = ApiError),
    (status = 409, body = ApiError), (status = 503, body = ApiError)))]
pub(crate) async fn exec(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(how): Query<Follow>,
    body: Bytes,
) -> Answer<Response> {
    let handle = engine.get(&parse(&name)?)?;
    let op: OpId = parse(&op)?;
    let spec: OpSpec = json(&body)?;
    let attached = handle.exec(op, spec, Origin::Api).await?;
    if how.frames {
        return Ok(framed(follow::framed(attached, how.stdout, how.stderr)));
    }
    Ok(Json(attached.view).into_response())
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wait {
    /// Answer when it has settled.
    #[serde(default)]
    wait: bool,
}

/// Shows an operation.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/ops/{op}",
    params(("name" = String, Path), ("op" = String, Path), Wait), responses(
    (status = 200, body = OpView), (status = 404, body = ApiError)))]
pub(crate) async fn show(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(how): Query<Wait>,
) -> Answer<Json<OpView>> {
    let handle = engine.get(&parse(&name)?)?;
    let op: OpId = parse(&op)?;
    let mut attached = handle.attach(op.clone()).await?;
    if how.wait && attached.view.outcome.is_none() {
        attached.settled().await?;
        attached = handle.attach(op).await?;
    }
    Ok(Json(attached.view))
}

/// Follows both streams to the settlement, framed.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/ops/{op}/frames",
    params(("name" = String, Path), ("op" = String, Path), Follow), responses(
    (status = 200, content_type = "application/vnd.durable.frames"), (status = 404, body = ApiError)))]
pub(crate) async fn frames(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(how): Query<Follow>,
) -> Answer<Response> {
    let attached = engine.get(&parse(&name)?)?.attach(parse(&op)?).await?;
    Ok(framed(follow::framed(attached, how.stdout, how.stderr)))
}

fn framed(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/vnd.durable.frames")], body).into_response()
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Output {
    /// The first byte wanted.
    #[serde(default)]
    from: u64,
    /// Go on until the settlement.
    #[serde(default)]
    follow: bool,
}

/// Reads one stream's exact bytes.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/ops/{op}/output/{stream}",
    params(("name" = String, Path), ("op" = String, Path), ("stream" = Stream, Path), Output), responses(
    (status = 200, content_type = "application/octet-stream"), (status = 404, body = ApiError)))]
pub(crate) async fn output(
    State(engine): State<Arc<Engine>>,
    Path((name, op, stream)): Path<(String, String, String)>,
    Query(how): Query<Output>,
) -> Answer<Response> {
    let stream = match stream.as_str() {
        "stdout" => Stream::Stdout,
        "stderr" => Stream::Stderr,
        other => {
            let unknown =
                ApiError::new(ErrorCode::Invalid, format!("there is no stream `{other}`"));
            return Err(unknown.hint("use `stdout` or `stderr`").into());
        }
    };
    let attached = engine.get(&parse(&name)?)?.attach(parse(&op)?).await?;
    let body = follow::raw(attached, stream, how.from, how.follow);
    Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// How long a supervisor may take to tell what it has taken.
const STDIN_TOLD: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Input {
    /// Where the body's first byte belongs in the operation's input.
    #[serde(default)]
    offset: u64,
    /// Whether nothing follows.
    #[serde(default)]
    eof: bool,
}

/// Tells how much input an operation has taken: where a client that sends more begins.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/ops/{op}/stdin",
    params(("name" = String, Path), ("op" = String, Path)),
    responses((status = 200, body = StdinView), (status = 404, body = ApiError)))]
pub(crate) async fn stdin_taken(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
) -> Answer<Json<StdinView>> {
    let handle = engine.get(&parse(&name)?)?;
    let mut attached = handle.attach(parse(&op)?).await?;
    // Asked for as if a byte came far behind the end: a daemon that was restarted has not heard of it yet.
    let probe = Offset(u64::MAX - 1);
    let state = *attached.stdin.borrow_and_update();
    if !state.closed && attached.view.state != protocol::api::OpPhase::Settled {
        handle
            .stdin(
                attached.view.id.clone(),
                probe,
                Bytes::from_static(b"?"),
                false,
            )
            .await?;
        let told = tokio::time::timeout(STDIN_TOLD, attached.stdin.changed()).await;
        if let Ok(Err(_)) = told {
            return Err(ApiError::new(ErrorCode::Unavailable, "the sandbox was let go").into());
        }
    }
    let state = *attached.stdin.borrow();
    Ok(Json(StdinView {
        offset: state.offset,
        closed: state.closed,
    }))
}

/// Sends input; answers when the operation took it. Bytes it has already are skipped, so sending again does no harm.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/ops/{op}/stdin",
    params(("name" = String, Path), ("op" = String, Path), Input),
    request_body(content = String, content_type = "application/octet-stream"), responses(
    (status = 200, body = StdinView), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn stdin(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(how): Query<Input>,
    body: Bytes,
) -> Answer<Json<StdinView>> {
    let handle = engine.get(&parse(&name)?)?;
    let op: OpId = parse(&op)?;
    let mut attached = handle.attach(op.clone()).await?;
    let end = how.offset + body.len() as u64;
    let mut at = how.offset;
    loop {
        let from = usize::try_from(at - how.offset)
            .unwrap_or(usize::MAX)
            .min(body.len());
        let to = (from + protocol::control::MAX_STDIN_CHUNK).min(body.len());
        let last = to == body.len();
        handle
            .stdin(
                op.clone(),
                Offset(at),
                body.slice(from..to),
                last && how.eof,
            )
            .await?;
        let wanted = Offset(how.offset + to as u64);
        let state = *attached
            .stdin
            .wait_for(|s| s.closed || s.offset >= wanted)
            .await
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "the sandbox was let go"))?;
        if state.closed || state.offset.0 >= end {
            return Ok(Json(StdinView {
                offset: state.offset,
                closed: state.closed,
            }));
        }
        at = wanted.0;
    }
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Signal {
    /// The signal's number.
    signal: u8,
}

/// Sends a signal to an operation's process group.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/ops/{op}/signal",
    params(("name" = String, Path), ("op" = String, Path), Signal), responses(
    (status = 200, body = OpView), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn signal(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(how): Query<Signal>,
) -> Answer<Json<OpView>> {
    let handle = engine.get(&parse(&name)?)?;
    let op: OpId = parse(&op)?;
    handle.signal(op.clone(), how.signal).await?;
    Ok(Json(handle.attach(op).await?.view))
}

/// Cancels an operation: SIGTERM, then SIGKILL. Answers when it has settled.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/ops/{op}/cancel",
    params(("name" = String, Path), ("op" = String, Path), Grace), responses(
    (status = 200, body = OpView), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn cancel(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    Query(grace): Query<Grace>,
) -> Answer<Json<OpView>> {
    let handle = engine.get(&parse(&name)?)?;
    let op: OpId = parse(&op)?;
    handle.cancel(op.clone(), grace.grace_ms).await?;
    let mut attached = handle.attach(op).await?;
    let settled = attached.settled().await?;
    Ok(Json(settled.as_ref().clone()))
}

/// Tells an operation's terminal its new size.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/ops/{op}/resize", request_body = TtySize,
    params(("name" = String, Path), ("op" = String, Path)), responses(
    (status = 204), (status = 404, body = ApiError), (status = 409, body = ApiError)))]
pub(crate) async fn resize(
    State(engine): State<Arc<Engine>>,
    Path((name, op)): Path<(String, String)>,
    body: Bytes,
) -> Answer<axum::http::StatusCode> {
    engine
        .get(&parse(&name)?)?
        .resize(parse(&op)?, json(&body)?)
        .await?;
    Ok(axum::http::StatusCode::NO_CONTENT)
}
