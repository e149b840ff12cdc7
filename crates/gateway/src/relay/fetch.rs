//! One request to an upstream, read to its end into its file.

use std::io;
use std::time::Duration;

use protocol::ModelOutcome;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;

use super::client::Progress;
use super::frames::{Begin, Stage};
use super::spool::{Head, Writer};
use crate::upstream::returned_headers;

/// How long a connection may take to be made. Nothing else is limited: a model may think for long before its first token.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A silent connection is probed, so that a peer that vanished is noticed in about a minute.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;
/// Idle connections are given up before the usual peers do it.
const POOL_IDLE: Duration = Duration::from_secs(30);
/// The longest answer: no model writes so much in one turn, and an endless one must not fill the disk.
const MAX_ANSWER: u64 = 256 << 20;

/// Asks upstreams; keeps their connections.
pub(crate) type HttpClient<B> = Client<HttpsConnector<HttpConnector>, B>;

/// Makes a client that trusts the machine's certificates, or the built-in list where the machine has none.
pub(crate) fn client<B>() -> HttpClient<B>
where
    B: hyper::body::Body + Send,
    B::Data: Send,
{
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = match builder.with_native_roots() {
        Ok(builder) => builder,
        Err(_none_there) => hyper_rustls::HttpsConnectorBuilder::new().with_webpki_roots(),
    };
    let connector = builder.https_or_http().enable_http1().wrap_connector(http);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector)
}

/// Asks, and keeps the answer in `writer`; tells `progress` after each record. Returns when the end is durable.
pub(crate) async fn fetch(
    client: &HttpClient<Full<Bytes>>,
    begin: Begin,
    mut writer: Writer,
    progress: &watch::Sender<Progress>,
) {
    let ended = match answer(client, begin, &mut writer, progress).await {
        Ok(outcome) => end(writer, outcome).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(length) => progress.send_modify(|p| p.become_stage(length, Stage::Ended)),
        Err(error) => {
            let error = format!("the answer could not be kept: {error}");
            progress.send_modify(|p| p.become_stage(p.length, Stage::Broken { error }));
        }
    }
}

async fn end(mut writer: Writer, outcome: ModelOutcome) -> io::Result<u64> {
    let synced = tokio::task::spawn_blocking(move || {
        writer.end(&outcome)?;
        writer.sync()?;
        Ok(writer.length())
    });
    synced.await.map_err(io::Error::other)?
}

/// Returns how the upstream's answer ended; an error is one of our own file.
async fn answer(
    client: &HttpClient<Full<Bytes>>,
    begin: Begin,
    writer: &mut Writer,
    progress: &watch::Sender<Progress>,
) -> io::Result<ModelOutcome> {
    let told = |writer: &Writer| {
        progress.send_modify(|p| p.become_stage(writer.length(), Stage::Running));
    };
    let mut builder = hyper::Request::builder()
        .method(begin.method.as_str())
        .uri(&begin.url);
    for (name, value) in &begin.headers {
        builder = builder.header(name, value);
    }
    let request = match builder.body(Full::new(begin.body)) {
        Ok(request) => request,
        Err(error) => return Ok(failed(&error)),
    };
    let response = match client.request(request).await {
        Ok(response) => response,
        Err(error) => return Ok(failed(&error)),
    };
    writer.head(&Head {
        status: response.status().as_u16(),
        headers: returned_headers(response.headers()),
    })?;
    told(writer);
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Ok(failed(&error)),
        };
        if let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) {
            writer.body(data)?;
            told(writer);
            if writer.offset() > MAX_ANSWER {
                let error = format!("the answer is longer than {MAX_ANSWER} bytes");
                return Ok(ModelOutcome::Failed { error });
            }
        }
    }
    Ok(ModelOutcome::Complete)
}

fn failed(error: &(dyn std::error::Error + 'static)) -> ModelOutcome {
    ModelOutcome::Failed {
        error: with_causes(error),
    }
}

/// Tells an error with its causes: hyper's own words alone say little.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text
}
