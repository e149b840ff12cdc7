//! Answers that are recorded: kept as the sandbox saw them, for a run of their operation after this one was lost.
//!
//! Whoever asked may be gone meanwhile; the answer is read to its end all the same, and its last piece goes on only when
//! the record is durable. What the operation has seen whole is therefore never one whose answer nobody knows.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use protocol::{EffectId, Event, Offset, RecordedAnswer};
use tokio::sync::mpsc;

use crate::body::{Body, cut_short, full};
use crate::effect::Effect;
use crate::flow::Ticket;
use crate::scrub::{Scrub, Sieve};
use crate::seam::Recorded;

/// The longest body of an answer that is kept.
pub(crate) const MAX_ANSWER: usize = 256 << 10;
/// The longest body of a request that can be recognised: it is held in memory for that.
pub(crate) const MAX_REQUEST: u64 = 16 << 20;
/// The most in one event.
const MAX_EVENT: usize = 64 << 10;
/// How long an answer is waited for that nobody waits for any more: a program that gave up, while its sandbox lives.
pub(crate) const ALONE: Duration = Duration::from_secs(30);
/// Pieces on their way to a client that does not read.
const AHEAD: usize = 4;

/// What is to be kept of an effect's answer.
pub(crate) enum Keep {
    /// Nothing: nobody runs its operation again.
    Nothing,
    /// Nothing, though its operation may be run again; why.
    Never(&'static str),
    /// All of it, for a request with a head of this digest.
    Answer(String),
}

/// Keeps one answer as it passes.
pub(crate) struct Recorder {
    head: RecordedAnswer,
    body: BytesMut,
    unrecorded: Option<String>,
}

impl Recorder {
    pub(crate) fn of(keep: &Keep) -> Option<Self> {
        let unrecorded = match keep {
            Keep::Nothing => return None,
            Keep::Never(why) => Some((*why).to_owned()),
            Keep::Answer(_) => None,
        };
        Some(Self {
            head: RecordedAnswer::default(),
            body: BytesMut::new(),
            unrecorded,
        })
    }

    /// Whether an answer may come of it still.
    fn goes_on(&self) -> bool {
        self.unrecorded.is_none()
    }

    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        self.unrecorded.get_or_insert_with(|| why.into());
        self.body = BytesMut::new();
    }

    fn begin(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.head.status = status.as_u16();
        match texts(headers) {
            Some(headers) => self.head.headers = headers,
            None => self.fail("a header of its answer is no text"),
        }
    }

    fn frame(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref()
            && self.goes_on()
        {
            if self.body.len() + data.len() > MAX_ANSWER {
                self.fail(format!("its answer is longer than {MAX_ANSWER} bytes"));
            } else {
                self.body.extend_from_slice(data);
            }
        }
        if let Some(trailers) = frame.trailers_ref() {
            match texts(trailers) {
                Some(trailers) => self.head.trailers = trailers,
                None => self.fail("a trailer of its answer is no text"),
            }
        }
    }

    /// Returns the answer and the events with its body, or why it is not recorded.
    pub(crate) fn finish(
        mut self,
        effect: &EffectId,
    ) -> Result<(RecordedAnswer, Vec<Event>), String> {
        if let Some(why) = self.unrecorded {
            return Err(why);
        }
        self.head.bytes = self.body.len() as u64;
        let mut pieces = Vec::new();
        let mut offset = Offset(0);
        while !self.body.is_empty() {
            let data = self.body.split_to(self.body.len().min(MAX_EVENT)).freeze();
            let next = Offset(offset.0 + data.len() as u64);
            pieces.push(Event::EffectOutput {
                effect: effect.clone(),
                offset,
                data,
            });
            offset = next;
        }
        Ok((self.head, pieces))
    }
}

