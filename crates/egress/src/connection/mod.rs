//! One accepted connection: what it speaks, whom it names, and which way it goes from there.

mod http;
mod proxy;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use policy::{Channel, Connect, Host, Verdict, Wire};
use protocol::{DenyReason, OpId, Outgoing};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::deny::Denial;
use crate::dns::serve_tcp;
use crate::egress::Core;
use crate::life::Life;
use crate::request::Session;
use crate::sniff::{Spoken, sniff};
use crate::stream::Prefixed;
use crate::tunnel;

pub(crate) use http::{Busy, BusyOne};
pub(crate) use tls::Refused;

use http::serve_http1;
use proxy::proxy;
use tls::tls;

/// How long a connection may say nothing before it is clear what it speaks.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where a rule passes whatever it is: in some protocols the other side speaks first.
const GREETING_TIMEOUT: Duration = Duration::from_millis(300);
/// How long finding out whose it is may hold up a request.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);
const DNS_PORT: u16 = 53;

/// Which kind of door a connection came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// Any address leads here; the client does not know of us.
    Open,
    /// The client speaks to a proxy.
    Proxy,
}

/// Whose a connection is.
#[derive(Debug, Clone)]
enum Owner {
    Op(OpId),
    /// No operation's, as far as can be told.
    Nobody,
    /// Nobody could be asked, or answered in time.
    Unasked,
}

/// The program at the other end.
pub(crate) struct Client {
    pub(crate) core: Arc<Core>,
    /// The boot that it belongs to.
    pub(crate) life: Arc<Life>,
    owner: Shared<BoxFuture<'static, Owner>>,
    /// Its place among the sandbox's connections, for as long as anything of it is left.
    _place: OwnedSemaphorePermit,
}

impl Client {
    /// Returns the operation that it belongs to, as far as that can be told.
    pub(crate) async fn op(&self) -> Option<OpId> {
        match self.owner.clone().await {
            Owner::Op(op) => Some(op),
            Owner::Nobody | Owner::Unasked => None,
        }
    }

    /// Whether nobody could be asked for that.
    pub(crate) async fn is_unasked(&self) -> bool {
        matches!(self.owner.clone().await, Owner::Unasked)
    }

    /// Journals a refusal.
    pub(crate) async fn deny(&self, mut request: Outgoing, denial: &Denial) {
        request.op = self.op().await;
        self.core.denials.tell(request, denial).await;
    }
}

/// Whom a connection is to, before it has said so itself.
#[derive(Debug, Clone)]
pub(crate) struct Aim {
    /// The name that its address was given to, or that CONNECT named.
    name: Option<Host>,
    /// The address dialled, where it says anything: none after CONNECT.
    address: Option<Host>,
    port: u16,
}

/// What is known of a connection for the journal, before anything of a request is.
pub(crate) fn outline(protocol: &str, host: &Host, port: u16) -> Outgoing {
    Outgoing {
        op: None,
        protocol: protocol.to_owned(),
        host: host.to_string(),
        port,
        method: None,
        path: None,
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve(
    (core, life): (Arc<Core>, Arc<Life>),
    stream: TcpStream,
    peer: SocketAddr,
    entrance: Entrance,
    place: OwnedSemaphorePermit,
) {
    let Ok(local) = stream.local_addr() else {
        return;
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection is gone already");
        return;
    }
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    if entrance == Entrance::Open && local.port() == DNS_PORT {
        serve_tcp(stream, &core.answerer).await;
        return;
    }
    failpoint::hit("egress_accepted");
    // Asked at once: a short-lived process may be gone before its request is understood.
    let owners = core.owners.clone();
    let client = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let asked =
        tokio::spawn(async move { timeout(OWNER_TIMEOUT, owners.owner(client, local)).await });
    let owner = async move {
        match asked.await {
            Ok(Ok(Ok(Some(op)))) => Owner::Op(op),
            Ok(Ok(Ok(None))) => Owner::Nobody,
            Ok(Ok(Err(_)) | Err(_)) | Err(_) => Owner::Unasked,
        }
    };
    let owner = owner.boxed().shared();
    let client = Arc::new(Client {
        core,
        life,
        owner,
        _place: place,
    });
    let stream = Prefixed::new(stream);
    match entrance {
        Entrance::Open => {
            let aim = Aim {
                name: client.core.answerer.name_of(local.ip()),
                address: Some(Host::Ip(local.ip())),
                port: local.port(),
            };
            converse(client, stream, aim).await;
        }
        Entrance::Proxy => proxy(client, stream).await,
    }
}

/// Finds out what is spoken, and goes on from there.
async fn converse(client: Arc<Client>, mut stream: Prefixed<TcpStream>, aim: Aim) {
    let patience = if passes_anything(&client.core, &aim) {
        GREETING_TIMEOUT
    } else {
        HELLO_TIMEOUT
    };
    let spoken = match timeout(patience, sniff(&mut stream)).await {
        Ok(Ok(spoken)) => spoken,
        // It came and went without a word.
        Ok(Err(_)) => return,
        Err(_) if stream.held().is_empty() => {
            Spoken::Other("nothing, and waits for the other side to begin".to_owned())
        }
        Err(_) => Spoken::Other("something that did not come whole in time".to_owned()),
    };
    match spoken {
        // Boxed: each way needs memory of its own, and a connection goes one.
        Spoken::Tls(accepted) => Box::pin(tls(client, stream, aim, *accepted)).await,
        Spoken::Http => {
            let port = aim.port;
            let session = Session::plain(client, aim.name, aim.address, Some(port));
            Box::pin(serve_http1(Arc::new(session), stream)).await;
        }
        Spoken::Other(what) => Box::pin(other(client, stream, aim, &what)).await,
    }
}

/// Whether a rule passes any bytes to where a connection is to.
fn passes_anything(core: &Core, aim: &Aim) -> bool {
    let Some(host) = aim.name.as_ref().or(aim.address.as_ref()) else {
        return false;
    };
    let asked = Connect {
        host,
        port: aim.port,
        protocol: Wire::Unknown,
    };
    matches!(core.policy().connect(&asked), Verdict::Allow { .. })
}

/// Bytes of no kind that we know: only a rule that passes them as they are lets them out, and only to a name.
async fn other(client: Arc<Client>, stream: Prefixed<TcpStream>, aim: Aim, what: &str) {
    let Some(host) = aim.name.or(aim.address) else {
        return;
    };
    let port = aim.port;
    let asked = Connect {
        host: &host,
        port,
        protocol: Wire::Unknown,
    };
    let verdict = client.core.policy().connect(&asked);
    match verdict {
        Verdict::Allow {
            rule,
            grant: Channel::PassThrough,
        } => tunnel::run(&client, stream, host, port, rule, Wire::Unknown).await,
        Verdict::Deny {
            rule: rule @ Some(_),
            reason,
            message,
        } => {
            let denial = Denial::of_policy(rule, reason, message);
            client.deny(outline("tcp", &host, port), &denial).await;
        }
        _no_rule_passes_it => {
            let message = format!(
                "the connection to {}:{port} speaks {what}; only HTTP and TLS leave this sandbox, unless a rule with \
                 `action = \"passthrough\"` names the host and port",
                host.in_url()
            );
            let denial = Denial::forbidden(DenyReason::Protocol, message);
            client.deny(outline("tcp", &host, port), &denial).await;
        }
    }
}
