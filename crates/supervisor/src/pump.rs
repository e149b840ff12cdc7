//! Moves one stream of an operation into its spool file for as long as anybody holds the other end.
//!
//! A stream starts on the main thread. One that turns out to be long gets a thread of its own: writing to a disk that is
//! behind blocks, and must block only whoever writes that much.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::spool::{Error, Sink, Step, Tail};
use crate::{sys, threads};

/// A stream longer than this gets its own thread.
const LONG: u64 = 2 << 20;
/// The most one stream moves before others get their turn.
const TURN: u64 = 256 << 10;
/// The most threads for streams at one time; further ones stay on the main thread.
const MAX_THREADS: usize = 32;
/// The size of pipe that a long stream gets, where the kernel allows it.
const WIDE_PIPE: usize = 1 << 20;
/// How much a thread writes before it asks the disk to start, so that the sync at the end finds little to do.
const WRITEBACK: u64 = 16 << 20;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Who hears of a stream: a permit in `progress` for new bytes, the error if it cannot be kept.
#[derive(Clone)]
pub(crate) struct Listener {
    pub(crate) progress: Arc<Notify>,
    pub(crate) failed: mpsc::UnboundedSender<Error>,
}

/// One stream on its way.
pub(crate) struct Pump {
    tail: Arc<Tail>,
    place: RefCell<Place>,
    stopped: Notify,
}

enum Place {
    Here {
        source: Rc<AsyncFd<OwnedFd>>,
        sink: Sink,
    },
    Thread(Arc<Orders>),
    Ended,
}

/// What a thread is asked to do. It looks after every step and when `wake` becomes readable.
struct Orders {
    wake: OwnedFd,
    drain: Mutex<Drain>,
    stop: AtomicBool,
}

enum Drain {
    Idle,
    Asked(oneshot::Sender<Result<(), Error>>),
    /// The thread has ended: there is nothing more to move.
    Over,
}

impl Orders {
    fn wake(&self) {
        // The counter cannot overflow by these; a full one is readable as well.
        let _woken: Result<usize, _> = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn set_drain(&self, new: Drain) -> Drain {
        let mut drain = self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *drain, new)
    }

    /// Asks the thread to drain; `None` if it has ended.
    fn ask(&self) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let (done, drained) = oneshot::channel();
        if let Drain::Over = self.set_drain(Drain::Asked(done)) {
            self.set_drain(Drain::Over);
            return None;
        }
        self.wake();
        Some(drained)
    }
}

impl Pump {
    /// Starts moving `source`, which does not block, into `sink`.
    pub(crate) fn start(
        source: OwnedFd,
        sink: Sink,
        listener: Listener,
    ) -> std::io::Result<Rc<Self>> {
        let interest = tokio::io::Interest::READABLE;
        let source = Rc::new(sys::watch(source, interest)?);
        let pump = Rc::new(Self {
            tail: sink.tail(),
            place: RefCell::new(Place::Here {
                source: Rc::clone(&source),
                sink,
            }),
            stopped: Notify::new(),
        });
        tokio::task::spawn_local(Rc::clone(&pump).run(source, listener));
        Ok(pump)
    }

