//! Connections: direct or by CONNECT, always TLS, one version of HTTP.

use std::sync::Arc;

use bench::Failure;
use bench::gateway::Task;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A request's body.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The longest answer to CONNECT.
const MAX_HEAD: usize = 8 << 10;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Makes connections for one task.
pub(crate) struct Wire<'a> {
    task: &'a Task,
    tls: TlsConnector,
    name: ServerName<'static>,
}

/// One connection.
pub(crate) enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl<'a> Wire<'a> {
    pub(crate) fn new(task: &'a Task) -> Result<Self, Failure> {
        let what = || format!("trust {}", task.roots.display());
        let mut roots = RootCertStore::empty();
        let certs = CertificateDer::pem_file_iter(&task.roots).map_err(Failure::cannot(what()))?;
        let (added, _ignored) = roots.add_parsable_certificates(certs.flatten());
        if added == 0 {
            return Err(Failure::wrong(format!(
                "{} holds no certificate",
                task.roots.display()
            )));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Failure::cannot("speak TLS"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let offered: &[u8] = if task.http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![offered.to_vec()];
        let host = task.authority.split(':').next().unwrap_or_default();
        let name = ServerName::try_from(host.to_owned())
            .map_err(Failure::cannot(format!("call {host} by its name")))?;
        Ok(Self {
            task,
            tls: TlsConnector::from(Arc::new(config)),
            name,
        })
    }

    pub(crate) async fn connect(&self) -> Result<Sender, Failure> {
        let what = || format!("connect to {}", self.task.address);
        let mut stream = TcpStream::connect(self.task.address)
            .await
            .map_err(Failure::cannot(what()))?;
        stream.set_nodelay(true).map_err(Failure::cannot(what()))?;
        if self.task.proxy {
            self.ask_proxy(&mut stream).await?;
        }
        let stream = self.tls.connect(self.name.clone(), stream);
        let stream = stream.await.map_err(Failure::cannot(format!(
            "speak TLS with {}",
            self.task.authority
        )))?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if is_http2 != self.task.http2 {
            return Err(Failure::wrong(
                "the other side speaks another version of HTTP",
            ));
        }
        let io = TokioIo::new(stream);
        let spoken = |what: &'static str| Failure::cannot(format!("speak {what}"));
        // Its error is also the error of the request that waits.
        if is_http2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .handshake(io)
                .await
                .map_err(spoken("HTTP/2"))?;
            tokio::spawn(async move { connection.await.unwrap_or_default() });
            Ok(Sender::Http2(sender))
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(spoken("HTTP/1.1"))?;
            tokio::spawn(async move { connection.await.unwrap_or_default() });
            Ok(Sender::Http1(sender))
        }
    }

    async fn ask_proxy(&self, stream: &mut TcpStream) -> Result<(), Failure> {
        let what = || format!("ask the proxy for {}", self.task.authority);
        let authority = &self.task.authority;
        let ask = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        stream
            .write_all(ask.as_bytes())
            .await
            .map_err(Failure::cannot(what()))?;
        let mut head = Vec::new();
        // Byte by byte: what comes after the head is TLS.
        while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
            let byte = stream.read_u8().await.map_err(Failure::cannot(what()))?;
            head.push(byte);
        }
        let head = String::from_utf8_lossy(&head);
        if head.split(' ').nth(1) == Some("200") {
            Ok(())
        } else {
            Err(Failure::wrong(format!("the proxy says {head}")))
        }
    }

    /// Sends one request and returns its answer, which must be a good one.
    pub(crate) async fn send(
        &self,
        sender: &mut Sender,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        let path = format!("{}{path}", self.task.prefix);
        let what = || format!("{method} {path}");
        let request = Request::builder().method(&method);
        let request = match sender {
            Sender::Http1(_) => request.uri(&path).header("host", &self.task.authority),
            Sender::Http2(_) => request.uri(format!("https://{}{path}", self.task.authority)),
        };
        let request = request.body(body).map_err(Failure::cannot(what()))?;
        let sent = match sender {
            Sender::Http1(sender) => {
                sender.ready().await.map_err(Failure::cannot(what()))?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.map_err(Failure::cannot(what()))?;
                sender.send_request(request).await
            }
        };
        let response = sent.map_err(Failure::cannot(what()))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(Failure::wrong(format!("{}: {}", what(), response.status())))
        }
    }
}
