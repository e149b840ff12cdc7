//! Differences between places, composing, and who changed a file.

use std::io::{self, Write};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use engine::Engine;
use protocol::ApiError;
use protocol::api::{BlameView, ChangeView, ComposeSandbox, ComposeView};
use serde::Deserialize;

use super::sandboxes::json;
use crate::body::{self, Sender};
use crate::error::{Answer, parse};

/// Bytes of a patch that are sent at a time.
const PIECE: usize = 64 << 10;

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Sides {
    /// `NAME`, or `NAME@PLACE` with a checkpoint's id or label or a place in its journal.
    a: String,
    /// The same.
    b: String,
    /// Answer with text as git prints it.
    #[serde(default)]
    patch: bool,
}

/// Compares two places: a list of [`ChangeView`], or with `patch` the text that git would print.
#[utoipa::path(get, path = "/v1/diff", params(Sides), responses(
    (status = 200, body = Vec<ChangeView>), (status = 404, body = ApiError)))]
pub(crate) async fn diff(
    State(engine): State<Arc<Engine>>,
    Query(sides): Query<Sides>,
) -> Answer<Response> {
    let a = engine.side(&sides.a).await?;
    let b = engine.side(&sides.b).await?;
    let (changes, compared) = engine.diff(a, b).await?;
    if !sides.patch {
        return Ok(Json(changes).into_response());
    }
    let (sender, body) = body::channel(4);
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces {
            sender,
            piece: Vec::with_capacity(PIECE),
        };
        // The status is out already: what could not be read is told in the text, which git then refuses.
        if let Err(error) = compared.patch(&mut out) {
            let _gone = writeln!(out, "error: {}", error.message);
        }
        let _gone = out.flush();
    });
    Ok(([(CONTENT_TYPE, "text/x-patch")], body).into_response())
}

/// A writer whose text goes to the client piece by piece.
struct Pieces {
    sender: Sender,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.sender
            .blocking_send(Ok(piece.into()))
            .map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Brings what another sandbox changed into this one: all of it, or nothing where both changed the same.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/compose", params(("name" = String, Path)),
    request_body = ComposeSandbox, responses((status = 200, body = ComposeView), (status = 400, body = ApiError),
    (status = 404, body = ApiError)))]
pub(crate) async fn compose(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<ComposeView>> {
    Ok(Json(engine.compose(&parse(&name)?, json(&body)?).await?))
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Of {
    /// From the root, or from the sandbox's working directory.
    path: String,
}

/// Tells which operation last changed a path.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/blame", params(("name" = String, Path), Of), responses(
    (status = 200, body = BlameView), (status = 404, body = ApiError)))]
pub(crate) async fn blame(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    Query(of): Query<Of>,
) -> Answer<Json<BlameView>> {
    Ok(Json(engine.blame(&parse(&name)?, &of.path).await?))
}
