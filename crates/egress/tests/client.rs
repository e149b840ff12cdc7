//! Clients as programs inside are.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::origin::{Body, Origin, text};
use crate::world::{PATIENCE, World, door};

/// Connects to a door and speaks TLS, trusting the world's authority and nobody else.
pub(crate) async fn tls(
    world: &World,
    to: SocketAddr,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_over(
        world.authority.cert_pem(),
        TcpStream::connect(to).await?,
        name,
        protocols,
    )
    .await
}

/// Speaks TLS on a connection, trusting one authority.
pub(crate) async fn tls_over(
    roots: &str,
    stream: TcpStream,
    name: &str,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut store = RootCertStore::empty();
    store
        .add(CertificateDer::from_pem_slice(roots.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// An HTTP connection that requests are sent on.
pub(crate) enum Http {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

impl Http {
    /// Connects to the door of an origin under a name.
    pub(crate) async fn open(world: &World, origin: &Origin, name: &str, version: Version) -> Self {
        let protocol = if version == Version::HTTP_2 {
            "h2"
        } else {
            "http/1.1"
        };
        let stream = tls(world, door(origin.port), name, &[protocol])
            .await
            .unwrap();
        assert_eq!(
            stream.get_ref().1.alpn_protocol(),
            Some(protocol.as_bytes())
        );
        Self::over(stream, version).await
    }

    pub(crate) async fn over<S>(stream: S, version: Version) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(stream);
        if version == Version::HTTP_2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::One(sender)
        }
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> hyper::Result<Response<Incoming>> {
        let sent = async {
            match self {
                Self::One(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Self::Two(sender) => sender.send_request(request).await,
            }
        };
        timeout(PATIENCE, sent).await.expect("an answer in time")
    }

    /// Sends a request for `https://host:port/path` and returns the answer as it begins.
    pub(crate) async fn ask(
        &mut self,
        method: &str,
        host: &str,
        port: u16,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Response<Incoming> {
        let authority = format!("{host}:{port}");
        let mut request = Request::builder().method(method);
        request = match self {
            Self::One(_) => request.uri(path).header("host", &authority),
            Self::Two(_) => request
                .version(Version::HTTP_2)
                .uri(format!("https://{authority}{path}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(body).unwrap()).await.unwrap()
    }

    pub(crate) async fn get(&mut self, host: &str, port: u16, path: &str) -> Answer {
        Answer::of(self.ask("GET", host, port, path, &[], text("")).await).await
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = timeout(PATIENCE, body.collect()).await.unwrap().unwrap();
        Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn denied_for(&self) -> &str {
        self.headers
            .get("x-durable-deny")
            .map_or("", |value| value.to_str().unwrap())
    }
}

/// Sends bytes over a connection and returns all that comes back.
pub(crate) async fn raw(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    bytes: &[u8],
) -> String {
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("an end in time");
    // A connection that is closed without TLS's goodbye has told everything as well.
    if let Err(error) = read {
        assert!(!answer.is_empty(), "{error}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}
