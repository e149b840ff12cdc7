//! Refusals: what the program inside is told, and what the journal is told.
//!
//! A program that retries in a loop makes one event a second and not thousands: what is the same is counted.

mod heard;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use protocol::{DenyReason, Event, OpId, Outgoing};

use bytes::Bytes;

use crate::body::{Body, full};
use crate::seam::Ledger;

pub(crate) use heard::Listener;

/// Tells a program, or whoever reads its output, that it was us and why.
pub(crate) const DENY_HEADER: HeaderName = HeaderName::from_static("x-durable-deny");

/// The same refusal is journaled once in this time, with its count.
const REPEAT: Duration = Duration::from_secs(1);
/// Refusals that are told apart at a time; more are counted under one name.
const MAX_KINDS: usize = 256;
/// Events in one [`REPEAT`], over all kinds.
const MAX_EVENTS: u32 = 32;

/// Why something does not leave.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    pub(crate) status: StatusCode,
    pub(crate) reason: DenyReason,
    pub(crate) rule: Option<String>,
    pub(crate) message: String,
}

impl Denial {
    /// Takes what the policy says.
    pub(crate) fn of_policy(rule: Option<String>, reason: DenyReason, message: String) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            reason,
            rule,
            message,
        }
    }

    pub(crate) fn new(status: StatusCode, reason: DenyReason, message: impl Into<String>) -> Self {
        Self {
            status,
            reason,
            rule: None,
            message: message.into(),
        }
    }

    pub(crate) fn forbidden(reason: DenyReason, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason, message)
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, DenyReason::Protocol, message)
    }

    pub(crate) fn mismatch(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::MISDIRECTED_REQUEST,
            DenyReason::Mismatch,
            message,
        )
    }

    pub(crate) fn upstream(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, DenyReason::Upstream, message)
    }

    pub(crate) fn by_rule(mut self, rule: &str) -> Self {
        self.rule = Some(rule.to_owned());
        self
    }

    /// Returns the answer for whoever sent the request.
    pub(crate) fn response(&self, listener: Listener) -> Response<Body> {
        let mut response = if listener == Listener::Grpc {
            heard::grpc(self)
        } else {
            let mut response = Response::new(full(listener.body(self)));
            *response.status_mut() = listener.status(self);
            if response.status() == self.status
                && let Some(phrase) = heard::reason_phrase(self)
            {
                response.extensions_mut().insert(phrase);
            }
            response
        };
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static(listener.content_type());
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(DENY_HEADER, HeaderValue::from_static(word(self.reason)));
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            // Clients that wait and try again do it right; a minute's budget fills up evenly.
            headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
        }
        response
    }

    /// Returns the answer as bytes of HTTP/1.1, for where no server is there to send it.
    pub(crate) fn raw(&self) -> Bytes {
        let body = Listener::Any.body(self);
        let head = format!(
            "HTTP/1.1 {} {}\r\ncontent-type: {}\r\ncontent-length: {}\r\n{DENY_HEADER}: {}\r\n\
             connection: close\r\n\r\n",
            self.status.as_u16(),
            heard::phrase(self),
            Listener::Any.content_type(),
            body.len(),
            word(self.reason),
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body);
        bytes.into()
    }
}

/// Returns a reason as it stands in JSON and in the header.
pub(crate) fn word(reason: DenyReason) -> &'static str {
    match reason {
        DenyReason::NoRule => "no_rule",
        DenyReason::Rule => "rule",
        DenyReason::BadName => "bad_name",
        DenyReason::Address => "address",
        DenyReason::Mismatch => "mismatch",
        DenyReason::Protocol => "protocol",
        DenyReason::Placeholder => "placeholder",
        DenyReason::Secret => "secret",
        DenyReason::Upstream => "upstream",
        DenyReason::Approval => "approval",
        DenyReason::Budget => "budget",
        DenyReason::Diverged => "diverged",
    }
}

/// What makes two refusals the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    op: Option<OpId>,
    host: String,
    port: u16,
    rule: Option<String>,
    reason: DenyReason,
}

struct Counted {
    last: Outgoing,
    message: String,
    times: u32,
    told: Option<Instant>,
}

/// Writes refusals into the journal.
pub(crate) struct Denials {
    ledger: Arc<dyn Ledger>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    kinds: HashMap<Kind, Counted>,
    /// When the current time of counting events began, and how many there were.
    since: Option<Instant>,
    events: u32,
}

