//! TLS: passed on as it is, or answered in the name that the client wants and looked into.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use policy::{Channel, Connect, Host, Verdict, Wire};
use protocol::DenyReason;
use rustls::ServerConfig;
use rustls::server::Accepted;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::StartHandshake;
use tokio_rustls::server::TlsStream;

use super::http::serve_http2;
use super::{Aim, Client, outline, serve_http1};
use crate::deny::Denial;
use crate::request::Session;
use crate::stream::Prefixed;
use crate::tunnel;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client's connection that is looked into.
type Secure = TlsStream<Prefixed<TcpStream>>;

/// Whether requests of a connection can be allowed at all.
pub(crate) enum Refused {
    /// They are judged one by one.
    Not,
    /// As the policy is, none of them is; it may become another while the connection is kept.
    ByPolicy(Denial),
    /// Whatever the policy says: its names do not agree.
    ForGood(Denial),
}

impl Refused {
    fn into_denial(self) -> Option<Denial> {
        match self {
            Self::Not => None,
            Self::ByPolicy(denial) | Self::ForGood(denial) => Some(denial),
        }
    }
}

pub(super) async fn tls(
    client: Arc<Client>,
    stream: Prefixed<TcpStream>,
    aim: Aim,
    accepted: Accepted,
) {
    let port = aim.port;
    let sni = accepted.client_hello().server_name().map(Host::parse);
    let mut refused = None;
    let (host, denied) = match (sni, aim.name) {
        (Some(Ok(sni)), Some(name)) if sni != name => {
            let message = format!("the connection is to {name}, and its TLS names {sni}");
            (sni, Some(Denial::mismatch(message)))
        }
        (Some(Ok(sni)), _) => (sni, None),
        (Some(Err(error)), name) => {
            let message = format!("the name in TLS is none: {error}");
            let denial = Denial::forbidden(DenyReason::BadName, message);
            match name.or(aim.address) {
                Some(host) => (host, Some(denial)),
                None => return,
            }
        }
        (None, Some(name)) => (name, None),
        (None, None) => match aim.address {
            Some(address) => (address, None),
            None => return,
        },
    };
    if denied.is_none() {
        let asked = Connect {
            host: &host,
            port,
            protocol: Wire::Tls,
        };
        let verdict = client.core.policy().connect(&asked);
        match verdict {
            Verdict::Allow {
                rule,
                grant: Channel::PassThrough,
            }
            | Verdict::Ask {
                rule,
                grant: Channel::PassThrough,
                ..
            } => {
                Box::pin(tunnel::run(&client, stream, host, port, rule, Wire::Tls)).await;
                return;
            }
            Verdict::Allow { .. } | Verdict::Ask { .. } => {}
            Verdict::Deny {
                rule,
                reason,
                message,
            } => refused = Some(Denial::of_policy(rule, reason, message)),
        }
    }
    let refusal = match (denied, refused) {
        (Some(denied), _) => Refused::ForGood(denied),
        (None, Some(refused)) => Refused::ByPolicy(refused),
        (None, None) => Refused::Not,
    };
    Box::pin(inspect(client, stream, host, port, accepted, refusal)).await;
}

/// Returns what a client wants to speak over TLS, where it is not HTTP.
fn foreign(accepted: &Accepted) -> Option<String> {
    let hello = accepted.client_hello();
    let offered: Vec<&[u8]> = hello.alpn()?.collect();
    if offered
        .iter()
        .any(|name| *name == b"h2" || *name == b"http/1.1")
    {
        return None;
    }
    let names = offered.iter().map(|name| String::from_utf8_lossy(name));
    Some(
        names
            .collect::<Vec<_>>()
            .join(", ")
            .escape_default()
            .to_string(),
    )
}

/// Goes on with the handshake that the hello began; an error says what failed.
async fn shake_hands(
    accepted: Accepted,
    stream: Prefixed<TcpStream>,
    config: Arc<ServerConfig>,
) -> Result<Box<Secure>, String> {
    let handshake = StartHandshake::from_parts(accepted, stream).into_stream(config);
    match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(stream)) => Ok(Box::new(stream)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it did not go on in time".to_owned()),
    }
}

/// Returns the connection's whole life, in the version of HTTP that was agreed on.
fn serve(session: Arc<Session>, stream: Box<Secure>) -> BoxFuture<'static, ()> {
    if stream.get_ref().1.alpn_protocol() == Some(&b"h2"[..]) {
        Box::pin(serve_http2(session, stream))
    } else {
        Box::pin(serve_http1(session, stream))
    }
}

/// Answers TLS in the name of the host, and serves what is in it; a refusal is told there too, where programs show it.
async fn inspect(
    client: Arc<Client>,
    mut stream: Prefixed<TcpStream>,
    host: Host,
    port: u16,
    accepted: Accepted,
    refused: Refused,
) {
    // The hello was taken in already.
    let held = stream.held().len();
    drop(stream.cut(held));
    let config = match client.core.authority.server_config(&host) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, "a connection cannot be looked into");
            return;
        }
    };
    let foreign = foreign(&accepted);
    // Boxed: what it needs is not kept for as long as the connection is.
    let failure = match Box::pin(shake_hands(accepted, stream, config)).await {
        Ok(stream) => {
            let session = Arc::new(Session::secure(client, host, port, refused));
            serve(session, stream).await;
            return;
        }
        Err(failure) => failure,
    };
    let denial = refused.into_denial().unwrap_or_else(|| match foreign {
        Some(what) => Denial::forbidden(
            DenyReason::Protocol,
            format!(
                "the program wants to speak {what} over TLS with {host}, and a rule that looks into it knows HTTP only; a rule \
                 with `action = \"passthrough\"` passes it as it is"
            ),
        ),
        None => Denial::forbidden(
            DenyReason::Protocol,
            format!(
                "the program broke off TLS with {host}, which a rule looks into ({failure}); most often it does not trust the \
                 sandbox's own certificate authority ({}): make it, or let a rule with `action = \"passthrough\"` name the host",
                protocol::paths::CA_BUNDLE
            ),
        ),
    });
    client.deny(outline("tls", &host, port), &denial).await;
}
