//! An origin: HTTP/1.1 and HTTP/2 over TLS, or HTTP/1.1 without. It writes down whatever reaches it.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// What reached an origin.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) version: Version,
    pub(crate) uri: String,
    pub(crate) headers: HeaderMap,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) port: u16,
    /// Who vouches for it, as PEM; empty without TLS.
    pub(crate) roots: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    repositories: Arc<tempfile::TempDir>,
    /// Connections that were accepted.
    connections: Arc<Mutex<usize>>,
    /// Events that the next `/events` sends, as they come.
    events: Arc<Mutex<Option<mpsc::UnboundedReceiver<&'static str>>>>,
}

impl Origin {
    /// One behind TLS, for these names; `h2` says whether it speaks HTTP/2 as well.
    pub(crate) async fn tls(names: &[&str], h2: bool) -> Self {
        let (config, roots) = certified(names, h2);
        Self::start(Some(TlsAcceptor::from(Arc::new(config))), roots).await
    }

    /// One without TLS.
    pub(crate) async fn plain() -> Self {
        Self::start(None, String::new()).await
    }

    /// One behind TLS at a given address.
    pub(crate) async fn tls_at(address: &str, names: &[&str]) -> Self {
        let (config, roots) = certified(names, true);
        let listener = TcpListener::bind(address).await.unwrap();
        Self::listen(listener, Some(TlsAcceptor::from(Arc::new(config))), roots)
    }

    async fn start(tls: Option<TlsAcceptor>, roots: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::listen(listener, tls, roots)
    }