    /// Returns how far it has come.
    pub(crate) fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }

    /// Moves what the operation has written up to now, and no more.
    pub(crate) async fn drain(&self) -> Result<(), Error> {
        let orders = match &mut *self.place.borrow_mut() {
            Place::Here { source, sink } => return sink.drain(source.as_fd()),
            Place::Ended => return Ok(()),
            Place::Thread(orders) => Arc::clone(orders),
        };
        match orders.ask() {
            // A thread that ends instead has told its error before.
            Some(drained) => drained.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    /// Stops and closes our end: whoever still writes gets an error.
    pub(crate) fn stop(&self) {
        match self.place.replace(Place::Ended) {
            Place::Thread(orders) => {
                orders.stop.store(true, Ordering::Release);
                orders.wake();
            }
            Place::Here { .. } => self.stopped.notify_one(),
            Place::Ended => {}
        }
    }

    async fn run(self: Rc<Self>, source: Rc<AsyncFd<OwnedFd>>, listener: Listener) {
        loop {
            let mut ready = tokio::select! {
                () = self.stopped.notified() => break,
                ready = source.readable() => match ready {
                    Ok(ready) => ready,
                    Err(_) => break,
                },
            };
            match self.turn(&listener) {
                Some(Step::Empty) => ready.clear_ready(),
                Some(Step::Moved) => {}
                Some(Step::End) | None => break,
            }
            drop(ready);
            if self.tail.length() > LONG && self.go_long(&source, &listener) {
                drop(source);
                return;
            }
            tokio::task::yield_now().await;
        }
        self.place.replace(Place::Ended);
    }

    /// Moves up to a turn's worth; `None` if the stream must end.
    fn turn(&self, listener: &Listener) -> Option<Step> {
        let mut place = self.place.borrow_mut();
        let Place::Here { source, sink } = &mut *place else {
            return None;
        };
        let before = self.tail.length();
        let result = loop {
            match sink.step(source.as_fd(), TURN) {
                Ok(Step::Moved) if self.tail.length() - before < TURN => {}
                other => break other,
            }
        };
        if self.tail.length() > before {
            listener.progress.notify_one();
        }
        result
            .map_err(|error| {
                // Nobody listens any more once the operation has settled.
                let _told: Result<(), _> = listener.failed.send(error);
            })
            .ok()
    }

    /// Moves the stream to a thread of its own, if there is one to be had: the sandbox's limit of processes counts threads.
    fn go_long(&self, source: &AsyncFd<OwnedFd>, listener: &Listener) -> bool {
        if THREADS.fetch_add(1, Ordering::Relaxed) < MAX_THREADS {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let parts = (
                source.get_ref().try_clone(),
                rustix::event::eventfd(0, flags),
                threads::start::<Long>("pump", Long::run),
            );
            if let (Ok(source), Ok(wake), Ok(thread)) = parts
                && let Place::Here { sink, .. } = self.place.replace(Place::Ended)
            {
                let orders = Arc::new(Orders {
                    wake,
                    drain: Mutex::new(Drain::Idle),
                    stop: AtomicBool::new(false),
                });
                self.place.replace(Place::Thread(Arc::clone(&orders)));
                thread.give(Long {
                    source,
                    sink,
                    orders,
                    listener: listener.clone(),
                });
                return true;
            }
        }
        THREADS.fetch_sub(1, Ordering::Relaxed);
        false
    }
}

/// What the thread of a long stream works with.
struct Long {
    source: OwnedFd,
    sink: Sink,
    orders: Arc<Orders>,
    listener: Listener,
}

impl Long {
    fn run(self) {
        let Self {
            source,
            sink,
            orders,
            listener,
        } = self;
        if let Err(error) = move_all(&source, sink, &orders, &listener.progress) {
            // Nobody listens any more once the operation has settled.
            let _told: Result<(), _> = listener.failed.send(error);
        }
        THREADS.fetch_sub(1, Ordering::Relaxed);
        drop(orders.set_drain(Drain::Over));
    }
}

fn move_all(
    source: &OwnedFd,
    mut sink: Sink,
    orders: &Orders,
    progress: &Notify,
) -> Result<(), Error> {
    // A narrow pipe costs more wake-ups, nothing else.
    let _wide: Result<usize, _> = rustix::pipe::fcntl_setpipe_size(source, WIDE_PIPE);
    let tail = sink.tail();
    let (mut told, mut written) = (tail.length(), tail.length());
    loop {
        if let Drain::Asked(done) = orders.set_drain(Drain::Idle) {
            let result = sink.drain(source);
            let is_over = result.is_err();
            // Whoever asked may have gone.
            let _told: Result<(), _> = done.send(result);
            if is_over {
                return Ok(());
            }
        }
        if orders.stop.load(Ordering::Acquire) {
            return Ok(());
        }
        let step = sink.step(source, WIDE_PIPE as u64)?;
        let length = tail.length();
        if length - told >= TURN || (step != Step::Moved && length > told) {
            told = length;
            progress.notify_one();
        }
        if length - written >= WRITEBACK {
            written = length;
            if let Some(file) = tail.file() {
                sys::start_writeback(&*file);
            }
        }
        match step {
            Step::Moved => {}
            Step::End => return Ok(()),
            Step::Empty => wait(source, &orders.wake)?,
        }
    }
}

/// Waits for bytes, the end or an order.
fn wait(source: &OwnedFd, wake: &OwnedFd) -> Result<(), Error> {
    let mut fds = [
        PollFd::new(source, PollFlags::IN),
        PollFd::new(wake, PollFlags::IN),
    ];
    match rustix::event::poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    if !fds[1].revents().is_empty() {
        // Only its being readable matters; the orders are looked at next.
        let _count: Result<usize, _> = rustix::io::read(wake, &mut [0; 8]);
    }
    Ok(())
}
