//! A raw HTTP client: what a harness would see on its socket, byte for byte.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longer than anything takes here: a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn digest(&self) -> String {
        blake3::hash(&self.body).to_hex().to_string()
    }
}

pub(crate) trait Socket: io::Read + io::Write + Send {}
impl Socket for UnixStream {}
impl Socket for TcpStream {}

/// One connection with one request on it.
pub(crate) struct Call {
    socket: Box<dyn Socket>,
    raw: Vec<u8>,
}

impl Call {
    /// Sends a request with the dummy key that a harness has.
    pub(crate) fn send(socket: &Path, method: &str, path: &str, body: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::on(Box::new(stream), method, path, body)
    }

    pub(crate) fn on(
        mut socket: Box<dyn Socket>,
        method: &str,
        path: &str,
        body: &str,
    ) -> io::Result<Self> {
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: dummy\r\nauthorization: Bearer dummy\r\n\
             anthropic-version: 2023-06-01\r\naccept-encoding: gzip\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        let raw = Vec::new();
        Ok(Self { socket, raw })
    }

    /// Reads until the raw answer holds `word`.
    pub(crate) fn read_until(&mut self, word: &str) -> io::Result<()> {
        while !String::from_utf8_lossy(&self.raw).contains(word) {
            self.more()?;
        }
        Ok(())
    }

    /// Whether the raw answer so far holds `word`.
    pub(crate) fn holds(&self, word: &str) -> bool {
        String::from_utf8_lossy(&self.raw).contains(word)
    }

    /// Reads the whole answer; an error where the connection ended before it did.
    pub(crate) fn finish(self) -> io::Result<Reply> {
        self.finish_keeping().map(|(reply, _)| reply)
    }

    /// The same; returns the connection too, for the next request.
    pub(crate) fn finish_keeping(mut self) -> io::Result<(Reply, Box<dyn Socket>)> {
        let head_end = loop {
            if let Some(at) = self.raw.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            self.more()?;
        };
        let head = String::from_utf8(self.raw[..head_end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut rest = self.raw.split_off(head_end + 4);
        let lower = head.to_lowercase();
        let body = if lower.contains("transfer-encoding: chunked") {
            self.chunks(&mut rest)?
        } else {
            let length = lower.split("content-length: ").nth(1).unwrap_or("0");
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            self.fill(&mut rest, length)?;
            rest.split_off(0)
        };
        Ok((Reply { status, head, body }, self.socket))
    }

    fn chunks(&mut self, rest: &mut Vec<u8>) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        let mut at = 0;
        loop {
            let line = loop {
                match rest[at..].windows(2).position(|w| w == b"\r\n") {
                    Some(end) => break at + end,
                    None => self.fill_more(rest)?,
                }
            };
            let size = std::str::from_utf8(&rest[at..line]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            self.fill(rest, line + 2 + size + 2)?;
            body.extend(&rest[line + 2..line + 2 + size]);
            at = line + 2 + size + 2;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    fn fill(&mut self, rest: &mut Vec<u8>, length: usize) -> io::Result<()> {
        while rest.len() < length {
            self.fill_more(rest)?;
        }
        Ok(())
    }

    fn fill_more(&mut self, rest: &mut Vec<u8>) -> io::Result<()> {
        self.raw.clear();
        self.more()?;
        rest.append(&mut self.raw);
        Ok(())
    }

    fn more(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 256 << 10];
        // With a time limit a signal interrupts a read: a child of another test ended.
        let read = loop {
            match self.socket.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        match read {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.raw.extend(&buffer[..read]);
                Ok(())
            }
        }
    }
}
