//! A bounded queue between async callers and a thread, which takes what waits as one batch.
//!
//! Pushing never blocks, so the order of the calls is the order of the queue. The bounds are there for a caller that
//! goes on without awaiting answers: it is refused instead of filling the memory.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Durability, Error};

/// Bytes that may wait: a few seconds of a slow disk's writing.
const WAITING_BYTES: usize = 64 << 20;
/// Calls that may wait: far above the number of tasks that a daemon has.
const WAITING_CALLS: usize = 1 << 16;
/// How long a relaxed call may wait for company.
const RELAXED_DELAY: Duration = Duration::from_millis(5);

struct Item<T> {
    value: T,
    bytes: usize,
    durability: Durability,
}

struct State<T> {
    items: VecDeque<Item<T>>,
    bytes: usize,
    urgent: usize,
    relaxed_since: Option<Instant>,
    shut: Option<Error>,
    /// Threads that wait. Waking costs a system call, which a busy thread needs not be sent.
    asleep: usize,
    /// How many calls a waiting thread wants to see before it is woken.
    wanted: usize,
}

/// How long to wait for company that is about to come: callers who were just answered tend to call again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gather {
    /// Calls that are worth a commit of their own.
    pub(crate) calls: usize,
    /// How long to wait for them at most.
    pub(crate) patience: Duration,
}

/// What a thread found in its queue.
pub(crate) enum Taken<T> {
    /// These, in order.
    Batch(Vec<T>),
    /// Nothing for the time given.
    Idle,
    /// Nothing, and nothing will come.
    Shut,
}

pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                bytes: 0,
                urgent: 0,
                relaxed_since: None,
                shut: None,
                asleep: 0,
                wanted: 1,
            }),
            ready: Condvar::new(),
        }
    }

    /// Adds a call, or says why not.
    pub(crate) fn push(&self, value: T, bytes: usize, durability: Durability) -> Result<(), Error> {
        let mut state = self.lock();
        if let Some(why) = &state.shut {
            return Err(why.clone());
        }
        let waiting = state.items.len();
        if waiting >= WAITING_CALLS || (waiting > 0 && state.bytes + bytes > WAITING_BYTES) {
            return Err(Error::Busy { waiting });
        }
        state.bytes += bytes;
        match durability {
            Durability::Now => state.urgent += 1,
            Durability::Relaxed if state.relaxed_since.is_none() => {
                state.relaxed_since = Some(Instant::now());
            }
            Durability::Relaxed => {}
        }
        state.items.push_back(Item {
            value,
            bytes,
            durability,
        });
        let wake = state.asleep > 0 && state.items.len() >= state.wanted;
        drop(state);
        if wake {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Takes the oldest call, waiting for one; none when the queue is shut.
    pub(crate) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                state.bytes -= item.bytes;
                return Some(item.value);
            }
            if state.shut.is_some() {
                return None;
            }
            state.asleep += 1;
            state = self
                .ready
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
        }
    }

    /// Returns how many calls wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Takes what waits, up to about `bytes`, as soon as something must be done and its company is there.
    pub(crate) fn take(
        &self,
        calls: usize,
        bytes: usize,
        idle: Duration,
        gather: Gather,
    ) -> Taken<T> {
        let asleep = Instant::now() + idle;
        let mut gathered = None;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let mut wanted = 1;
            let until = match (&state.shut, state.relaxed_since) {
                (Some(_), _) if state.items.is_empty() => return Taken::Shut,
                (Some(_), _) => break,
                (None, _) if state.urgent > 0 => {
                    if state.items.len() >= gather.calls {
                        break;
                    }
                    wanted = gather.calls;
                    *gathered.get_or_insert(now + gather.patience)
                }
                (None, Some(since)) => since + RELAXED_DELAY,
                (None, None) => asleep,
            };
            if now >= until {
                if state.items.is_empty() {
                    return Taken::Idle;
                }
                break;
            }
            state.asleep += 1;
            // Only for this wait: left behind, it would keep a single call of the next one waiting.
            state.wanted = wanted;
            state = self
                .ready
                .wait_timeout(state, until - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.asleep -= 1;
            state.wanted = 1;
        }
        let mut batch = Vec::with_capacity(state.items.len().min(calls));
        let mut taken = 0;
        while batch.len() < calls && (taken < bytes || batch.is_empty()) {
            let Some(item) = state.items.pop_front() else {
                break;
            };
            taken += item.bytes;
            if item.durability == Durability::Now {
                state.urgent -= 1;
            }
            batch.push(item.value);
        }
        state.bytes -= taken;
        if state.items.is_empty() {
            state.relaxed_since = None;
        }
        Taken::Batch(batch)
    }

    /// Refuses everything from now on with this error, unless it was shut before. What waits stays to be taken.
    pub(crate) fn shut(&self, why: Error) {
        let mut state = self.lock();
        state.shut.get_or_insert(why);
        drop(state);
        self.ready.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_after_company_that_did_not_come_wakes_the_thread() {
        let queue = Queue::new();
        let gather = Gather {
            calls: 2,
            patience: Duration::from_millis(1),
        };
        let long = Duration::from_secs(60);
        let take = |gather| queue.take(8, 1 << 20, long, gather);
        queue.push(1, 1, Durability::Now).unwrap();
        assert!(matches!(take(gather), Taken::Batch(batch) if batch == [1]));
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| take(Gather::default()));
            while queue.lock().asleep == 0 {
                std::thread::yield_now();
            }
            let begun = Instant::now();
            queue.push(2, 1, Durability::Now).unwrap();
            assert!(matches!(taken.join().unwrap(), Taken::Batch(batch) if batch == [2]));
            assert!(begun.elapsed() < long / 2);
        });
    }
}
