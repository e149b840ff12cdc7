//! Changing: each change is an operation, and is on disk, in the journal and in a cut when it is answered.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, BodyDataStream};
use axum::http::HeaderMap;
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use engine::{Changed, Files, Piece};
use futures_util::StreamExt as _;
use protocol::ApiError;
use protocol::api::FileChangedView;
use protocol::files::{Alter, Name, Put};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::At;
use super::query::Asked;
use super::range::tags;
use super::show;
use crate::api::to_its_end;
use crate::error::Answer;

/// Pieces of a body that wait for the sandbox.
const WINDOW: usize = 2;
/// How long the rest of a body that nobody wants is read away, so that its sender gets to hear why.
const READ_AWAY: Duration = Duration::from_secs(5);

/// Replaces a file by the body, in one step: a reader sees all of the old one or all of the new one.
///
/// `mode` is octal, `owner` UID:GID; what is not given is kept from the old file. `parents` makes the directories above it.
/// `If-Match` and `If-None-Match` are obeyed, also against other writes over this API at the same moment. A body that breaks
/// off changes nothing.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/files", params(("name" = String, Path), At,
    ("mode" = Option<String>, Query), ("owner" = Option<String>, Query), ("parents" = Option<bool>, Query)),
    request_body(content = String, content_type = "application/octet-stream"), responses(
    (status = 200, body = FileChangedView), (status = 403, body = ApiError), (status = 404, body = ApiError),
    (status = 412, body = ApiError)))]
pub(crate) async fn put(
    asked: Asked,
    headers: HeaderMap,
    body: Body,
) -> Answer<Json<FileChangedView>> {
    let Asked { files, path, query } = asked;
    let put = Put {
        path: path.clone(),
        mode: query.mode()?,
        owner: query.owner()?,
        parents: query.flag("parents")?,
        if_match: tags(&headers, IF_MATCH),
        if_none_match: tags(&headers, IF_NONE_MATCH),
    };
    alter(files, Alter::Put(put), path, Some(body)).await
}

/// Makes a directory; `mode` is octal, 755 where not given. With `parents` those above it too, and one that is there is fine.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/files/mkdir", params(("name" = String, Path), At,
    ("mode" = Option<String>, Query), ("parents" = Option<bool>, Query)), responses(
    (status = 200, body = FileChangedView), (status = 403, body = ApiError), (status = 404, body = ApiError),
    (status = 409, body = ApiError)))]
pub(crate) async fn mkdir(asked: Asked) -> Answer<Json<FileChangedView>> {
    let Asked { files, path, query } = asked;
    let what = Alter::Mkdir {
        path: path.clone(),
        mode: query.mode()?,
        parents: query.flag("parents")?,
    };
    alter(files, what, path, None).await
}

/// Removes a file, a link or an empty directory; with `recursive` one that is not empty too.
#[utoipa::path(delete, path = "/v1/sandboxes/{name}/files", params(("name" = String, Path), At,
    ("recursive" = Option<bool>, Query)), responses(
    (status = 200, body = FileChangedView), (status = 403, body = ApiError), (status = 404, body = ApiError),
    (status = 409, body = ApiError)))]
pub(crate) async fn remove(asked: Asked) -> Answer<Json<FileChangedView>> {
    let Asked { files, path, query } = asked;
    let what = Alter::Remove {
        path: path.clone(),
        recursive: query.flag("recursive")?,
    };
    alter(files, what, path, None).await
}

/// Gives `path` the name `to`, in one step. What has that name is replaced only with `replace`.
#[utoipa::path(post, path = "/v1/sandboxes/{name}/files/rename", params(("name" = String, Path), At,
    ("to" = String, Query), ("replace" = Option<bool>, Query)), responses(
    (status = 200, body = FileChangedView), (status = 403, body = ApiError), (status = 404, body = ApiError),
    (status = 409, body = ApiError)))]
pub(crate) async fn rename(asked: Asked) -> Answer<Json<FileChangedView>> {
    let Asked { files, path, query } = asked;
    let to = query.path(&files, "to")?;
    let what = Alter::Rename {
        from: path,
        to: to.clone(),
        replace: query.flag("replace")?,
    };
    alter(files, what, to, None).await
}

/// Unpacks a tar archive into a directory, which is made if need be. What breaks off leaves what had arrived by then.
#[utoipa::path(put, path = "/v1/sandboxes/{name}/files/tree", params(("name" = String, Path), At),
    request_body(content = String, content_type = "application/x-tar"), responses(
    (status = 200, body = FileChangedView), (status = 400, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn unpack(asked: Asked, body: Body) -> Answer<Json<FileChangedView>> {
    let Asked { files, path, .. } = asked;
    let (input, sending) = pieces(body);
    let done = to_its_end(async move { files.unpack(&path, input).await }).await;
    if done.is_err() {
        let _sent = tokio::time::timeout(READ_AWAY, sending).await;
    }
    let (op, cut) = done?;
    let file = None;
    Ok(Json(FileChangedView { op, cut, file }))
}

async fn alter(
    files: Files,
    what: Alter,
    path: Name,
    body: Option<Body>,
) -> Answer<Json<FileChangedView>> {
    let (input, sending) = body.map(pieces).unzip();
    let done = to_its_end(async move { files.alter(&what, input).await }).await;
    if let (Err(_), Some(sending)) = (&done, sending) {
        let _sent = tokio::time::timeout(READ_AWAY, sending).await;
    }
    let Changed { op, cut, entry } = done?;
    let file = Some(show::view(&path, &entry));
    Ok(Json(FileChangedView { op, cut, file }))
}

/// Reads a body on as the pieces are taken. Only a body that is whole ends with [`Piece::End`].
fn pieces(body: Body) -> (mpsc::Receiver<Piece>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel(WINDOW);
    let sending = tokio::spawn(pass_on(body.into_data_stream(), sender));
    (receiver, sending)
}

async fn pass_on(mut body: BodyDataStream, sender: mpsc::Sender<Piece>) {
    while let Some(piece) = body.next().await {
        let Ok(piece) = piece else { return };
        // Where nobody takes them any more, the rest is read away.
        let _not_wanted = sender.send(Piece::Bytes(piece)).await;
    }
    let _not_wanted = sender.send(Piece::End).await;
}