    fn listen(listener: TcpListener, tls: Option<TlsAcceptor>, roots: String) -> Self {
        let origin = Self {
            port: listener.local_addr().unwrap().port(),
            roots,
            seen: Arc::default(),
            connections: Arc::default(),
            events: Arc::default(),
            repositories: Arc::new(tempfile::tempdir().unwrap()),
        };
        let own = origin.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                *own.connections.lock().unwrap() += 1;
                let (own, tls) = (own.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        // A client that does not trust us ends here.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                own.serve(stream).await;
                            }
                        }
                        None => own.serve(stream).await,
                    }
                });
            }
        });
        origin
    }

    async fn serve<S>(self, stream: S)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(move |request| {
            let own = self.clone();
            async move { Ok::<_, Infallible>(own.answer(request).await) }
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        // A client that breaks off is part of the tests.
        drop(
            builder
                .serve_connection_with_upgrades(TokioIo::new(stream), service)
                .await,
        );
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Returns where to put the events that `/events` sends.
    pub(crate) fn events(&self) -> mpsc::UnboundedSender<&'static str> {
        let (send, events) = mpsc::unbounded_channel();
        *self.events.lock().unwrap() = Some(events);
        send
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<Body> {
        self.seen.lock().unwrap().push(Seen {
            version: request.version(),
            uri: request.uri().to_string(),
            headers: request.headers().clone(),
        });
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/echo" => {
                let mut response =
                    Response::new(request.into_body().map_err(io::Error::other).boxed_unsync());
                response
                    .headers_mut()
                    .insert("alt-svc", "h3=\":443\"".parse().unwrap());
                response
            }
            "/sink" => {
                let mut body = request.into_body();
                let mut bytes = 0;
                while let Some(Ok(frame)) = body.frame().await {
                    bytes += frame.data_ref().map_or(0, Bytes::len);
                }
                Response::new(text(bytes.to_string()))
            }
            "/events" => self.stream_events(),
            "/quiet" => {
                // One event, and then nothing for ever.
                let first =
                    futures_util::stream::iter([Ok(Frame::data(Bytes::from("data: 1\n\n")))]);
                let frames = futures_util::StreamExt::chain(first, futures_util::stream::pending());
                Response::new(StreamBody::new(frames).boxed_unsync())
            }
            "/flood" => {
                let count: usize = request.uri().query().unwrap().parse().unwrap();
                Response::new(flood(count))
            }
            "/reflect" => {
                // Says back what it was sent, as careless services do.
                let shown = format!(
                    "{:?}",
                    request
                        .headers()
                        .get("authorization")
                        .map(|value| value.as_bytes().to_vec())
                );
                let raw = request
                    .headers()
                    .get("authorization")
                    .map_or(&b""[..], |value| value.as_bytes());
                let body = [raw, b" ", shown.as_bytes()].concat();
                let mut response = Response::new(text(body));
                if let Some(value) = request.headers().get("authorization") {
                    response.headers_mut().insert("x-you-sent", value.clone());
                }
                response
            }
            "/elsewhere" => {
                let mut response = Response::new(text(""));
                *response.status_mut() = StatusCode::FOUND;
                response
                    .headers_mut()
                    .insert("location", "https://evil.test/".parse().unwrap());
                response
            }
            "/trailers" => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                let frames = [
                    Ok(Frame::data(Bytes::from("message"))),
                    Ok(Frame::trailers(trailers)),
                ];
                Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
            }
            "/ws" => {
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let mut stream = TokioIo::new(upgrade.await.unwrap());
                    let (mut read, mut write) = tokio::io::split(&mut stream);
                    // Ends when the client does.
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
                let mut response = Response::new(text(""));
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response
                    .headers_mut()
                    .insert("upgrade", "websocket".parse().unwrap());
                response
                    .headers_mut()
                    .insert("connection", "upgrade".parse().unwrap());
                response
            }
            path if path.contains(".git/") && self.repositories().join("acme").exists() => {
                self.git(request).await
            }
            // hyper itself would send the body of an answer to HEAD over HTTP/2.
            _ if request.method() == http::Method::HEAD => {
                let mut response = Response::new(text(""));
                response
                    .headers_mut()
                    .insert("content-length", "5".parse().unwrap());
                response
            }
            _ => Response::new(text("hello")),
        }
    }

    /// Returns where this origin's repositories are.
    pub(crate) fn repositories(&self) -> &std::path::Path {
        self.repositories.path()
    }

    /// Has git itself answer (`git http-backend`); pushes are allowed.
    async fn git(&self, request: Request<Incoming>) -> Response<Body> {
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
                .to_owned()
        };
        let mut git = tokio::process::Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", self.repositories())
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REMOTE_USER", "somebody")
            .env("PATH_INFO", request.uri().path())
            .env("QUERY_STRING", request.uri().query().unwrap_or_default())
            .env("REQUEST_METHOD", request.method().as_str())
            .env("CONTENT_TYPE", header("content-type"))
            .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
            .env("GIT_PROTOCOL", header("git-protocol"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = git.stdin.take().unwrap();
        let mut body = request.into_body();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                if let Some(data) = frame.data_ref()
                    && stdin.write_all(data).await.is_err()
                {
                    break;
                }
            }
        });
        let mut stdout = tokio::io::BufReader::new(git.stdout.take().unwrap());
        let mut response = Response::builder();
        loop {
            let mut line = String::new();
            stdout.read_line(&mut line).await.unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            response = match name {
                "Status" => response.status(value.split(' ').next().unwrap()),
                _ => response.header(name, value),
            };
        }
        let frames = futures_util::stream::unfold((stdout, git), |(mut stdout, git)| async move {
            let mut piece = bytes::BytesMut::with_capacity(32 << 10);
            let read = stdout.read_buf(&mut piece).await.unwrap();
            (read > 0).then(|| (Ok(Frame::data(piece.freeze())), (stdout, git)))
        });
        response
            .body(StreamBody::new(frames).boxed_unsync())
            .unwrap()
    }

    fn stream_events(&self) -> Response<Body> {
        let events = self.events.lock().unwrap().take().unwrap();
        let frames = futures_util::stream::unfold(events, |mut events| async {
            let event = events.recv().await?;
            Some((Ok(Frame::data(Bytes::from(event))), events))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response
            .headers_mut()
            .insert("content-type", "text/event-stream".parse().unwrap());
        response
    }
}

/// So many bytes, made as they are wanted.
pub(crate) fn flood(count: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    let frames = futures_util::stream::unfold((count, piece), |(left, piece)| async move {
        if left == 0 {
            return None;
        }
        let now = piece.slice(..left.min(piece.len()));
        Some((Ok(Frame::data(now.clone())), (left - now.len(), piece)))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Returns what an origin answers TLS with, and who vouches for it.
fn certified(names: &[&str], h2: bool) -> (ServerConfig, String) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let roots = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let cert = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if h2 {
        config.alpn_protocols.insert(0, b"h2".to_vec());
    }
    (config, roots)
}

/// A rule of a policy for an origin; `more` is further lines of it.
pub(crate) fn rule(name: &str, host: &str, origin: &Origin, more: &str) -> String {
    let mut text = format!(
        "[[rule]]\nname = \"{name}\"\naction = \"allow\"\nhosts = [\"{host}\"]\nports = [{}]\naddresses = [\"127.0.0.1\"]\n{more}\n",
        origin.port
    );
    if origin.roots.is_empty() {
        text.push_str("plain = true\n");
    } else {
        text.push_str(&format!("roots = \"\"\"\n{}\"\"\"\n", origin.roots));
    }
    text
}

/// A line for [`rule`] that makes the gateway look into it.
pub(crate) const LOOK: &str = "paths = [\"/**\"]";
