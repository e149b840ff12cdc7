//! Looking, reading and watching: nothing of it is an operation.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::Helper;
use futures_util::stream;
use protocol::api::{FileEventView, FileView};
use protocol::files::{Entry, Name};
use protocol::{ApiError, ErrorCode};

use super::At;
use super::query::Asked;
use super::range::{Part, Wanted, part, wanted};
use super::show;
use crate::body::{line, ndjson};
use crate::error::{Answer, Refused};

/// Lines gathered before they are sent.
const LINES: usize = 32 << 10;

/// Tells what is at a path; of a link where it leads, with `follow=false` the link itself.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/files/stat",
    params(("name" = String, Path), At, ("follow" = Option<bool>, Query)), responses(
    (status = 200, body = FileView), (status = 403, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn stat(asked: Asked) -> Answer<Json<FileView>> {
    let Asked { files, path, query } = asked;
    let entry = files
        .stat(path.clone(), query.flag_or("follow", true)?)
        .await?;
    Ok(Json(show::view(&path, &entry)))
}

/// Lists a directory, one [`FileView`] a line, sorted by name; with `recursive` what is below it too. What breaks the
/// listing off stands in a last line, `{"error": …}`. What is no directory lists itself.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/files/list",
    params(("name" = String, Path), At, ("recursive" = Option<bool>, Query)), responses(
    (status = 200, content_type = "application/x-ndjson", body = FileView), (status = 403, body = ApiError),
    (status = 404, body = ApiError)))]
pub(crate) async fn list(asked: Asked) -> Answer<Response> {
    let Asked { files, path, query } = asked;
    let recursive = query.flag("recursive")?;
    let (first, helper) = files.list(path.clone(), recursive).await?;
    let mut lines = Vec::new();
    let go_on = first.is_some();
    if let Some(entry) = &first {
        line(&mut lines, &show::view(&path, entry));
    }
    let state = Listing {
        helper,
        path,
        lines,
        go_on,
    };
    let body = stream::unfold(state, async |mut state| {
        state.more().await;
        let lines = std::mem::take(&mut state.lines);
        (!lines.is_empty()).then(|| (Ok::<_, Infallible>(Bytes::from(lines)), state))
    });
    Ok(ndjson(Body::from_stream(body)))
}

struct Listing {
    helper: Helper,
    path: Name,
    lines: Vec<u8>,
    go_on: bool,
}

impl Listing {
    /// Gathers what is there already, and waits where nothing is.
    async fn more(&mut self) {
        while self.go_on
            && self.lines.len() < LINES
            && (self.lines.is_empty() || self.helper.is_ready())
        {
            match self.helper.next().await {
                Ok(Some(entry)) => line(&mut self.lines, &show::view(&self.path, &entry)),
                Ok(None) => self.go_on = false,
                Err(refusal) => {
                    line(
                        &mut self.lines,
                        &serde_json::json!({"error": refusal.error}),
                    );
                    self.go_on = false;
                }
            }
        }
    }
}

/// Reads a regular file, or the part that `Range` asks for. `HEAD` tells its size, `ETag`, mode and owner.
///
/// Nothing of it is journaled or counted. A file that changes meanwhile gives the bytes of the moment; one that becomes
/// shorter breaks the answer off. `If-Match`, `If-None-Match` and `If-Range` are obeyed.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/files", params(("name" = String, Path), At), responses(
    (status = 200, content_type = "application/octet-stream"), (status = 206, content_type = "application/octet-stream"),
    (status = 304), (status = 403, body = ApiError), (status = 404, body = ApiError), (status = 412, body = ApiError),
    (status = 416, body = ApiError)))]
pub(crate) async fn content(asked: Asked, method: Method, headers: HeaderMap) -> Answer<Response> {
    let Asked { files, path, .. } = asked;
    let (entry, mut helper) = files.read(path).await?;
    let tag = show::etag(&entry);
    match wanted(&headers, &entry.tag()) {
        Wanted::Yes => {}
        Wanted::NotModified => {
            return Ok((StatusCode::NOT_MODIFIED, about(&entry)).into_response());
        }
        Wanted::Unmet => {
            let error = ApiError::new(ErrorCode::Conflict, "the file has changed");
            return Err(Refused::unmet(error));
        }
    }
    let size = entry.size;
    let mut head = about(&entry);
    let (status, offset, length) = match part(&headers, size, &tag) {
        Part::Whole => (StatusCode::OK, 0, size),
        Part::Some { offset, length } => {
            let text = format!("bytes {offset}-{}/{size}", offset + length - 1);
            put(&mut head, CONTENT_RANGE, &text);
            (StatusCode::PARTIAL_CONTENT, offset, length)
        }
        Part::Outside => {
            let error = ApiError::new(
                ErrorCode::Invalid,
                format!("the range has nothing of the file's {size} bytes"),
            )
            .hint(match size {
                0 => "it is empty; ask for it without a range".to_owned(),
                _ => format!("its bytes are counted from 0 to {}", size - 1),
            });
            put(&mut head, CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, head, Json(error)).into_response());
        }
    };
    put(&mut head, CONTENT_LENGTH, &length.to_string());
    let kind = HeaderValue::from_static("application/octet-stream");
    head.insert(CONTENT_TYPE, kind);
    if method == Method::HEAD {
        return Ok((status, head, Body::empty()).into_response());
    }
    helper.send(offset, length).await?;
    Ok((status, head, bytes(helper, Some(length))).into_response())
}

