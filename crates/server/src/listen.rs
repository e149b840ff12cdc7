//! Where the API is heard: a Unix socket, and TCP with a token.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header::AUTHORIZATION};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use protocol::{ApiError, ErrorCode};
use tokio::net::{TcpListener, UnixListener};

use crate::error::Refused;

/// One place where the API is heard.
#[derive(Debug)]
pub enum Listener {
    /// Whoever may open the socket may do all.
    Unix(UnixListener),
    /// Whoever has the token may do all.
    Tcp(TcpListener, Arc<str>),
}

impl Listener {
    /// Listens on TCP for holders of `token`.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn tcp(address: SocketAddr, token: &str) -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind(address).await?, token.into()))
    }
}

/// Serves until the listener fails.
///
/// # Errors
/// What the listener says.
pub async fn serve(listener: Listener, router: Router) -> io::Result<()> {
    match listener {
        Listener::Unix(listener) => loop {
            let (stream, _) = listener.accept().await?;
            connection(stream, router.clone());
        },
        Listener::Tcp(listener, token) => {
            let router = router.layer(middleware::from_fn(move |request, next| {
                authorised(token.clone(), request, next)
            }));
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                connection(stream, router.clone());
            }
        }
    }
}

fn connection<S>(stream: S, router: Router)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let service = TowerToHyperService::new(router);
        let serving = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = serving.await {
            tracing::debug!(%error, "a client's connection ended early");
        }
    });
}

async fn authorised(token: Arc<str>, request: Request<Body>, next: Next) -> Response {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .map(|value| value.as_bytes());
    let given = given
        .and_then(|value| value.strip_prefix(b"Bearer "))
        .unwrap_or_default();
    // Hashes are compared, so the time taken says nothing about the token.
    if blake3::hash(given) == blake3::hash(token.as_bytes()) {
        return next.run(request).await;
    }
    let refused = ApiError::new(ErrorCode::Denied, "this address needs the daemon's token").hint(
        "send `Authorization: Bearer TOKEN` with the content of the data directory's `token` file",
    );
    (StatusCode::UNAUTHORIZED, Refused::from(refused)).into_response()
}
