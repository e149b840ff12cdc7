//! The measurements.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bench::Failure;
use bench::gateway::{AUTHORIZED, Measured, OPEN, SMALL, Task, What};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{Method, Response};

use crate::wire::{Body, Sender, Wire};

const MEBIBYTE: f64 = (1 << 20) as f64;
/// What is sent at once of an upload, and what each piece is made of.
static PIECE: [u8; 64 << 10] = [0; 64 << 10];
/// Requests that only make the connection warm.
const WARM_UP: usize = 20;

pub(crate) async fn run(task: &Task) -> Result<Measured, Failure> {
    let wire = Wire::new(task)?;
    let mut found = Found {
        values: Vec::new(),
        authorized: true,
    };
    match task.what {
        What::Warm(count) => warm(&wire, count, &mut found).await?,
        What::Cold(count) => {
            for _ in 0..count {
                let begun = Instant::now();
                let mut sender = wire.connect().await?;
                small(&wire, &mut sender, &mut found).await?;
                found.values.push(millis(begun));
            }
        }
        What::Download(bytes) => download(&wire, bytes, &mut found).await?,
        What::Upload(bytes) => upload(&wire, bytes, &mut found).await?,
        What::Events(count) => events(&wire, count, &mut found).await?,
        What::Hold(streams, connections) => hold(&wire, streams, connections, &mut found).await?,
    }
    Ok(Measured {
        values: found.values,
        authorized: found.authorized,
    })
}

struct Found {
    values: Vec<f64>,
    authorized: bool,
}

impl Found {
    fn look(&mut self, response: &Response<Incoming>) {
        let word = response.headers().get(AUTHORIZED);
        self.authorized &= word.is_some_and(|word| word == "true");
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn nothing() -> Body {
    Empty::new().boxed_unsync()
}

async fn small(wire: &Wire<'_>, sender: &mut Sender, found: &mut Found) -> Result<(), Failure> {
    let response = wire.send(sender, Method::GET, "/small", nothing()).await?;
    found.look(&response);
    let body = response.into_body().collect().await;
    let body = body.map_err(Failure::cannot("read /small"))?.to_bytes();
    if body.len() == SMALL && body.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(Failure::wrong(format!("/small has {} bytes", body.len())))
    }
}

async fn warm(wire: &Wire<'_>, count: usize, found: &mut Found) -> Result<(), Failure> {
    let mut sender = wire.connect().await?;
    for _ in 0..WARM_UP {
        small(wire, &mut sender, found).await?;
    }
    for _ in 0..count {
        let begun = Instant::now();
        small(wire, &mut sender, found).await?;
        found.values.push(millis(begun));
    }
    Ok(())
}

async fn download(wire: &Wire<'_>, bytes: usize, found: &mut Found) -> Result<(), Failure> {
    let mut sender = wire.connect().await?;
    small(wire, &mut sender, found).await?;
    let begun = Instant::now();
    let path = format!("/bytes/{bytes}");
    let response = wire
        .send(&mut sender, Method::GET, &path, nothing())
        .await?;
    found.look(&response);
    let mut body = response.into_body();
    let (mut came, mut zeros) = (0, true);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Failure::cannot("read a download"))?;
        if let Ok(data) = frame.into_data() {
            came += data.len();
            zeros &= data
                .chunks(PIECE.len())
                .all(|part| part == &PIECE[..part.len()]);
        }
    }
    found
        .values
        .push(bytes as f64 / MEBIBYTE / begun.elapsed().as_secs_f64());
    if came == bytes && zeros {
        Ok(())
    } else {
        Err(Failure::wrong(format!(
            "{came} of {bytes} bytes came, zeros: {zeros}"
        )))
    }
}

/// So many zeros.
struct Zeros(usize);

impl HttpBody for Zeros {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
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

async fn upload(wire: &Wire<'_>, bytes: usize, found: &mut Found) -> Result<(), Failure> {
    let mut sender = wire.connect().await?;
    small(wire, &mut sender, found).await?;
    let begun = Instant::now();
    let body = Zeros(bytes).boxed_unsync();
    let response = wire.send(&mut sender, Method::POST, "/take", body).await?;
    found.look(&response);
    let answer = response.into_body().collect().await;
    let answer = answer.map_err(Failure::cannot("read /take"))?.to_bytes();
    found
        .values
        .push(bytes as f64 / MEBIBYTE / begun.elapsed().as_secs_f64());
    if answer == bytes.to_string().as_bytes() {
        Ok(())
    } else {
        Err(Failure::wrong(format!(
            "of {bytes} bytes the origin got {}",
            String::from_utf8_lossy(&answer)
        )))
    }
}

async fn events(wire: &Wire<'_>, count: usize, found: &mut Found) -> Result<(), Failure> {
    let mut sender = wire.connect().await?;
    let path = format!("/events/{count}");
    let response = wire
        .send(&mut sender, Method::GET, &path, nothing())
        .await?;
    found.look(&response);
    let mut body = response.into_body();
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(Failure::cannot("read events"))?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_err(Failure::cannot("read the clock"))?;
        if let Ok(data) = frame.into_data() {
            held.extend_from_slice(&data);
        }
        while let Some(end) = held.windows(2).position(|two| two == b"\n\n") {
            let event = held.split_to(end + 2);
            let sent = std::str::from_utf8(&event)
                .ok()
                .and_then(|event| event.trim().strip_prefix("data: ")?.parse().ok())
                .ok_or_else(|| Failure::wrong(format!("{event:?} is no event")))?;
            let sent = std::time::Duration::from_nanos(sent);
            found
                .values
                .push((now.as_secs_f64() - sent.as_secs_f64()) * 1e3);
        }
    }
    if found.values.len() == count {
        Ok(())
    } else {
        Err(Failure::wrong(format!(
            "{} of {count} events came",
            found.values.len()
        )))
    }
}

/// Opens all, says so when each has got something, and reads them to the end.
async fn hold(
    wire: &Wire<'_>,
    streams: usize,
    connections: usize,
    found: &mut Found,
) -> Result<(), Failure> {
    let mut bodies = Vec::with_capacity(streams);
    for nth in 0..connections {
        let mut sender = wire.connect().await?;
        let here = streams / connections + usize::from(nth < streams % connections);
        for _ in 0..here {
            let response = wire
                .send(&mut sender, Method::GET, "/hold", nothing())
                .await?;
            found.look(&response);
            let mut body = response.into_body();
            let mut came = 0;
            while came < SMALL {
                let frame = body
                    .frame()
                    .await
                    .ok_or_else(|| Failure::wrong("a held stream ended at once"))?
                    .map_err(Failure::cannot("read a held stream"))?;
                came += frame.data_ref().map_or(0, Bytes::len);
            }
            bodies.push(body);
        }
    }
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{OPEN}")
        .and_then(|()| stdout.flush())
        .map_err(Failure::cannot("say that all are open"))?;
    for body in bodies {
        let rest = body
            .collect()
            .await
            .map_err(Failure::cannot("read a held stream to its end"))?;
        if rest.to_bytes() != OPEN.as_bytes() {
            return Err(Failure::wrong("a held stream had another end"));
        }
    }
    Ok(())
}
