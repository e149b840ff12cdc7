//! A small HTTP/1.1 client of the daemon's Unix socket or TCP port: one connection, kept alive, no library in between.

use std::collections::BTreeMap;
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
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns a header, empty where there is none.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

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
        self.send_with(method, path, &[], body)
    }

    /// Sends a request with headers of its own and reads the whole answer.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Res<Answer> {
        self.begin(method, path, headers, body.len(), body)?;
        self.answer(method == "HEAD")
    }

    /// Sends a request whose body is to have `length` bytes, with only `body` of them.
    ///
    /// # Errors
    /// The connection broke.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        length: usize,
        body: &[u8],
    ) -> Res<()> {
        let more = headers.iter();
        let more: String = more
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let token = self.token.as_ref();
        let token = token.map_or(String::new(), |t| format!("Authorization: Bearer {t}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: durable\r\n{token}{more}Content-Length: {length}\r\n\r\n"
        );
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request)?;
        Ok(())
    }

    /// Asks for a body and throws it away; returns how long it was. `look` is called now and then.
    ///
    /// # Errors
    /// As [`Self::send`], or a body that ends too early.
    pub fn drain(&mut self, path: &str, mut look: impl FnMut()) -> Res<u64> {
        self.begin("GET", path, &[], 0, &[])?;
        let (status, headers) = self.head()?;
        if status != 200 {
            return Err(trouble(format!("status {status}")));
        }
        let length: u64 = headers.get("content-length").map_or(Ok(0), |l| l.parse())?;
        let mut left = length;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left)?);
            let read = self.stream.read(&mut buffer[..most])?;
            if read == 0 {
                return Err(trouble("the body ends too early"));
            }
            left -= read as u64;
            look();
        }
        Ok(length)
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

    fn head(&mut self) -> Res<(u16, BTreeMap<String, String>)> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status: u16 = status.ok_or_else(|| trouble("no HTTP status"))?;
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok((status, headers));
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }

    fn answer(&mut self, headless: bool) -> Res<Answer> {
        let (status, headers) = self.head()?;
        let length = headers.get("content-length");
        let length = length.map_or(Ok(0), |l| l.parse())?;
        let coding = headers.get("transfer-encoding");
        let chunked = coding.is_some_and(|c| c.to_ascii_lowercase().contains("chunked"));
        if headless || status == 304 || status == 204 {
            return Ok(Answer {
                status,
                headers,
                body: Vec::new(),
            });
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
        Ok(Answer {
            status,
            headers,
            body,
        })
    }
}
