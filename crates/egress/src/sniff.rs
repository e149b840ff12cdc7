//! What a connection speaks, from its first bytes. Nothing is answered before that is known.

use std::io;

use rustls::server::{Accepted, Acceptor};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::stream::Prefixed;

/// The longest hello or request line that is waited for; post-quantum key shares make hellos of two kilobytes.
const MAX_HELLO: usize = 16 << 10;
/// No method of HTTP is longer.
const MAX_METHOD: usize = 24;

/// What a connection begins with.
pub(crate) enum Spoken {
    /// TLS. Its hello was taken in; the bytes are still held for who passes them on.
    Tls(Box<Accepted>),
    /// A request line of HTTP/1.
    Http,
    /// Something else; the text says what, for a message.
    Other(String),
}

/// Reads until it is clear what is spoken.
pub(crate) async fn sniff<S>(stream: &mut Prefixed<S>) -> io::Result<Spoken>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if stream.held().is_empty() && stream.fill(MAX_HELLO).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if stream.held()[0] == 0x16 {
        return hello(stream).await;
    }
    loop {
        match verdict(stream.held()) {
            Some(spoken) => return Ok(spoken),
            None if stream.fill(MAX_HELLO).await? == 0 => {
                return Ok(Spoken::Other("an incomplete line".to_owned()));
            }
            None => {}
        }
    }
}

/// Judges the bytes that are not TLS; none where more must come.
fn verdict(bytes: &[u8]) -> Option<Spoken> {
    let other = |what: &str| Some(Spoken::Other(what.to_owned()));
    if bytes.starts_with(b"SSH-") {
        return other("SSH");
    }
    if b"PRI * HTTP/2.0".starts_with(&bytes[..bytes.len().min(14)]) {
        return if bytes.len() >= 4 {
            other("HTTP/2 without TLS")
        } else {
            None
        };
    }
    let method = bytes.iter().take_while(|byte| is_token(**byte)).count();
    match bytes.get(method) {
        None if method <= MAX_METHOD => None,
        Some(b' ') if (1..=MAX_METHOD).contains(&method) => Some(Spoken::Http),
        // A blank line before a request: some clients end a body with one.
        Some(b'\r' | b'\n') if method == 0 => Some(Spoken::Http),
        _ => other("neither TLS nor HTTP"),
    }
}

/// Whether a byte may stand in a method or header name.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

async fn hello<S>(stream: &mut Prefixed<S>) -> io::Result<Spoken>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut acceptor = Acceptor::default();
    let mut fed = 0;
    loop {
        let mut news = &stream.held()[fed..];
        while !news.is_empty() {
            if acceptor.read_tls(&mut news)? == 0 {
                break;
            }
        }
        fed = stream.held().len();
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(Spoken::Tls(Box::new(accepted))),
            Ok(None) => {}
            Err((error, _alert)) => {
                return Ok(Spoken::Other(format!(
                    "a TLS hello that is not usable ({error})"
                )));
            }
        }
        if stream.fill(MAX_HELLO).await? == 0 {
            return Ok(Spoken::Other("an incomplete TLS hello".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bytes: &[u8]) -> &'static str {
        match verdict(bytes) {
            None => "more",
            Some(Spoken::Http) => "http",
            Some(Spoken::Tls(_)) => "tls",
            Some(Spoken::Other(_)) => "other",
        }
    }

    #[test]
    fn the_first_bytes_tell_what_is_spoken() {
        for (bytes, expected) in [
            (&b"G"[..], "more"),
            (b"GET", "more"),
            (b"GET ", "http"),
            (b"PROPFIND /", "http"),
            (b"P", "more"),
            (b"PRI", "more"),
            (b"PRI * HTTP/2.0\r\n", "other"),
            (b"PUT /", "http"),
            (b"SSH-2.0-x\r\n", "other"),
            (b"\r\nGET / ", "http"),
            (b" GET /", "other"),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", "other"),
            (&[b'A'; 25], "other"),
        ] {
            assert_eq!(told(bytes), expected, "{bytes:?}");
        }
    }
}
