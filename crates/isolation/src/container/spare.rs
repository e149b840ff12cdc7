//! The launcher of the next start, made in the background.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::cgroup::Cgroups;
use super::launch::{Launcher, Program};
use crate::Error;

/// How long the sandbox that was just started has the machine to itself. While a process is moved into a cgroup, which takes
/// the kernel some milliseconds, nobody can fork: a start's first operation would wait for the launcher of the next start.
const REST: Duration = Duration::from_millis(30);

/// When a launcher is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// At once.
    Now,
    /// After a rest, or as soon as somebody wants it.
    Rested,
}

/// At most one launcher that waits.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// Dropping the sender ends its rest.
    Coming(JoinHandle<Result<Launcher, Error>>, Sender<()>),
    Here(Launcher),
}

impl State {
    /// Waits for one that is coming. One that failed to come is none: the next start meets the same error.
    fn arrived(self) -> Option<Launcher> {
        match self {
            Self::None => None,
            Self::Coming(thread, rest) => {
                drop(rest);
                thread.join().ok()?.ok()
            }
            Self::Here(launcher) => Some(launcher),
        }
    }
}

impl Spare {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to make one, unless there is one.
    pub(super) fn prepare(&self, cgroups: &Cgroups, program: Program, when: When) {
        let mut state = self.state();
        if !matches!(*state, State::None) {
            return;
        }
        let cgroups = cgroups.clone();
        let (rest, wanted) = channel::<()>();
        let work = move || {
            if when == When::Rested {
                // Either way it is made; what differs is who waits for it.
                let _wanted = wanted.recv_timeout(REST);
            }
            Launcher::spawn(&cgroups, program)
        };
        // Without a thread the next start is only slower.
        if let Ok(thread) = std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(work)
        {
            *state = State::Coming(thread, rest);
        }
    }

    /// Takes the one there is, if it is of this program and waits. Any other is ended.
    pub(super) fn take(&self, program: &Program) -> Option<Launcher> {
        let state = std::mem::take(&mut *self.state());
        let launcher = state.arrived()?;
        (launcher.program == *program && launcher.waits()).then_some(launcher)
    }

    /// Ends the one there is.
    pub(super) fn end(&self) {
        let state = std::mem::take(&mut *self.state());
        drop(state.arrived());
    }

    /// Calls `work` with the name of its cgroups; no other comes meanwhile.
    pub(super) fn hold<T>(&self, work: impl FnOnce(Option<&str>) -> T) -> T {
        let mut state = self.state();
        *state = std::mem::take(&mut *state)
            .arrived()
            .map_or(State::None, State::Here);
        match &*state {
            State::Here(launcher) => work(launcher.group_name()),
            State::None | State::Coming(..) => work(None),
        }
    }
}
