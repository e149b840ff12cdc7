//! A registry that does what a test tells it: breaks off, redirects, lies.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use image::Digest;

use crate::images::Image;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection breaks after so many bytes of the body.
    pub(crate) cut: Option<usize>,
}

impl Response {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, log) = (Arc::new(answer), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                std::thread::spawn(move || serve(&stream.unwrap(), &*answer, &log));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    stream: &TcpStream,
    answer: &dyn Fn(&Request) -> Response,
    log: &Mutex<Vec<Request>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    };
    let first = line()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|l| l.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    std::io::Read::read_exact(&mut reader, &mut body).ok()?;
    let request = Request {
        method,
        path,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    log.lock().unwrap().push(request.clone());
    let response = answer(&request);
    let mut head = format!(
        "HTTP/1.1 {} x\r\nConnection: close\r\nContent-Length: {}\r\n",
        response.status,
        response.body.len()
    );
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = stream;
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    stream
        .write_all(&response.body[..response.cut.unwrap_or(response.body.len())])
        .ok()
}

/// Answers as an honest registry does for one image under the tag `1`.
pub(crate) fn honest(image: &Image, request: &Request) -> Response {
    let last = request.path.rsplit('/').next().unwrap_or_default();
    if request.path.contains("/manifests/") && (last == "1" || last == image.digest().to_string()) {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        return Response::ok(image.manifest.clone()).header("Content-Type", media_type);
    }
    let blobs = image.blobs.iter().chain([&image.config]);
    match blobs
        .into_iter()
        .find(|blob| Digest::of(blob).to_string() == last)
    {
        Some(blob) => ranged(blob, request),
        None => Response {
            body: br#"{"errors":[{"code":"X","message":"no such thing"}]}"#.to_vec(),
            ..Response::status(404)
        },
    }
}

pub(crate) fn ranged(blob: &[u8], request: &Request) -> Response {
    let range = request.headers.get("range").and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse::<usize>()
            .ok()
    });
    match range {
        None => Response::ok(blob),
        Some(start) => Response {
            status: 206,
            ..Response::ok(&blob[start..])
        }
        .header(
            "Content-Range",
            format!("bytes {start}-{}/{}", blob.len() - 1, blob.len()),
        ),
    }
}
