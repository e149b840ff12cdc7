//! What is wrong with a journal, said so that a person can act on it.

use std::fmt;

use protocol::{Epoch, Head, Seq};

/// One place that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The event's place.
    pub seq: Seq,
    /// What is wrong there.
    pub flaw: Flaw,
}

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The payload does not have its checksum.
    BadCrc,
    /// The event's hash does not follow from its predecessor's.
    ChainBreak,
    /// There is no event, though later ones are there.
    Gap,
    /// There is no event, though the head says so. It is the first one missing up to the head.
    MissingTail {
        /// Where the journal should end.
        head: Seq,
    },
    /// The head row holds another hash than the last event.
    HeadDisagrees,
    /// The event is newer than the head.
    BeyondHead {
        /// Where the journal should end.
        head: Seq,
    },
    /// The event was written under a newer epoch than the head knows of.
    EpochAhead {
        /// The event's.
        event: Epoch,
        /// The head's.
        head: Epoch,
    },
    /// The witness remembers events that the journal does not have: its tail was lost.
    WitnessAhead {
        /// Where the journal ends.
        head: Seq,
    },
    /// The witness remembers another event at this place.
    WitnessDisagrees,
    /// The event was written by a newer version of this program.
    NewerVersion {
        /// The version in it.
        version: u16,
    },
    /// The event has its checksum but cannot be understood.
    Unreadable {
        /// What the decoder says.
        why: String,
    },
    /// The database around it cannot be read.
    Storage {
        /// What the database says.
        why: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seq = self.seq;
        match &self.flaw {
            Flaw::BadCrc => write!(f, "event {seq} does not have its checksum"),
            Flaw::ChainBreak => write!(f, "event {seq} does not follow from the one before it"),
            Flaw::Gap => write!(f, "event {seq} is missing"),
            Flaw::MissingTail { head } => write!(f, "events {seq} to {head} are missing"),
            Flaw::HeadDisagrees => write!(f, "event {seq} is not the one that the head names"),
            Flaw::BeyondHead { head } => write!(f, "event {seq} is beyond the head {head}"),
            Flaw::EpochAhead { event, head } => {
                write!(
                    f,
                    "event {seq} has epoch {event}, the head only epoch {head}"
                )
            }
            Flaw::WitnessAhead { head } => {
                write!(
                    f,
                    "the supervisor remembers event {seq}, the journal ends at {head}"
                )
            }
            Flaw::WitnessDisagrees => {
                write!(f, "the supervisor remembers another event at {seq}")
            }
            Flaw::NewerVersion { version } => {
                write!(
                    f,
                    "event {seq} has version {version}, written by a newer version of this program"
                )
            }
            Flaw::Unreadable { why } => write!(f, "event {seq} cannot be understood: {why}"),
            Flaw::Storage { why } => {
                write!(f, "the database cannot be read from event {seq} on ({why})")
            }
        }
    }
}

/// What a journal was found to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The head that the store believes in.
    pub head: Head,
    /// Events 1 up to this one can be read and are what was written.
    pub readable: Seq,
    /// Everything that is wrong; empty for a whole journal.
    pub damage: Vec<Damage>,
}

impl Report {
    /// Returns whether nothing is wrong.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            return write!(f, "whole: events 1 to {}", self.readable);
        }
        for damage in &self.damage {
            write!(f, "{damage}; ")?;
        }
        match self.readable {
            Seq(0) => f.write_str("nothing can be read"),
            last => write!(f, "events 1 to {last} can be read"),
        }
    }
}
