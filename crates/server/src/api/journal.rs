//! The journal as newline-delimited JSON.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use engine::Engine;
use protocol::api::EventView;
use protocol::{ApiError, ErrorCode, Seq, Stored};
use serde::Deserialize;

use crate::body::{self, line, ndjson};
use crate::error::{Answer, Refused, parse};

/// Events read at a time.
const PAGE: usize = 512;

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct From {
    /// The first place wanted; 1 where not given.
    #[serde(default = "first")]
    from: u64,
    /// Go on with what is appended later.
    #[serde(default)]
    follow: bool,
}

fn first() -> u64 {
    1
}

/// Reads the journal: one [`EventView`] a line. A damaged place ends it with one line that is an error.
#[utoipa::path(get, path = "/v1/sandboxes/{name}/journal", params(("name" = String, Path), From), responses(
    (status = 200, content_type = "application/x-ndjson", body = EventView), (status = 404, body = ApiError)))]
pub(crate) async fn read(
    State(engine): State<Arc<Engine>>,
    Path(name): Path<String>,
    Query(how): Query<From>,
) -> Answer<Response> {
    let name = parse(&name)?;
    let id = engine.journal_of(&name).await?;
    let mut tail =
        engine.shared().store.tail(id).map_err(|error| {
            Refused::from(ApiError::new(ErrorCode::Unavailable, error.to_string()))
        })?;
    let (sender, body) = body::channel(4);
    tokio::spawn(async move {
        let mut next = Seq(how.from.max(1));
        loop {
            tail.borrow_and_update();
            let events = match engine.shared().store.read(id, next, PAGE).await {
                Ok(events) => events,
                Err(error) => {
                    let error = ApiError::new(error.code(), error.to_string());
                    let error = serde_json::json!({"error": error, "readable_until": next.0 - 1});
                    // The client may be gone; there is nothing more to say either way.
                    let _gone = sender.send(Ok(format!("{error}\n").into())).await;
                    return;
                }
            };
            match events.last() {
                Some(last) => {
                    next = last.seq.next();
                    if sender.send(Ok(lines(events).into())).await.is_err() {
                        return;
                    }
                }
                None if !how.follow => return,
                None => {
                    tokio::select! {
                        changed = tail.changed() => if changed.is_err() { return },
                        () = sender.closed() => return,
                    }
                }
            }
        }
    });
    Ok(ndjson(body))
}

fn lines(events: Vec<Stored>) -> Vec<u8> {
    let mut out = Vec::new();
    for stored in events {
        let view = EventView {
            seq: stored.seq,
            epoch: stored.epoch,
            at_ms: stored.at,
            hash: stored
                .hash
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            // Every event is a JSON object: the store wrote it as one.
            event: serde_json::to_value(&stored.event).unwrap_or_default(),
        };
        line(&mut out, &view);
    }
    out
}
