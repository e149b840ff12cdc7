//! Clients that know of us: CONNECT leads on to a conversation, anything else is a request for plain HTTP.

use std::sync::Arc;

use policy::{Connect, Host, Verdict, Wire};
use protocol::{DenyReason, Outgoing};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Aim, Client, HELLO_TIMEOUT, converse, outline, serve_http1};
use crate::deny::Denial;
use crate::egress::Core;
use crate::request::Session;
use crate::stream::Prefixed;

/// A client that knows of us: CONNECT leads on to a conversation, anything else is a request for plain HTTP.
pub(super) async fn proxy(client: Arc<Client>, mut stream: Prefixed<TcpStream>) {
    let connect = match timeout(2 * HELLO_TIMEOUT, read_connect(&mut stream)).await {
        Ok(Ok(connect)) => connect,
        Ok(Err(_gone)) => return,
        Err(_too_slow) => None,
    };
    let Some(target) = connect else {
        let session = Session::plain(client, None, None, None);
        Box::pin(serve_http1(Arc::new(session), stream)).await;
        return;
    };
    let (host, port) = match policy::authority(&target, None) {
        Ok(found) => found,
        Err(error) => {
            let shown: String = target
                .chars()
                .take(100)
                .collect::<String>()
                .escape_debug()
                .collect();
            let message = format!("CONNECT to \"{shown}\" is to no host and port: {error}");
            let denial = Denial::new(http::StatusCode::BAD_REQUEST, DenyReason::BadName, message);
            let request = Outgoing {
                op: None,
                protocol: "tcp".to_owned(),
                host: shown,
                port: 0,
                method: Some("CONNECT".to_owned()),
                path: None,
            };
            client.deny(request, &denial).await;
            answer(stream, &denial).await;
            return;
        }
    };
    if let Some(denial) = never_connects(&client.core, &host, port) {
        let mut request = outline("tcp", &host, port);
        request.method = Some("CONNECT".to_owned());
        client.deny(request, &denial).await;
        answer(stream, &denial).await;
        return;
    }
    if stream
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .is_err()
    {
        return;
    }
    let aim = Aim {
        name: Some(host),
        address: None,
        port,
    };
    converse(client, stream, aim).await;
}

/// Why a CONNECT leads nowhere, whatever is spoken through it.
fn never_connects(core: &Core, host: &Host, port: u16) -> Option<Denial> {
    let policy = core.policy();
    let mut refused = None;
    for protocol in [Wire::Unknown, Wire::Http, Wire::Tls] {
        match policy.connect(&Connect {
            host,
            port,
            protocol,
        }) {
            Verdict::Allow { .. } | Verdict::Ask { .. } => return None,
            Verdict::Deny {
                rule,
                reason,
                message,
            } => {
                refused = Some(Denial::of_policy(rule, reason, message));
            }
        }
    }
    refused
}

/// Returns the target of a CONNECT whose head was read away; none where it is another request, which is all still there.
async fn read_connect(stream: &mut Prefixed<TcpStream>) -> std::io::Result<Option<String>> {
    const LIMIT: usize = 16 << 10;
    loop {
        let held = stream.held();
        let begins = b"CONNECT ";
        let known = held.len().min(begins.len());
        if held[..known] != begins[..known] {
            return Ok(None);
        }
        if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            let line = held.split(|byte| *byte == b'\r').next().unwrap_or_default();
            let mut words = line.split(|byte| *byte == b' ').skip(1);
            let (target, version) = (words.next(), words.next());
            let is_http =
                matches!(version, Some(b"HTTP/1.1" | b"HTTP/1.0")) && words.next().is_none();
            let target = target
                .and_then(|target| std::str::from_utf8(target).ok())
                .map(str::to_owned);
            if !is_http {
                return Ok(None);
            }
            drop(stream.cut(end + 4));
            return Ok(target);
        }
        if stream.fill(LIMIT).await? == 0 {
            return if stream.held().is_empty() {
                Err(std::io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(None)
            };
        }
    }
}

/// Tells a client of a proxy why it is refused, and closes.
async fn answer(mut stream: Prefixed<TcpStream>, denial: &Denial) {
    let told = async {
        stream.write_all(&denial.raw()).await?;
        stream.shutdown().await?;
        // It may still be sending; closing now could take the answer back.
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    if let Ok(Err(error)) = timeout(HELLO_TIMEOUT, told).await {
        tracing::debug!(%error, "a client did not hear why it was refused");
    }
}
