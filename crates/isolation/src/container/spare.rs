//! The launcher of the next start, made in the background.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::cgroup::Cgroups;
use super::launch::{Launcher, Program};
use crate::Error;

/// At most one launcher that waits.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    Coming(JoinHandle<Result<Launcher, Error>>),
    Here(Launcher),
}

impl State {
    /// Waits for one that is coming. One that failed to come is none: the next start meets the same error.
    fn arrived(self) -> Option<Launcher> {
        match self {
            Self::None => None,
            Self::Coming(thread) => thread.join().ok()?.ok(),
            Self::Here(launcher) => Some(launcher),
        }
    }
}

impl Spare {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to make one, unless there is one.
    pub(super) fn prepare(&self, cgroups: &Cgroups, program: Program) {
        let mut state = self.state();
        if !matches!(*state, State::None) {
            return;
        }
        let cgroups = cgroups.clone();
        let work = move || Launcher::spawn(&cgroups, program);
        // Without a thread the next start is only slower.
        if let Ok(thread) = std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(work)
        {
            *state = State::Coming(thread);
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
            State::None | State::Coming(_) => work(None),
        }
    }
}
