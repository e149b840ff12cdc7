//! Takes every child that ends: operations are told to whoever waits for them, orphans of the sandbox are just taken.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use tokio::io::Interest;
use tokio::sync::{Notify, oneshot};

use crate::sys;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    Signal(u8),
}

/// Knows which children are operations. All starting and taking happens on one thread, so a child cannot end unknown.
#[derive(Default)]
pub(crate) struct Reaper {
    waiting: RefCell<HashMap<Pid, oneshot::Sender<Exit>>>,
    taken: Notify,
}

impl Reaper {
    /// Expects `pid`, which was started just now.
    pub(crate) fn expect(&self, pid: Pid) -> oneshot::Receiver<Exit> {
        let (tell, exit) = oneshot::channel();
        self.waiting.borrow_mut().insert(pid, tell);
        exit
    }

    /// Whether `pid` is an operation's process that has not ended.
    pub(crate) fn is_waiting_for(&self, pid: Pid) -> bool {
        self.waiting.borrow().contains_key(&pid)
    }

    /// Ends when some child has been taken after this was called.
    pub(crate) fn next(&self) -> impl Future<Output = ()> {
        self.taken.notified()
    }

    /// Takes children for ever.
    pub(crate) async fn run(self: Rc<Self>, events: OwnedFd) -> io::Result<()> {
        let events = sys::watch(events, Interest::READABLE)?;
        loop {
            let mut ready = events.readable().await?;
            match ready.try_io(|fd| sys::take_child_events(fd.get_ref())) {
                Ok(result) => result?,
                Err(_would_block) => continue,
            }
            self.take_all();
        }
    }

    fn take_all(&self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let exit = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => Exit::Code(byte(code)),
                        (None, signal) => Exit::Signal(byte(signal.unwrap_or(0))),
                    };
                    if let Some(tell) = self.waiting.borrow_mut().remove(&pid) {
                        // An operation that has gone needs no telling.
                        let _told: Result<(), Exit> = tell.send(exit);
                    }
                    self.taken.notify_waiters();
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

fn byte(number: i32) -> u8 {
    u8::try_from(number & 0xff).unwrap_or(0)
}

/// Whether this process has no children at all.
pub(crate) fn childless() -> bool {
    let options = rustix::process::WaitIdOptions::EXITED
        | rustix::process::WaitIdOptions::NOHANG
        | rustix::process::WaitIdOptions::NOWAIT;
    matches!(
        rustix::process::waitid(rustix::process::WaitId::All, options),
        Err(Errno::CHILD)
    )
}
