//! A server of the internet as a test sees it: HTTPS or HTTP on loopback, which keeps everything that it was sent.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::{Res, trouble};

/// One request as it arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its first line.
    pub line: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Seen {
    /// Returns a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    more: Condvar,
    /// Paths with a status line's end and a body of their own.
    said: Mutex<Vec<(String, String, String)>>,
    /// How many of the requests that are held may be answered.
    released: Mutex<usize>,
    release: Condvar,
}

/// Where it listens unless the test says so: a free port of the loopback.
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Answers a path with `/reflect` in it with the request's own head, and everything else with `ok` and its path; `/coded` as if it
/// were gzip, `/elsewhere` with a redirection to `evil.test`, `/h3` with the offer to go on over HTTP/3, and
/// `/held` once it was released.
pub struct Origin {
    /// The port that it listens on.
    pub port: u16,
    /// Its certificate, PEM; empty without TLS.
    pub root: String,
    log: Arc<Log>,
}

impl Origin {
    /// Starts one with a certificate of its own for these names.
    ///
    /// # Errors
    /// No port, or no certificate.
    pub fn https(names: &[&str]) -> Res<Self> {
        Self::https_at(ANYWHERE, names)
    }

    /// Starts one at an address of the calling thread's network namespace.
    ///
    /// # Errors
    /// As [`Self::https`].
    pub fn https_at(address: SocketAddr, names: &[&str]) -> Res<Self> {
        let (root, config) = certified(names)?;
        Self::start(address, root, Some(config))
    }

    /// Starts one without TLS.
    ///
    /// # Errors
    /// No port.
    pub fn http() -> Res<Self> {
        Self::http_at(ANYWHERE)
    }

    /// Starts one without TLS at an address of the calling thread's network namespace.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn http_at(address: SocketAddr) -> Res<Self> {
        Self::start(address, String::new(), None)
    }

    fn start(address: SocketAddr, root: String, tls: Option<Arc<ServerConfig>>) -> Res<Self> {
        let listener = TcpListener::bind(address)?;
        let port = listener.local_addr()?.port();
        let log = Arc::new(Log::default());
        let keeps = Arc::clone(&log);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (keeps, tls) = (Arc::clone(&keeps), tls.clone());
                // Whoever breaks off is seen by what is missing.
                std::thread::spawn(move || serve(stream, tls, &keeps));
            }
        });
        Ok(Self { port, root, log })
    }

    /// Answers a path with something else: `201 Created`, say, and a body of JSON.
    pub fn says(&self, path: &str, status: &str, body: &str) {
        let said = (path.to_owned(), status.to_owned(), body.to_owned());
        let all = self.log.said.lock();
        all.unwrap_or_else(PoisonError::into_inner).push(said);
    }

    /// Returns what came so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.log.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets one request for `/held` be answered.
    pub fn release(&self) {
        let released = self.log.released.lock();
        *released.unwrap_or_else(PoisonError::into_inner) += 1;
        self.log.release.notify_all();
    }

    /// Waits until so many requests have come.
    #[must_use]
    pub fn wait(&self, count: usize, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut seen = self.log.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while seen.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.log.more.wait_timeout(seen, left);
            seen = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Makes a certificate for these names: itself (PEM), and what a server does with it.
///
/// # Errors
/// There is none for such names.
pub fn certified(names: &[&str]) -> Res<(String, Arc<ServerConfig>)> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(names).map_err(|e| trouble(e.to_string()))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| trouble(e.to_string()))?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .map_err(|e| trouble(e.to_string()))?;
    Ok((cert.pem(), Arc::new(config)))
}

fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, log: &Log) -> io::Result<()> {
    match tls {
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            answer(StreamOwned::new(connection, stream), log)
        }
        None => answer(stream, log),
    }
}

fn answer<S: Read + Write>(stream: S, log: &Log) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let Some(seen) = request(&mut stream)? else {
            return Ok(());
        };
        let path = seen.line.split(' ').nth(1).unwrap_or("/").to_owned();
        let body = if path.contains("/reflect") {
            let head = seen.headers.iter();
            head.map(|(name, value)| format!("{name}: {value}\n"))
                .collect()
        } else {
            format!("ok {path}\n")
        };
        let said = log.said.lock().unwrap_or_else(PoisonError::into_inner);
        let own = said.iter().find(|(at, ..)| *at == path).cloned();
        drop(said);
        let (status, kind, body) = match own {
            Some((_, status, body)) => (status, "application/json", body),
            None if path == "/elsewhere" => ("302 Found".to_owned(), "text/plain", body),
            None => ("200 OK".to_owned(), "text/plain", body),
        };
        let header = match path.as_str() {
            "/coded" => "content-encoding: gzip\r\n",
            "/elsewhere" => "location: https://evil.test/stolen\r\n",
            "/h3" => "alt-svc: h3=\":443\"\r\n",
            _ => "",
        };
        log.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seen);
        log.more.notify_all();
        if path.starts_with("/held") {
            let released = log.released.lock();
            let released = released.unwrap_or_else(PoisonError::into_inner);
            let held = log.release.wait_while(released, |released| *released == 0);
            *held.unwrap_or_else(PoisonError::into_inner) -= 1;
        }
        let to = stream.get_mut();
        write!(
            to,
            "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{header}content-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        to.flush()?;
    }
}

fn request(from: &mut impl io::BufRead) -> io::Result<Option<Seen>> {
    let mut seen = Seen::default();
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    seen.line = line.trim_end().to_owned();
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        let header = (name.to_ascii_lowercase(), value.trim().to_owned());
        seen.headers.push(header);
    }
    let is_chunked = seen.header("transfer-encoding") == Some("chunked");
    if is_chunked {
        loop {
            let mut size = String::new();
            from.read_line(&mut size)?;
            let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size];
            from.read_exact(&mut chunk)?;
            from.read_line(&mut String::new())?;
            if size == 0 {
                return Ok(Some(seen));
            }
            seen.body.extend(chunk);
        }
    }
    let length = seen.header("content-length");
    let length = length.map_or(Ok(0), str::parse).map_err(io::Error::other)?;
    seen.body = vec![0; length];
    from.read_exact(&mut seen.body)?;
    Ok(Some(seen))
}
