//! What left of operations that may be rolled back, and may have changed something outside: folded from the journal, so that a
//! run after a loss is given the answers that the lost one got, or it can be said why it is not run again. Pure.

use std::collections::BTreeMap;

use protocol::{EffectId, OpId, Outcome, Outgoing, Passed, Seq, Settlement};

/// How many requests are named in a message; `durable effects` lists all.
const NAMED: usize = 10;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    /// Its id.
    pub effect: EffectId,
    /// Where it begins.
    pub at: Seq,
    /// What it is.
    pub request: Outgoing,
    /// The digest of its head; none for one that cannot be repeated.
    head: Option<String>,
    /// Events with its answer's body so far.
    pieces: u64,
    end: End,
    /// Whether its operation is run again and has not come to it yet.
    is_expected: bool,
}

/// How far one is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Open,
    /// Its answer is recorded.
    Recorded {
        /// Where it ended.
        at: Seq,
        /// The body that was sent.
        body: Passed,
    },
    /// It is not; why.
    Unrecorded(String),
}

/// What becomes of the next request of an operation that may be rolled back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgment {
    /// It leaves, and its answer is recorded.
    Leaves,
    /// Its body decides, which has at most so many bytes.
    Body {
        /// The length of the recorded one.
        most: u64,
    },
    /// It repeats a recorded one.
    Repeats {
        /// Which.
        of: EffectId,
        /// Where the events with the answer begin.
        from: Seq,
        /// How many there are, the last one with the head.
        events: u64,
    },
    /// It does something else than the lost run.
    Diverges(String),
}

/// The fold.
#[derive(Debug, Clone, Default)]
pub struct Writes {
    sent: Vec<Sent>,
    /// Operations that did something else when they were run again, and what.
    diverged: BTreeMap<OpId, String>,
}

impl Writes {
    pub(crate) fn begin(
        &mut self,
        effect: EffectId,
        at: Seq,
        request: Outgoing,
        head: Option<String>,
    ) {
        self.sent.push(Sent {
            effect,
            at,
            request,
            head,
            pieces: 0,
            end: End::Open,
            is_expected: false,
        });
    }

    pub(crate) fn output(&mut self, effect: &EffectId) {
        if let Some(sent) = self.find(effect) {
            sent.pieces += 1;
        }
    }

    /// Ends one: with the body that was sent where the answer is recorded, else with why it is not.
    pub(crate) fn settle(&mut self, effect: &EffectId, at: Seq, end: Result<Passed, String>) {
        if let Some(sent) = self.find(effect) {
            sent.end = match end {
                Ok(body) if sent.head.is_some() => End::Recorded { at, body },
                Ok(_) => End::Unrecorded("it cannot be repeated".to_owned()),
                Err(why) => End::Unrecorded(why),
            };
        }
    }

    pub(crate) fn replayed(&mut self, of: &EffectId) {
        if let Some(sent) = self.find(of) {
            sent.is_expected = false;
        }
    }

    pub(crate) fn diverge(&mut self, op: OpId, message: String) {
        self.diverged.entry(op).or_insert(message);
    }

    /// The files were put back: whoever is run again is to send the same again.
    pub(crate) fn expect_again(&mut self) {
        for sent in &mut self.sent {
            sent.is_expected = true;
        }
    }

