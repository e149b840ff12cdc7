//! DNS over TCP: each message behind its length.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Answerer, MAX_QUERY, answer_dns};

/// How long a query may take, and a connection may be idle.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers until the client ends, is too slow, or sends what is no query.
pub(crate) async fn serve_tcp<S>(mut stream: S, answerer: &Answerer)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut query = Vec::new();
    loop {
        match timeout(QUERY_TIMEOUT, exchange(&mut stream, answerer, &mut query)).await {
            Ok(Ok(true)) => {}
            _ended_or_too_slow_or_no_query => return,
        }
    }
}

/// Answers one query; false where it is none.
async fn exchange<S>(stream: &mut S, answerer: &Answerer, query: &mut Vec<u8>) -> io::Result<bool>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_QUERY {
        return Ok(false);
    }
    query.resize(length, 0);
    stream.read_exact(query).await?;
    let Some(answer) = answer_dns(answerer, query) else {
        return Ok(false);
    };
    let Ok(length) = u16::try_from(answer.len()) else {
        return Ok(false);
    };
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(&answer);
    stream.write_all(&framed).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queries_are_answered_one_after_the_other_until_one_is_none() {
        let (mut client, server) = tokio::io::duplex(4096);
        let serving = tokio::spawn(async move { serve_tcp(server, &Answerer::default()).await });
        let query = b"\0\x18\xab\xcd\x01\0\0\x01\0\0\0\0\0\0\x01a\x04test\0\0\x01\0\x01";
        for _ in 0..2 {
            // A byte at a time, as slow networks do.
            for byte in query {
                client.write_all(&[*byte]).await.unwrap();
            }
            let length = usize::from(client.read_u16().await.unwrap());
            let mut answer = vec![0; length];
            client.read_exact(&mut answer).await.unwrap();
            assert_eq!((&answer[..2], answer[7]), (&b"\xab\xcd"[..], 1));
        }
        client.write_all(&[0xff, 0xff]).await.unwrap();
        serving.await.unwrap();
    }
}
