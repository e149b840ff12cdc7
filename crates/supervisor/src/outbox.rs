//! What is to be said to the daemon. Without a daemon nothing is kept: all that matters is in the table and is told again
//! to the next one when it fences.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::BytesMut;
use protocol::control::{FromSupervisor, encode};
use protocol::{CodecError, Offset, OpId};
use tokio::sync::Notify;

/// The most that is encoded before it is written.
const PIECE: usize = 256 << 10;

/// How far an operation's output reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    pub(crate) attempt: u32,
    pub(crate) stdout: u64,
    pub(crate) stderr: u64,
}

/// Messages for one connection. Lengths of output are not queued: a later one replaces what was not sent yet, so that a
/// daemon that does not read costs no memory.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: RefCell<VecDeque<FromSupervisor>>,
    reach: RefCell<BTreeMap<OpId, Reach>>,
    wake: Notify,
    written: Notify,
    /// Whether some was taken and is not with the kernel yet.
    in_flight: Cell<bool>,
    /// Ends the connection.
    pub(crate) over: Notify,
}

impl Outbox {
    pub(crate) fn say(&self, message: FromSupervisor) {
        self.queue.borrow_mut().push_back(message);
        self.wake.notify_one();
    }

    fn output(&self, op: &OpId, reach: Reach) {
        self.reach.borrow_mut().insert(op.clone(), reach);
        self.wake.notify_one();
    }

    /// Waits until there is something to send.
    pub(crate) async fn wait(&self) {
        self.wake.notified().await;
    }

    /// All that was taken is with the kernel.
    pub(crate) fn was_written(&self) {
        self.in_flight.set(false);
        self.written.notify_waiters();
    }

    /// Ends when something was written after this was called.
    pub(crate) fn sent(&self) -> impl Future<Output = ()> {
        self.written.notified()
    }

    /// Whether all is with the kernel.
    pub(crate) fn is_empty(&self) -> bool {
        let is_taken = self.queue.borrow().is_empty() && self.reach.borrow().is_empty();
        is_taken && !self.in_flight.get()
    }

    /// Encodes some of what there is; nothing if there is nothing.
    pub(crate) fn take(&self, out: &mut BytesMut) -> Result<(), CodecError> {
        while out.len() < PIECE {
            let message = self.queue.borrow_mut().pop_front();
            let message = match message {
                Some(message) => message,
                None => match self.reach.borrow_mut().pop_first() {
                    Some((op, reach)) => reached(op, reach),
                    None => break,
                },
            };
            encode(&message, out)?;
            self.in_flight.set(true);
        }
        Ok(())
    }
}

fn reached(op: OpId, reach: Reach) -> FromSupervisor {
    FromSupervisor::Output {
        op,
        attempt: reach.attempt,
        stdout: Offset(reach.stdout),
        stderr: Offset(reach.stderr),
    }
}

/// The way to the daemon that fenced last, if it is there.
#[derive(Default)]
pub(crate) struct Link {
    current: RefCell<Option<Rc<Outbox>>>,
    fenced: Notify,
}

impl Link {
    /// Says it, if somebody is there.
    pub(crate) fn say(&self, message: FromSupervisor) {
        if let Some(outbox) = &*self.current.borrow() {
            outbox.say(message);
        }
    }

    /// Says how far output reaches, some time soon.
    pub(crate) fn output(&self, op: &OpId, reach: Reach) {
        if let Some(outbox) = &*self.current.borrow() {
            outbox.output(op, reach);
        }
    }

    /// Says how far output reaches, before anything that is said later.
    pub(crate) fn last_output(&self, op: &OpId, reach: Reach) {
        if let Some(outbox) = &*self.current.borrow() {
            outbox.reach.borrow_mut().remove(op);
            outbox.say(reached(op.clone(), reach));
        }
    }

    /// Whether a daemon is there.
    pub(crate) fn is_up(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Whether `outbox` belongs to the daemon that may give orders.
    pub(crate) fn is_current(&self, outbox: &Rc<Outbox>) -> bool {
        self.current
            .borrow()
            .as_ref()
            .is_some_and(|current| Rc::ptr_eq(current, outbox))
    }

    /// Ends the connection of the daemon that was.
    pub(crate) fn cut(&self) {
        if let Some(old) = self.current.borrow_mut().take() {
            old.over.notify_one();
        }
    }

    /// From now on everything goes to `outbox`.
    pub(crate) fn replace(&self, outbox: &Rc<Outbox>) {
        self.cut();
        *self.current.borrow_mut() = Some(Rc::clone(outbox));
        self.fenced.notify_waiters();
    }

    /// The connection of `outbox` ended.
    pub(crate) fn lost(&self, outbox: &Rc<Outbox>) {
        if self.is_current(outbox) {
            self.current.borrow_mut().take();
        }
    }

    /// Ends when a daemon fences after this was called.
    pub(crate) fn next_fence(&self) -> impl Future<Output = ()> {
        self.fenced.notified()
    }

    /// Returns what is still to be sent, for waiting until it was.
    pub(crate) fn outbox(&self) -> Option<Rc<Outbox>> {
        self.current.borrow().clone()
    }
}