/// What is told of a file beside its content.
fn about(entry: &Entry) -> HeaderMap {
    let mut head = HeaderMap::new();
    head.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    put(&mut head, ETAG, &show::etag(entry));
    let ours = HeaderName::from_static;
    put(
        &mut head,
        ours("durable-mode"),
        &format!("{:04o}", entry.mode),
    );
    let owner = format!("{}:{}", entry.uid, entry.gid);
    put(&mut head, ours("durable-owner"), &owner);
    let modified = (entry.modified_ns / 1_000_000).to_string();
    put(&mut head, ours("durable-modified-ms"), &modified);
    head
}

fn put(head: &mut HeaderMap, name: HeaderName, value: &str) {
    // Digits and marks of ours: always a header's text.
    if let Ok(value) = HeaderValue::from_str(value) {
        head.insert(name, value);
    }
}

/// Passes bytes on as the client takes them: one frame is in memory. Not a byte more than was promised.
fn bytes(helper: Helper, length: Option<u64>) -> Body {
    let state = (helper, length, false);
    Body::from_stream(stream::unfold(
        state,
        async |(mut helper, mut left, over)| {
            if over || left == Some(0) {
                return None;
            }
            let cut = |words: String| Err(std::io::Error::other(words));
            let item = match helper.bytes().await {
                Ok(Some(bytes)) => {
                    let length = bytes.len() as u64;
                    match &mut left {
                        Some(left) if length > *left => {
                            cut("more came than was asked for".to_owned())
                        }
                        Some(left) => {
                            *left -= length;
                            Ok(bytes)
                        }
                        None => Ok(bytes),
                    }
                }
                Ok(None) if left.is_none() => return None,
                Ok(None) => cut("it ended too early".to_owned()),
                Err(refusal) => {
                    tracing::debug!(error = %refusal.error.message, "a file could not be read to its end");
                    cut(refusal.error.message)
                }
            };
            let over = item.is_err();
            Some((item, (helper, left, over)))
        },
    ))
}

/// Reads a path and all below it as a tar archive: links as links; pipes, sockets and devices are left out.
///
/// An archive that is not whole ends with a global pax record `DURABLE.error` and a block that is no tar header, so that no
/// program takes it for a whole one; or with a broken connection, where not even that could be said.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/files/tree", params(("name" = String, Path), At), responses(
    (status = 200, content_type = "application/x-tar"), (status = 403, body = ApiError), (status = 404, body = ApiError)))]
pub(crate) async fn tree(asked: Asked) -> Answer<Response> {
    let Asked { files, path, .. } = asked;
    let helper = files.pack(path).await?;
    Ok(([(CONTENT_TYPE, "application/x-tar")], bytes(helper, None)).into_response())
}

/// Follows changes, one [`FileEventView`] a line, until the connection ends; with `recursive` below directories too.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/files/watch",
    params(("name" = String, Path), At, ("recursive" = Option<bool>, Query)), responses(
    (status = 200, content_type = "application/x-ndjson", body = FileEventView), (status = 403, body = ApiError),
    (status = 404, body = ApiError)))]
pub(crate) async fn watch(asked: Asked) -> Answer<Response> {
    let Asked { files, path, query } = asked;
    let (_, helper) = files.watch(path.clone(), query.flag("recursive")?).await?;
    let mut lines = Vec::new();
    line(&mut lines, &show::event(&path, "watching", None));
    let state = (helper, path, Some(lines), false);
    let body = stream::unfold(state, async |(mut helper, path, first, mut over)| {
        let mut lines = first.unwrap_or_default();
        while !over && (lines.is_empty() || (helper.is_ready() && lines.len() < LINES)) {
            match helper.change().await {
                Ok(Some(change)) => {
                    let word = change.event.word();
                    line(&mut lines, &show::event(&path, word, Some(&change)));
                }
                Ok(None) => over = true,
                Err(refusal) => {
                    let mut event = show::event(&path, "error", None);
                    event.error = Some(refusal.error);
                    line(&mut lines, &event);
                    over = true;
                }
            }
        }
        let piece = (!lines.is_empty()).then(|| Ok::<_, Infallible>(Bytes::from(lines)))?;
        Some((piece, (helper, path, None, over)))
    });
    Ok(ndjson(Body::from_stream(body)))
}
