//! Requests of operations that may be run again: whether one leaves, gets the answer that is recorded, or is refused.

use std::sync::Arc;

use http::StatusCode;
use protocol::{DenyReason, Outgoing};
use tokio::time::timeout;

use super::asked::{Asked, PEEK_TIMEOUT};
use crate::body::Peeked;
use crate::connection::Client;
use crate::deny::Denial;
use crate::record::Keep;
use crate::seam::{Recorded, Word, Write};

/// What becomes of a request that may change something.
pub(crate) enum Fate {
    /// It leaves.
    Leaves(Keep),
    /// It gets an answer that is recorded.
    Answered(Recorded),
}

/// Decides about a request. Where it may repeat one of a lost run, its body is taken in for that.
pub(super) async fn fate(
    client: &Arc<Client>,
    asked: &Asked,
    outgoing: &Outgoing,
    body: &mut Peeked,
) -> Result<Fate, Denial> {
    let head = (!asked.websocket).then(|| asked.identity());
    let mut write = Write {
        request: outgoing.clone(),
        is_unasked: client.is_unasked().await,
        head: head.clone(),
        body: None,
    };
    let leaves = |head: Option<String>| {
        Fate::Leaves(head.map_or(
            Keep::Never("what passes in a WebSocket is not recorded"),
            Keep::Answer,
        ))
    };
    let most = match word(client, write.clone()).await? {
        Word::Leaves => return Ok(Fate::Leaves(Keep::Nothing)),
        Word::Recorded => return Ok(leaves(head)),
        Word::Answered(recorded) => return Ok(Fate::Answered(recorded)),
        Word::Body { most } => most,
    };
    // Never closed, so an error cannot come.
    let _room = client.core.repeating.acquire().await.ok();
    let taken = timeout(PEEK_TIMEOUT, body.whole(most)).await;
    let taken = taken.map_err(|_| {
        Denial::new(
            StatusCode::REQUEST_TIMEOUT,
            DenyReason::Protocol,
            "the body did not come in time",
        )
    })?;
    write.body = Some(taken.map_err(|_| Denial::malformed("the body broke off"))?);
    match word(client, write).await? {
        Word::Leaves => Ok(Fate::Leaves(Keep::Nothing)),
        Word::Recorded => Ok(leaves(head)),
        Word::Answered(recorded) => Ok(Fate::Answered(recorded)),
        Word::Body { .. } => Err(Denial::upstream("the records of this operation moved on")),
    }
}

/// The same for a connection whose bytes pass as they are.
pub(crate) async fn connection(client: &Client, request: &Outgoing) -> Result<Keep, Denial> {
    let write = Write {
        request: request.clone(),
        is_unasked: client.is_unasked().await,
        head: None,
        body: None,
    };
    Ok(match word(client, write).await? {
        Word::Leaves => Keep::Nothing,
        _ => Keep::Never("what passes in a connection that is not looked into is not recorded"),
    })
}

async fn word(client: &Client, write: Write) -> Result<Word, Denial> {
    match client.core.records.write(write).await {
        Ok(Ok(word)) => Ok(word),
        Ok(Err(message)) => Err(Denial::new(
            StatusCode::CONFLICT,
            DenyReason::Diverged,
            message,
        )),
        Err(error) => {
            tracing::warn!(%error, "what is recorded of an operation is not known, so its request is refused");
            Err(Denial::new(
                StatusCode::SERVICE_UNAVAILABLE,
                DenyReason::Upstream,
                "what is recorded of this operation cannot be read at the moment; try again later",
            ))
        }
    }
}
