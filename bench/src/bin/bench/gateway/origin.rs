//! The other side of the world: HTTPS on loopback, both versions of HTTP, in this process.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bench::Failure;
use bench::gateway::{AUTHORIZED, EVENTS_PER_SECOND, OPEN, SMALL};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsAcceptor;

/// Its name, which leads to loopback in this process's own `/etc/hosts`.
pub(super) const NAME: &str = "origin.test";

const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
static PIECE: [u8; 64 << 10] = [0; 64 << 10];

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A running origin. Dropped, it is gone.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    /// Its certificate, PEM.
    pub(super) root: String,
    /// The same, in a file.
    pub(super) root_file: PathBuf,
    ended: watch::Sender<u64>,
    _runtime: Runtime,
}

impl Origin {
    pub(super) fn start(dir: &std::path::Path, secret: &str) -> Result<Self, Failure> {
        let what = "start an origin";
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec![NAME.to_owned()]).map_err(Failure::cannot(what))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Failure::cannot(what))?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .map_err(Failure::cannot(what))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let root_file = dir.join("origin.pem");
        std::fs::write(&root_file, cert.pem()).map_err(Failure::cannot(what))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(Failure::cannot(what))?;
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .map_err(Failure::cannot(what))?;
        let address = listener.local_addr().map_err(Failure::cannot(what))?;
        let ended = watch::Sender::new(0);
        let expected = HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(Failure::cannot("expect a secret"))?;
        let served = Arc::new(Served {
            expected,
            ended: ended.subscribe(),
        });
        let acceptor = TlsAcceptor::from(Arc::new(config));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, acceptor.clone(), served.clone()));
            }
        });
        Ok(Self {
            address,
            root: cert.pem(),
            root_file,
            ended,
            _runtime: runtime,
        })
    }

    pub(super) fn authority(&self) -> String {
        format!("{NAME}:{}", self.address.port())
    }

    /// Ends all streams that are held open.
    pub(super) fn end_held(&self) {
        self.ended.send_modify(|times| *times += 1);
    }
}

struct Served {
    expected: HeaderValue,
    ended: watch::Receiver<u64>,
}

/// Whoever breaks off is noticed by the other side, which knows why.
async fn serve(stream: TcpStream, acceptor: TlsAcceptor, served: Arc<Served>) {
    let Ok(()) = stream.set_nodelay(true) else {
        return;
    };
    let Ok(stream) = acceptor.accept(stream).await else {
        return;
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| {
        let served = served.clone();
        async move { Ok::<_, Infallible>(answer(&served, request).await) }
    });
    let io = TokioIo::new(stream);
    let _ended = if is_http2 {
        http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(1000)
            .serve_connection(io, service)
            .await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

async fn answer(served: &Served, request: Request<Incoming>) -> Response<Body> {
    let authorized = request.headers().get(AUTHORIZATION) == Some(&served.expected);
    let path = request.uri().path().to_owned();
    // The first segment says by which rule it comes.
    let mut segments = path.split('/').skip(2);
    let (what, count) = (segments.next(), segments.next());
    let count: usize = count.and_then(|count| count.parse().ok()).unwrap_or(0);
    let mut response = match what {
        Some("small") => {
            Response::new(Full::new(Bytes::from_static(&PIECE[..SMALL])).boxed_unsync())
        }
        Some("bytes") => Response::new(Zeros(count).boxed_unsync()),
        Some("take") => Response::new(take(request.into_body()).await),
        Some("events") => events(count),
        Some("hold") => Response::new(hold(served.ended.clone())),
        _unknown => {
            let mut response = Response::new(Full::default().boxed_unsync());
            *response.status_mut() = StatusCode::NOT_FOUND;
            response
        }
    };
    let word = if authorized { "true" } else { "false" };
    let word = HeaderValue::from_static(word);
    response.headers_mut().insert(AUTHORIZED, word);
    response
}

/// Says how many bytes came.
async fn take(mut body: Incoming) -> Body {
    let mut came = 0;
    while let Some(Ok(frame)) = body.frame().await {
        came += frame.data_ref().map_or(0, Bytes::len);
    }
    Full::new(Bytes::from(came.to_string())).boxed_unsync()
}

/// Each event is the time at which it was sent.
fn events(count: usize) -> Response<Body> {
    let (pieces, body) = pieces();
    tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_secs(1) / EVENTS_PER_SECOND);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..count {
            every.tick().await;
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let event = format!("data: {}\n\n", now.as_nanos());
            if pieces.send(event.into()).await.is_err() {
                return;
            }
        }
    });
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Something at once, and the end when it is told.
fn hold(mut ended: watch::Receiver<u64>) -> Body {
    let (pieces, body) = pieces();
    ended.mark_unchanged();
    tokio::spawn(async move {
        let first = pieces.send(Bytes::from_static(&PIECE[..SMALL])).await;
        if first.is_ok() && ended.changed().await.is_ok() {
            // Who went away needs no end.
            let _gone = pieces.send(Bytes::from_static(OPEN.as_bytes())).await;
        }
    });
    body
}

fn pieces() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, Pieces(receiver).boxed_unsync())
}

/// What somebody sends, piece by piece.
struct Pieces(mpsc::Receiver<Bytes>);

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// So many zeros.
struct Zeros(usize);

impl HttpBody for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        let count = self.0.min(PIECE.len());
        self.0 -= count;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE[..count])))))
    }

    fn is_end_stream(&self) -> bool {
        self.0 == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0 as u64)
    }
}