impl Denials {
    pub(crate) fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self {
            ledger,
            table: Mutex::default(),
        }
    }

    /// Counts a refusal; [`Denials::run`] journals it.
    pub(crate) fn add(&self, request: Outgoing, denial: &Denial) {
        let mut kind = Kind {
            op: request.op.clone(),
            host: request.host.clone(),
            port: request.port,
            rule: denial.rule.clone(),
            reason: denial.reason,
        };
        let mut last = request;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let kinds = &mut table.kinds;
        if kinds.len() >= MAX_KINDS && !kinds.contains_key(&kind) {
            kind.host = "(many)".to_owned();
            kind.port = 0;
            kind.op = None;
            last = Outgoing {
                op: None,
                protocol: last.protocol,
                host: kind.host.clone(),
                port: 0,
                method: None,
                path: None,
            };
        }
        let counted = kinds.entry(kind).or_insert_with(|| Counted {
            last: last.clone(),
            message: String::new(),
            times: 0,
            told: None,
        });
        counted.times = counted.times.saturating_add(1);
        counted.last = last;
        counted.message.clone_from(&denial.message);
    }

    /// Returns the events that are due, each for what happened since the last of its kind.
    fn due(&self, now: Instant, at_once: bool) -> Vec<Event> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let Table {
            kinds,
            since,
            events: count,
        } = &mut *table;
        if since.is_none_or(|since| now.duration_since(since) >= REPEAT) {
            *since = Some(now);
            *count = 0;
        }
        let mut events = Vec::new();
        kinds.retain(|kind, counted| {
            let rested = counted
                .told
                .is_none_or(|told| now.duration_since(told) >= REPEAT);
            if counted.times == 0 {
                return !rested;
            }
            if (!rested || *count >= MAX_EVENTS) && !at_once {
                return true;
            }
            *count += 1;
            events.push(Event::EgressDenied {
                request: counted.last.clone(),
                reason: kind.reason,
                rule: kind.rule.clone(),
                message: counted.message.clone(),
                times: std::mem::take(&mut counted.times),
            });
            counted.told = Some(now);
            true
        });
        events
    }

    /// Journals what is new and what is due.
    pub(crate) async fn flush(&self, at_once: bool) {
        let events = self.due(Instant::now(), at_once);
        if events.is_empty() {
            return;
        }
        if let Err(error) = self.ledger.append_relaxed(events).await {
            tracing::warn!(%error, "refusals could not be journaled");
        }
    }

    /// Journals a refusal: at once where it is new, counted where it is repeated.
    pub(crate) async fn tell(&self, request: Outgoing, denial: &Denial) {
        self.add(request, denial);
        self.flush(false).await;
    }

    /// Journals what was counted, for as long as it is polled.
    pub(crate) async fn run(&self) {
        loop {
            tokio::time::sleep(REPEAT).await;
            self.flush(false).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::BoxFuture;
    use protocol::Seq;

    struct Nowhere;

    impl Ledger for Nowhere {
        fn append(&self, _: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
            Box::pin(async { Err("closed".to_owned()) })
        }

        fn append_relaxed(&self, _: Vec<Event>) -> BoxFuture<'_, Result<Seq, String>> {
            Box::pin(async { Err("closed".to_owned()) })
        }
    }

    fn request(host: &str) -> Outgoing {
        Outgoing {
            op: None,
            protocol: "https".into(),
            host: host.into(),
            port: 443,
            method: None,
            path: None,
        }
    }

    fn times(events: &[Event]) -> Vec<u32> {
        let times = events.iter().map(|event| match event {
            Event::EgressDenied { times, .. } => *times,
            other => panic!("{other:?}"),
        });
        times.collect()
    }

    #[test]
    fn what_is_repeated_is_counted() {
        let denials = Denials::new(Arc::new(Nowhere));
        let denial = Denial::forbidden(DenyReason::NoRule, "no");
        let start = Instant::now();
        denials.add(request("a"), &denial);
        assert_eq!(times(&denials.due(start, false)), [1]);
        for _ in 0..500 {
            denials.add(request("a"), &denial);
        }
        assert!(denials.due(start + REPEAT / 2, false).is_empty());
        assert_eq!(times(&denials.due(start + REPEAT, false)), [500]);
        assert!(denials.due(start + REPEAT * 3, false).is_empty());
        assert!(denials.table.lock().unwrap().kinds.is_empty());
    }

    #[test]
    fn many_kinds_are_bounded_and_none_is_lost() {
        let denials = Denials::new(Arc::new(Nowhere));
        let denial = Denial::forbidden(DenyReason::NoRule, "no");
        let start = Instant::now();
        for number in 0..5000 {
            denials.add(request(&format!("h{number}")), &denial);
        }
        assert!(denials.table.lock().unwrap().kinds.len() <= MAX_KINDS + 1);
        let first = times(&denials.due(start, false));
        assert_eq!(first.len(), MAX_EVENTS as usize);
        let rest = times(&denials.due(start, true));
        assert_eq!(first.iter().chain(&rest).sum::<u32>(), 5000);
    }
}