    /// Forgets what no operation needs any more: `since` is where the first of those begins that may be rolled back.
    pub(crate) fn forget(&mut self, ended: &OpId, since: Option<Seq>) {
        self.diverged.remove(ended);
        match since {
            Some(since) => self.sent.retain(|sent| sent.at > since),
            None => self.sent.clear(),
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn find(&mut self, effect: &EffectId) -> Option<&mut Sent> {
        self.sent
            .iter_mut()
            .rev()
            .find(|sent| sent.effect == *effect)
    }

    fn of<'a>(&'a self, op: &'a OpId) -> impl Iterator<Item = &'a Sent> {
        let own = |sent: &&Sent| sent.request.op.as_ref() == Some(op);
        self.sent.iter().filter(own)
    }

    /// Whether an operation did something else when it was run again.
    #[must_use]
    pub fn has_diverged(&self, op: &OpId) -> bool {
        self.diverged.contains_key(op)
    }

    /// Whether anything is to be sent again that was not yet.
    #[must_use]
    pub fn expects_any(&self) -> bool {
        self.sent.iter().any(|sent| sent.is_expected)
    }

    /// Says what becomes of a request of an operation that may be rolled back.
    #[must_use]
    pub fn judge(&self, op: &OpId, write: &egress::Write) -> Judgment {
        if let Some(message) = self.diverged.get(op) {
            return Judgment::Diverges(message.clone());
        }
        let expected: Vec<&Sent> = self.of(op).filter(|sent| sent.is_expected).collect();
        if expected.is_empty() {
            return Judgment::Leaves;
        }
        let came = named(&write.request);
        let diverges = |how: &str| {
            let list = list(expected.iter().map(|sent| named(&sent.request)));
            Judgment::Diverges(format!(
                "operation `{op}` is run again after a loss, and does something else than its lost run: {came} {how}; expected next: {list}. \
                 Nothing more that may change something leaves from it"
            ))
        };
        let same = |sent: &&&Sent| sent.request == write.request;
        let Some(next) = expected.iter().find(same) else {
            return diverges("was not sent then");
        };
        let End::Recorded { at, body } = &next.end else {
            return diverges("has no recorded answer");
        };
        if next.head.is_none() || next.head != write.head {
            return diverges("had other headers then");
        }
        match &write.body {
            None => Judgment::Body { most: body.bytes },
            Some(now) if is_same(now, body) => Judgment::Repeats {
                of: next.effect.clone(),
                from: Seq(at.0 - next.pieces),
                events: next.pieces + 1,
            },
            Some(_) => diverges("had another body then"),
        }
    }

    /// Says why an operation that was asked for at `intent` cannot be put back and run again, where it cannot.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn can_repeat(&self, op: &OpId, intent: Seq) -> Result<(), String> {
        if let Some(message) = self.diverged.get(op) {
            return Err(message.clone());
        }
        let own = |sent: &&Sent| sent.request.op.as_ref() == Some(op);
        let strangers = self
            .sent
            .iter()
            .filter(|sent| sent.at > intent && !own(sent));
        let strangers: Vec<String> = strangers.map(|sent| named(&sent.request)).collect();
        if !strangers.is_empty() {
            let own = match self.told(op) {
                own if own.is_empty() => own,
                own => format!("; its own: {own}"),
            };
            return Err(format!(
                "requests left meanwhile that are not known to be its own, and may have changed something: {}{own}",
                list(strangers.into_iter())
            ));
        }
        let unknown = |sent: &Sent| !matches!(sent.end, End::Recorded { .. });
        if self.of(op).any(unknown) {
            return Err(format!(
                "it sent requests that may have changed something, and not every answer is recorded: {}",
                self.told(op)
            ));
        }
        Ok(())
    }

    /// Lists what an operation sent, with how each ended.
    pub(crate) fn told(&self, op: &OpId) -> String {
        list(self.of(op).map(|sent| {
            let how = match &sent.end {
                End::Open => "nobody knows whether it arrived",
                End::Recorded { .. } => "answered",
                End::Unrecorded(why) => why,
            };
            format!("{} ({how})", named(&sent.request))
        }))
    }

    /// Says in a settlement what became of a run after a loss.
    pub(crate) fn amend(&self, op: &OpId, settlement: &mut Settlement) {
        let more = if let Some(message) = self.diverged.get(op) {
            let ended = settlement.outcome.name();
            settlement.outcome = Outcome::Lost;
            format!(
                "{message}; that run ended ({ended}), and the lost one had sent: {}",
                self.told(op)
            )
        } else {
            let left: Vec<_> = self.of(op).filter(|sent| sent.is_expected).collect();
            if left.is_empty() || settlement.outcome == Outcome::Lost {
                return;
            }
            let left = list(left.iter().map(|sent| named(&sent.request)));
            format!(
                "it was run again after a loss, and did not come to what its lost run had sent: {left}"
            )
        };
        settlement.error = Some(match settlement.error.take() {
            Some(before) => format!("{before}; {more}"),
            None => more,
        });
    }
}

fn is_same(one: &Passed, other: &Passed) -> bool {
    one.bytes == other.bytes
        && (one.bytes == 0 || (one.digest.is_some() && one.digest == other.digest))
}

fn named(request: &Outgoing) -> String {
    let method = request.method.as_deref().unwrap_or("");
    let (protocol, host, port) = (&request.protocol, &request.host, request.port);
    let path = request.path.as_deref().unwrap_or("");
    format!("{method} {protocol}://{host}:{port}{path}")
        .trim_start()
        .escape_debug()
        .to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = items.collect();
    let mut text = all[..all.len().min(NAMED)].join(", ");
    if let Some(more) = all.len().checked_sub(NAMED).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op() -> OpId {
        "build".parse().unwrap()
    }

    fn request(path: &str) -> Outgoing {
        Outgoing {
            op: Some(op()),
            protocol: "https".to_owned(),
            host: "a.test".to_owned(),
            port: 443,
            method: Some("POST".to_owned()),
            path: Some(path.to_owned()),
        }
    }

    fn passed(body: &[u8]) -> Passed {
        Passed {
            bytes: body.len() as u64,
            digest: Some(blake3::hash(body).to_hex().to_string()),
        }
    }

    fn ask(path: &str, body: Option<&[u8]>) -> egress::Write {
        egress::Write {
            request: request(path),
            is_unasked: false,
            head: Some("head".to_owned()),
            body: body.map(passed),
        }
    }

    fn effect(number: u64) -> EffectId {
        format!("e{number}").parse().unwrap()
    }

    /// Sends one, with an answer of two pieces.
    fn send(writes: &mut Writes, number: u64, path: &str, body: &[u8]) {
        let at = Seq(number * 10);
        writes.begin(effect(number), at, request(path), Some("head".to_owned()));
        writes.output(&effect(number));
        writes.output(&effect(number));
        writes.settle(&effect(number), Seq(at.0 + 3), Ok(passed(body)));
    }

    fn repeats(writes: &mut Writes, path: &str, body: &[u8]) -> Option<EffectId> {
        let most = body.len() as u64;
        assert_eq!(
            writes.judge(&op(), &ask(path, None)),
            Judgment::Body { most }
        );
        match writes.judge(&op(), &ask(path, Some(body))) {
            Judgment::Repeats { of, from, events } => {
                assert_eq!(events, 3);
                assert_eq!(from.0 % 10, 1);
                writes.replayed(&of);
                Some(of)
            }
            _ => None,
        }
    }

    #[test]
    fn what_was_sent_is_expected_in_order_and_then_new_things_leave() {
        let mut writes = Writes::default();
        send(&mut writes, 1, "/a", b"one");
        send(&mut writes, 2, "/a", b"two");
        send(&mut writes, 3, "/b", b"one");
        assert_eq!(writes.judge(&op(), &ask("/new", None)), Judgment::Leaves);
        assert_eq!(writes.can_repeat(&op(), Seq(1)), Ok(()));
        writes.expect_again();
        // Another address may come first; of one address the order counts.
        assert_eq!(repeats(&mut writes, "/b", b"one"), Some(effect(3)));
        assert_eq!(repeats(&mut writes, "/a", b"one"), Some(effect(1)));
        assert!(writes.expects_any());
        assert_eq!(repeats(&mut writes, "/a", b"two"), Some(effect(2)));
        assert!(!writes.expects_any());
        assert_eq!(writes.judge(&op(), &ask("/c", None)), Judgment::Leaves);
        // What the second run sends is expected of the third as well.
        send(&mut writes, 4, "/c", b"new");
        writes.expect_again();
        for (path, body, number) in [
            ("/a", b"one", 1),
            ("/a", b"two", 2),
            ("/c", b"new", 4),
            ("/b", b"one", 3),
        ] {
            assert_eq!(repeats(&mut writes, path, body), Some(effect(number)));
        }
        assert!(!writes.expects_any());
    }

    #[test]
    fn what_differs_diverges_and_says_how() {
        let mut writes = Writes::default();
        send(&mut writes, 1, "/a", b"one");
        send(&mut writes, 2, "/a", b"two");
        writes.expect_again();
        let says = |writes: &Writes, write: &egress::Write| match writes.judge(&op(), write) {
            Judgment::Diverges(message) => message,
            other => panic!("{other:?}"),
        };
        assert!(says(&writes, &ask("/b", None)).contains("was not sent then"));
        assert!(says(&writes, &ask("/a", Some(b"two"))).contains("another body"));
        let mut other = ask("/a", Some(b"one"));
        other.head = Some("other".to_owned());
        assert!(says(&writes, &other).contains("other headers"));
        other.head = None;
        assert!(says(&writes, &other).contains("other headers"));
        let longer = Passed {
            bytes: 4,
            digest: None,
        };
        other = ask("/a", None);
        other.body = Some(longer);
        assert!(says(&writes, &other).contains("another body"));

        // Once it has, nothing is as before, and it is told so.
        writes.diverge(op(), "it went astray".to_owned());
        assert_eq!(says(&writes, &ask("/a", Some(b"one"))), "it went astray");
        assert!(writes.can_repeat(&op(), Seq(1)).is_err());
        let mut settlement = Settlement {
            outcome: Outcome::Exited { exit_code: 0 },
            stdout_bytes: protocol::Offset(0),
            stderr_bytes: protocol::Offset(0),
            duration_ms: 1,
            error: None,
        };
        writes.amend(&op(), &mut settlement);
        assert_eq!(settlement.outcome, Outcome::Lost);
        let told = settlement.error.unwrap();
        assert!(told.contains("/a (answered)"), "{told}");
    }

    #[test]
    fn what_is_not_known_or_not_its_own_is_not_repeated() {
        let mut writes = Writes::default();
        send(&mut writes, 1, "/a", b"one");
        writes.begin(effect(2), Seq(20), request("/b"), Some("head".to_owned()));
        let why = writes.can_repeat(&op(), Seq(1)).unwrap_err();
        assert!(
            why.contains("/b (nobody knows") && why.contains("/a (answered)"),
            "{why}"
        );
        writes.settle(&effect(2), Seq(21), Err("it broke off".to_owned()));
        let why = writes.can_repeat(&op(), Seq(1)).unwrap_err();
        assert!(why.contains("/b (it broke off)"), "{why}");

        let other: OpId = "other".parse().unwrap();
        assert!(
            writes
                .can_repeat(&other, Seq(1))
                .unwrap_err()
                .contains("its own")
        );
        assert_eq!(writes.can_repeat(&other, Seq(30)), Ok(()));
        writes.forget(&op(), None);
        assert_eq!(writes.can_repeat(&op(), Seq(1)), Ok(()));
    }

    #[test]
    fn what_was_not_come_to_again_is_said() {
        let mut writes = Writes::default();
        send(&mut writes, 1, "/a", b"one");
        let mut settlement = Settlement {
            outcome: Outcome::Exited { exit_code: 3 },
            stdout_bytes: protocol::Offset(0),
            stderr_bytes: protocol::Offset(0),
            duration_ms: 1,
            error: None,
        };
        writes.amend(&op(), &mut settlement);
        assert_eq!(settlement.error, None);
        writes.expect_again();
        writes.amend(&op(), &mut settlement);
        assert_eq!(settlement.outcome, Outcome::Exited { exit_code: 3 });
        assert!(settlement.error.unwrap().contains("/a"));
    }
}
