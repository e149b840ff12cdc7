//! Threads that may not be had: the sandbox's limit of processes counts ours too, and reaching it must not end us.

use std::io;
use std::sync::mpsc;

/// Enough for what threads here do, which is system calls.
const STACK: usize = 256 << 10;

/// A thread that waits for its work.
pub(crate) struct Idle<T>(mpsc::Sender<T>);

impl<T> Idle<T> {
    /// Gives it its work. One that is dropped without ends.
    pub(crate) fn give(self, work: T) {
        // It waits for nothing else.
        let _given: Result<(), _> = self.0.send(work);
    }
}

/// Starts a thread that will `run` what it is given. The work stays with the caller if there is no thread to be had.
pub(crate) fn start<T: Send + 'static>(name: &str, run: fn(T)) -> io::Result<Idle<T>> {
    let (give, given) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK);
    thread.spawn(move || {
        if let Ok(work) = given.recv() {
            run(work);
        }
    })?;
    Ok(Idle(give))
}
