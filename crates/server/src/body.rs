//! Bodies of answers: what comes through a channel, and lines of JSON.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc;

/// What a task sends to a client. Its end is the body's; a task whose client went away is told by the channel.
pub(crate) type Sender = mpsc::Sender<Result<Bytes, Infallible>>;

/// Makes a body, and the sender of what is in it; `window` pieces may wait for the client.
pub(crate) fn channel(window: usize) -> (Sender, Body) {
    let (sender, receiver) = mpsc::channel(window);
    let body = Body::from_stream(stream::unfold(
        receiver,
        async |mut receiver: mpsc::Receiver<_>| receiver.recv().await.map(|item| (item, receiver)),
    ));
    (sender, body)
}

/// Answers with lines of JSON.
pub(crate) fn ndjson(body: Body) -> Response {
    ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

/// Adds a line.
pub(crate) fn line<T: Serialize>(lines: &mut Vec<u8>, value: &T) {
    // Writing to memory does not fail, and what we show is always JSON.
    if serde_json::to_writer(&mut *lines, value).is_ok() {
        lines.push(b'\n');
    }
}
