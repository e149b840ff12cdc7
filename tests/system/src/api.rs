//! A small HTTP/1.1 client of the daemon's Unix socket or TCP port: one connection, kept alive, no library in between.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::{Res, trouble};

trait Stream: Read + Write + Send {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}

/// A connection.
pub struct Api {
    stream: BufReader<Box<dyn Stream>>,
    token: Option<String>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads the body as JSON.
    ///
    /// # Errors
    /// It is none, or the status is no success.
    pub fn json(&self) -> Res<Value> {
        if !(200..300).contains(&self.status) {
            return Err(trouble(format!(
                "status {}: {}",
                self.status,
                String::from_utf8_lossy(&self.body)
            )));
        }
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_slice(&self.body)?)
    }
}

impl Api {
    /// Connects to a daemon's socket.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn unix(path: &Path) -> Res<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self {
            stream: BufReader::new(Box::new(stream)),
            token: None,
        })
    }

    /// Connects to a daemon's TCP address.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn tcp(address: &str, token: Option<&str>) -> Res<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self {
            stream: BufReader::new(Box::new(stream)),
            token: token.map(str::to_owned),
        })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// The connection broke, or the answer is no HTTP.
    pub fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Res<Answer> {
        let token = self.token.as_ref();
        let token = token.map_or(String::new(), |t| format!("Authorization: Bearer {t}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: durable\r\n{token}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        self.answer()
    }

    /// Sends JSON and reads JSON.
    ///
    /// # Errors
    /// As [`Self::send`], or a status that is no success.
    pub fn call(&mut self, method: &str, path: &str, body: &Value) -> Res<Value> {
        let body = if body.is_null() {
            Vec::new()
        } else {
            serde_json::to_vec(body)?
        };
        self.send(method, path, &body)?.json()
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn get(&mut self, path: &str) -> Res<Value> {
        self.call("GET", path, &Value::Null)
    }

    fn line(&mut self) -> Res<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(trouble("the connection broke"));
        }
        Ok(line.trim_end().to_owned())
    }

    fn answer(&mut self) -> Res<Answer> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status: u16 = status.ok_or_else(|| trouble("no HTTP status"))?;
        let mut length = 0;
        let mut chunked = false;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size = self.line()?;
                let size = usize::from_str_radix(size.split(';').next().unwrap_or("0"), 16)?;
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..])?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else {
            body.resize(length, 0);
            self.stream.read_exact(&mut body)?;
        }
        Ok(Answer { status, body })
    }
}
