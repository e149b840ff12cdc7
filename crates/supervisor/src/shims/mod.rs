//! Shims of a harness: processes in the sandbox that ask for an operation and wait for its end.
//!
//! A shim is only a window: the operation is not its child and does not end with it. One that is lost together with its
//! harness changes nothing; one that is lost while its harness lives was ended by it on purpose.

mod deliver;
mod serve;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use protocol::control::FromSupervisor;
use protocol::{Boot, OpId, Settlement, shim::Exec};
use tokio::sync::mpsc;

use crate::outbox::Link;

pub(crate) use serve::serve;

/// The most requests that wait for the daemon, and the most bytes they may have together: whoever asks is not trusted.
const MAX_WAITING: usize = 256;
const MAX_WAITING_BYTES: usize = 64 << 20;

/// What the daemon says to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Attach(OpId),
    Refused(String),
    Settled {
        op: OpId,
        attempt: u32,
        settlement: Settlement,
    },
}

struct Waiting {
    request: Exec,
    bytes: usize,
    /// Whether some daemon was asked. It may have made an operation of it, whatever becomes of the shim.
    asked: bool,
    answers: mpsc::UnboundedSender<Answer>,
}

/// The requests that wait for the daemon's answer.
pub(crate) struct Shims {
    next: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
}

impl Shims {
    /// Numbers of one boot never come again in another: a daemon's late answer must not meet another shim.
    pub(crate) fn new(boot: Boot) -> Self {
        Self {
            next: Cell::new(boot.0 << 32),
            waiting: RefCell::default(),
        }
    }

    /// Asks the daemon, now or when there is one; `None` if too many wait already.
    fn ask(&self, link: &Link, request: Exec) -> Option<(u64, mpsc::UnboundedReceiver<Answer>)> {
        let env = request
            .env
            .iter()
            .map(|(name, value)| name.len() + value.len());
        let bytes = request.argv.iter().map(String::len).chain(env).sum();
        let used: usize = self.waiting.borrow().values().map(|w| w.bytes).sum();
        if self.waiting.borrow().len() >= MAX_WAITING || used + bytes > MAX_WAITING_BYTES {
            return None;
        }
        let shim = self.next.get();
        self.next.set(shim + 1);
        let (answers, arriving) = mpsc::unbounded_channel();
        let waiting = Waiting {
            request,
            bytes,
            asked: link.is_up(),
            answers,
        };
        if link.is_up() {
            link.say(FromSupervisor::Shim {
                shim,
                request: waiting.request.clone(),
            });
        }
        self.waiting.borrow_mut().insert(shim, waiting);
        Some((shim, arriving))
    }

    /// Asks a new daemon for everything: the one before may not have heard it.
    pub(crate) fn ask_all(&self, link: &Link) {
        for (shim, waiting) in self.waiting.borrow_mut().iter_mut() {
            waiting.asked = true;
            link.say(FromSupervisor::Shim {
                shim: *shim,
                request: waiting.request.clone(),
            });
        }
    }

    /// Hands on an answer; a shim that has gone needs none.
    pub(crate) fn answer(&self, shim: u64, answer: Answer) {
        if let Some(waiting) = self.waiting.borrow().get(&shim) {
            let _heard: Result<(), _> = waiting.answers.send(answer);
        }
    }

    /// Ends the waiting.
    fn forget(&self, shim: u64) {
        self.waiting.borrow_mut().remove(&shim);
    }

    fn was_asked(&self, shim: u64) -> bool {
        self.waiting.borrow().get(&shim).is_some_and(|w| w.asked)
    }
}
