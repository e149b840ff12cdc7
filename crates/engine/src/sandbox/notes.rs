//! Events whose place in the journal is certain when they are answered, and that become durable with what comes next, or a few
//! milliseconds later.
//!
//! A daemon that is lost meanwhile takes them along. So only that is noted from which nothing follows: that something was read
//! outside, and how a request ended. Everything that a caller writes after it stands behind it.

use std::time::Duration;

use protocol::{Event, Seq};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Reply;
use super::actor::{Sandbox, Turn};

/// How long what was noted may wait for company.
const COMPANY: Duration = Duration::from_millis(5);
/// The most events that are answered and not on their way to the disk; more wait.
const MOST: usize = 1024;
/// Notes that wait for the task, beside those in [`MOST`].
const QUEUE: usize = 1024;

/// Events that somebody wants noted.
pub(crate) struct Note {
    pub(crate) events: Vec<Event>,
    pub(crate) reply: Reply<Seq>,
}

/// Returns both ends of a sandbox's notes.
pub(super) fn notes() -> (mpsc::Sender<Note>, mpsc::Receiver<Note>) {
    mpsc::channel(QUEUE)
}

/// What of a turn was noted.
#[derive(Default)]
pub(super) struct Noted {
    events: usize,
    /// When the first of them must go.
    until: Option<Instant>,
}

impl Turn {
    /// Returns when a turn must be written that only has notes; none where it has none.
    pub(super) fn due(&self) -> Option<Instant> {
        let until = self.noted.until?;
        Some(if self.has_room() {
            until
        } else {
            Instant::now()
        })
    }

    /// Whether nobody waits for it, and its time has not come.
    pub(super) fn may_wait(&self) -> bool {
        let nobody_waits = self.after.is_empty() && self.events.len() == self.noted.events;
        nobody_waits && self.due().is_some_and(|due| Instant::now() < due)
    }

    /// Whether more may be noted before these are written.
    pub(super) fn has_room(&self) -> bool {
        self.noted.events < MOST
    }
}

impl Sandbox {
    /// Gives events their place, and answers.
    pub(super) fn note(&mut self, note: Note, turn: &mut Turn) {
        let answer = match &self.problem {
            Some(problem) => Err(problem.clone()),
            None => {
                for event in note.events {
                    self.push(turn, event);
                    turn.noted.events += 1;
                }
                let until = Instant::now() + COMPANY;
                turn.noted.until.get_or_insert(until);
                Ok(self.place_of_last(turn))
            }
        };
        // Whoever asked may have gone; it is noted all the same.
        let _gone = note.reply.send(answer);
    }

    /// Refuses what waits to be noted: nothing more leaves while the journal has no room.
    pub(super) fn refuse_notes(&mut self, problem: &protocol::ApiError) {
        while let Ok(note) = self.notes.try_recv() {
            let _gone = note.reply.send(Err(problem.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use journal::New;

    use super::*;

    fn noted(count: usize, until: Instant) -> Turn {
        let mut turn = Turn::default();
        turn.events
            .extend((0..count).map(|_| New::from(Event::Kept)));
        turn.noted.events = count;
        turn.noted.until = Some(until);
        turn
    }

    #[tokio::test]
    async fn a_turn_waits_only_while_nobody_else_does_and_its_time_has_not_come() {
        let later = Instant::now() + Duration::from_secs(60);
        assert!(!Turn::default().may_wait());
        assert_eq!(Turn::default().due(), None);
        assert!(noted(2, later).may_wait());
        assert_eq!(noted(2, later).due(), Some(later));
        assert!(!noted(2, Instant::now()).may_wait());
        let mut turn = noted(2, later);
        turn.after.push(Box::new(|_| {}));
        assert!(!turn.may_wait(), "somebody waits for the answer");
        let mut turn = noted(2, later);
        turn.events.push(New::from(Event::Kept));
        assert!(!turn.may_wait(), "there is an event that is no note");
    }

    #[tokio::test]
    async fn what_is_answered_and_not_written_has_a_bound() {
        let later = Instant::now() + Duration::from_secs(60);
        let full = noted(MOST, later);
        assert!(!full.has_room() && !full.may_wait());
        assert!(full.due().is_some_and(|due| due < later));
    }
}