/// Headers as text; none where one is not.
fn texts(headers: &HeaderMap) -> Option<Vec<(String, String)>> {
    let texts = headers.iter().map(|(name, value)| {
        let value = value.to_str().ok()?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    texts.collect()
}

fn headers(texts: &[(String, String)]) -> HeaderMap {
    let headers = texts.iter().filter_map(|(name, value)| {
        Some((
            name.parse::<HeaderName>().ok()?,
            value.parse::<HeaderValue>().ok()?,
        ))
    });
    // Several of one name stay several.
    headers.collect()
}

/// Turns what is recorded into an answer again.
pub(crate) fn answer(recorded: Recorded) -> Response<Body> {
    let Recorded { answer, body } = recorded;
    let body = if answer.trailers.is_empty() {
        full(body)
    } else {
        let trailers = Frame::trailers(headers(&answer.trailers));
        let frames = [Ok::<_, io::Error>(Frame::data(body)), Ok(trailers)];
        StreamBody::new(stream::iter(frames)).boxed_unsync()
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = headers(&answer.headers);
    response
}

/// An answer on its way to the client and into the record.
pub(crate) struct Passage {
    body: Incoming,
    effect: Effect,
    sieve: Sieve,
    ticket: Ticket,
    /// Kept until the upstream's end.
    _kept: Box<dyn Send>,
    to: mpsc::Sender<io::Result<Frame<Bytes>>>,
    /// Whether nobody reads any more.
    is_alone: bool,
}

/// How reading an answer ended.
enum End {
    /// With this as its last piece.
    Whole(Option<Frame<Bytes>>),
    Broken(String),
}

impl Passage {
    /// Begins it; returns the client's body. `headers` are those that the client gets.
    pub(crate) fn new(
        status: StatusCode,
        headers: &HeaderMap,
        body: Incoming,
        mut effect: Effect,
        scrub: Option<Scrub>,
        ticket: Ticket,
        kept: Box<dyn Send>,
    ) -> (Self, Passing) {
        if let Some(recorder) = &mut effect.recorder {
            recorder.begin(status, headers);
        }
        let (to, frames) = mpsc::channel(AHEAD);
        let sieve = Sieve::new(scrub);
        // Scrubbing keeps the length, but may end with less than it was fed so far.
        let hint = if sieve.holds_back() {
            SizeHint::default()
        } else {
            body.size_hint()
        };
        let passage = Self {
            body,
            effect,
            sieve,
            ticket,
            _kept: kept,
            to,
            is_alone: false,
        };
        (passage, Passing { frames, hint })
    }

    /// Whether there is a body at all.
    pub(crate) fn has_body(&self) -> bool {
        !self.body.is_end_stream()
    }

    /// Reads to the end, which is durable on return.
    pub(crate) async fn run(mut self) {
        let announced = self.body.size_hint().exact().filter(|_| self.has_body());
        let end = self.read().await;
        let came = self.effect.received.passed().bytes;
        // HTTP/2 has an end also where less came than was announced.
        let error = match &end {
            End::Broken(why) => Some(why.clone()),
            End::Whole(_) => announced.and_then(|announced| cut_short(announced, came)),
        };
        self.effect.settle_durably(error.clone()).await;
        let last = match (end, error) {
            (End::Whole(last), None) => last.map(Ok),
            (_, error) => error.map(|error| Err(io::Error::other(error))),
        };
        if let Some(last) = last {
            // A client that went away needs nothing more.
            drop(self.to.send(last).await);
        }
    }

    async fn read(&mut self) -> End {
        let life = self.effect.life();
        let to = self.to.clone();
        let mut alone = pin!(async {
            to.closed().await;
            tokio::time::sleep(ALONE).await;
        });
        loop {
            let frame = tokio::select! {
                frame = self.body.frame() => frame,
                () = self.ticket.ended.cancelled() => {
                    return End::Broken("the policy does not allow it any more".to_owned());
                }
                () = &mut alone => {
                    return End::Broken("the client went away, and the answer did not end in time".to_owned());
                }
                () = life.given_up.cancelled() => {
                    return End::Broken("the sandbox was lost, and the answer did not end in time".to_owned());
                }
            };
            let (data, behind) = match frame {
                Some(Err(error)) => {
                    let error = crate::upstream::with_causes(&error);
                    return End::Broken(format!("the upstream broke off: {error}"));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        self.effect.received.add(&data);
                        (self.sieve.data(data), None)
                    }
                    Err(other) => match other.into_trailers() {
                        Ok(trailers) => {
                            let trailers = Frame::trailers(self.sieve.trailers(trailers));
                            (self.sieve.rest(), Some(trailers))
                        }
                        Err(_) => (None, None),
                    },
                },
                None => {
                    let last = self.sieve.rest().map(Frame::data);
                    if let Some(last) = &last {
                        self.record(last);
                    }
                    return End::Whole(last);
                }
            };
            let data = data.filter(|data| !data.is_empty()).map(Frame::data);
            for frame in data.into_iter().chain(behind) {
                self.record(&frame);
                // Who knows the length does not ask again.
                if self.body.is_end_stream() && !self.sieve.holds_back() && frame.is_data() {
                    return End::Whole(Some(frame));
                }
                if !self.is_alone && self.to.send(Ok(frame)).await.is_err() {
                    self.is_alone = true;
                }
                let is_kept = self.effect.recorder.as_ref().is_some_and(Recorder::goes_on);
                if self.is_alone && !is_kept {
                    return End::Broken(
                        "the client went away before the end of the answer".to_owned(),
                    );
                }
            }
        }
    }

    fn record(&mut self, frame: &Frame<Bytes>) {
        if let Some(recorder) = &mut self.effect.recorder {
            recorder.frame(frame);
        }
    }
}

/// The client's end of a [`Passage`].
pub(crate) struct Passing {
    frames: mpsc::Receiver<io::Result<Frame<Bytes>>>,
    hint: SizeHint,
}

impl HttpBody for Passing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.get_mut().frames.poll_recv(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> Recorder {
        Recorder::of(&Keep::Answer("head".to_owned())).unwrap()
    }

    #[test]
    fn an_answer_is_kept_with_its_trailers_and_comes_back_the_same() {
        let mut recorder = recorder();
        let mut head = HeaderMap::new();
        head.append("set-cookie", HeaderValue::from_static("a=1"));
        head.append("set-cookie", HeaderValue::from_static("b=2"));
        recorder.begin(StatusCode::CREATED, &head);
        let body = vec![b'x'; MAX_EVENT + 1];
        recorder.frame(&Frame::data(Bytes::from(body.clone())));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        recorder.frame(&Frame::trailers(trailers.clone()));
        let (answer, pieces) = recorder.finish(&"e1".parse().unwrap()).unwrap();
        assert_eq!((answer.status, answer.bytes), (201, body.len() as u64));
        assert_eq!(pieces.len(), 2);
        let recorded = Recorded {
            answer,
            body: body.into(),
        };
        let again = super::answer(recorded);
        assert_eq!(again.status(), StatusCode::CREATED);
        assert_eq!(*again.headers(), head);
    }

    #[test]
    fn what_cannot_be_kept_says_why() {
        let effect: EffectId = "e1".parse().unwrap();
        let mut long = recorder();
        for _ in 0..=MAX_ANSWER / 1000 {
            long.frame(&Frame::data(Bytes::from(vec![0; 1000])));
        }
        assert!(long.finish(&effect).unwrap_err().contains("longer than"));
        let mut odd = recorder();
        let mut head = HeaderMap::new();
        head.insert("x", HeaderValue::from_bytes(b"\xff").unwrap());
        odd.begin(StatusCode::OK, &head);
        assert!(odd.finish(&effect).unwrap_err().contains("no text"));
        assert!(Recorder::of(&Keep::Nothing).is_none());
        let never = Recorder::of(&Keep::Never("a WebSocket")).unwrap();
        assert_eq!(never.finish(&effect).unwrap_err(), "a WebSocket");
    }
}
