//! The contract in memory, written to be obviously right: the measure that every engine is compared with.
//!
//! Nothing in it is durable, so it serves tests only.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::{
    EVENT_VERSION, Epoch, Event, EventId, Head, SandboxId, SandboxName, Seq, Stored, UnixMillis,
    chain_hash,
};
use tokio::sync::watch;

use crate::encoded::{decoded, encode};
use crate::{
    Append, BoxFuture, Damage, Error, Failure, Flaw, Lease, New, Raw, Report, Resolution, Store,
};

struct Journal {
    name: SandboxName,
    epoch: Epoch,
    leased: bool,
    events: Vec<Stored>,
    tail: watch::Sender<Seq>,
}

impl Journal {
    fn head(&self) -> Head {
        self.events.last().map_or(Head::EMPTY, |last| Head {
            seq: last.seq,
            hash: last.hash,
        })
    }

    fn at(&self, seq: Seq) -> Option<&Stored> {
        let index = usize::try_from(seq.0.checked_sub(1)?).ok()?;
        self.events.get(index)
    }
}

#[derive(Default)]
struct State {
    last: SandboxId,
    journals: BTreeMap<SandboxId, Journal>,
}

impl State {
    fn journal(&mut self, sandbox: SandboxId) -> Result<&mut Journal, Error> {
        self.journals
            .get_mut(&sandbox)
            .ok_or(Error::UnknownSandbox { sandbox })
    }

    fn append(&mut self, append: Append) -> Result<Head, Error> {
        let payloads = encode(&append)?;
        let journal = self.journal(append.sandbox)?;
        if journal.epoch != append.epoch {
            return Err(Error::Fenced {
                sandbox: append.sandbox,
                given: append.epoch,
                current: journal.epoch,
            });
        }
        let mut head = journal.head();
        if head.seq != append.expected {
            return Err(Error::WrongSequence {
                sandbox: append.sandbox,
                head,
            });
        }
        for (new, encoded) in append.events.into_iter().zip(payloads) {
            let seq = head.seq.next();
            let hash = chain_hash(
                &head.hash,
                seq,
                new.id,
                append.epoch,
                append.at,
                encoded.payload.as_bytes(),
            );
            head = Head { seq, hash };
            journal.events.push(Stored {
                seq,
                id: new.id,
                epoch: append.epoch,
                at: append.at,
                event: new.event,
                hash,
            });
        }
        journal.tail.send_replace(head.seq);
        Ok(head)
    }

    fn create(&mut self, name: &SandboxName) -> Result<SandboxId, Error> {
        if let Some((by, _)) = self.journals.iter().find(|(_, j)| j.name == *name) {
            return Err(Error::NameTaken {
                name: name.clone(),
                by: *by,
            });
        }
        self.last = self.last.next();
        let journal = Journal {
            name: name.clone(),
            epoch: Epoch(0),
            leased: false,
            events: Vec::new(),
            tail: watch::Sender::new(Seq(0)),
        };
        self.journals.insert(self.last, journal);
        Ok(self.last)
    }

    fn found(&mut self, name: &SandboxName, first: Append) -> Result<Lease, Error> {
        encode(&first)?;
        let sandbox = self.create(name)?;
        let epoch = self.lease(&[sandbox])?[0].epoch;
        let head = self.append(Append {
            sandbox,
            epoch,
            ..first
        })?;
        Ok(Lease {
            sandbox,
            epoch,
            head,
        })
    }

    fn import(&mut self, sandbox: SandboxId, events: Vec<Raw>) -> Result<Head, Error> {
        let events = decoded(sandbox, events)?;
        let journal = self.journal(sandbox)?;
        if journal.leased {
            return Err(Error::Leased {
                sandbox,
                current: journal.epoch,
            });
        }
        let (mut head, mut epoch, mut copied) = (journal.head(), journal.epoch, Vec::new());
        for (raw, event) in events {
            if let Some(flaw) = raw.flaw_after(head, epoch) {
                let damage = Damage { seq: raw.seq, flaw };
                return Err(Error::Damaged { sandbox, damage });
            }
            (head, epoch) = (raw.head(), raw.epoch);
            copied.push(Stored {
                seq: raw.seq,
                id: raw.id,
                epoch: raw.epoch,
                at: raw.at,
                event,
                hash: raw.hash,
            });
        }
        journal.events.extend(copied);
        journal.epoch = epoch;
        journal.tail.send_replace(head.seq);
        Ok(head)
    }

    fn lease(&mut self, sandboxes: &[SandboxId]) -> Result<Vec<Lease>, Error> {
        for &sandbox in sandboxes {
            self.journal(sandbox)?;
        }
        sandboxes
            .iter()
            .map(|&sandbox| {
                let journal = self.journal(sandbox)?;
                journal.epoch = journal.epoch.next();
                journal.leased = true;
                Ok(Lease {
                    sandbox,
                    epoch: journal.epoch,
                    head: journal.head(),
                })
            })
            .collect()
    }
}

/// A store in memory.
pub struct Oracle {
    state: Mutex<State>,
    failed: watch::Sender<Option<Failure>>,
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new()
    }
}

impl Oracle {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: Mutex::default(),
            failed: watch::Sender::new(None),
        }
    }

    /// Replaces what happened in a stored event and leaves its hash: damage for a test to find.
    ///
    /// Returns whether there is such an event.
    pub fn tamper(&self, sandbox: SandboxId, seq: Seq, event: Event) -> bool {
        let mut state = self.state();
        let Some(journal) = state.journals.get_mut(&sandbox) else {
            return false;
        };
        match journal.events.iter_mut().find(|stored| stored.seq == seq) {
            Some(stored) => {
                stored.event = event;
                true
            }
            None => false,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<T> {
    Box::pin(std::future::ready(value))
}

fn as_stored(stored: &Stored) -> Raw {
    let payload = serde_json::to_vec(&stored.event).unwrap_or_default();
    Raw {
        seq: stored.seq,
        id: stored.id,
        epoch: stored.epoch,
        at: stored.at,
        version: EVENT_VERSION,
        crc: crc32fast::hash(&payload),
        payload,
        hash: stored.hash,
    }
}

fn intact(prev: &[u8; 32], stored: &Stored) -> bool {
    serde_json::to_vec(&stored.event).is_ok_and(|payload| {
        chain_hash(
            prev,
            stored.seq,
            stored.id,
            stored.epoch,
            stored.at,
            &payload,
        ) == stored.hash
    })
}

impl Store for Oracle {
    fn create(&self, name: &SandboxName) -> BoxFuture<Result<SandboxId, Error>> {
        ready(self.state().create(name))
    }

    fn found(
        &self,
        name: &SandboxName,
        _node: &str,
        at: UnixMillis,
        events: Vec<New>,
    ) -> BoxFuture<Result<Lease, Error>> {
        ready(self.state().found(name, Append::first(at, events)))
    }

    fn lease(&self, sandbox: SandboxId, _node: &str) -> BoxFuture<Result<Lease, Error>> {
        ready(self.state().lease(&[sandbox]).map(|leases| leases[0]))
    }

    fn lease_many(
        &self,
        sandboxes: &[SandboxId],
        _node: &str,
    ) -> BoxFuture<Result<Vec<Lease>, Error>> {
        ready(self.state().lease(sandboxes))
    }

    fn append(&self, append: Append) -> BoxFuture<Result<Head, Error>> {
        ready(self.state().append(append))
    }

    fn resolve(
        &self,
        sandbox: SandboxId,
        seq: Seq,
        id: EventId,
    ) -> BoxFuture<Result<Resolution, Error>> {
        ready(self.state().journal(sandbox).map(|j| match j.at(seq) {
            Some(stored) if stored.id == id => Resolution::Mine(Head {
                seq,
                hash: stored.hash,
            }),
            Some(stored) => Resolution::Other(stored.id),
            None => Resolution::None,
        }))
    }

    fn head(&self, sandbox: SandboxId) -> BoxFuture<Result<Head, Error>> {
        ready(self.state().journal(sandbox).map(|j| j.head()))
    }

    fn read(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Stored>, Error>> {
        let mut state = self.state();
        let journal = match state.journal(sandbox) {
            Ok(journal) => journal,
            Err(e) => return ready(Err(e)),
        };
        let from = from.max(Seq(1));
        let mut prev = journal
            .at(Seq(from.0 - 1))
            .map_or(Head::EMPTY.hash, |s| s.hash);
        let mut events = Vec::new();
        for stored in journal.events.iter().filter(|s| s.seq >= from).take(limit) {
            if !intact(&prev, stored) {
                if events.is_empty() {
                    let damage = Damage {
                        seq: stored.seq,
                        flaw: Flaw::ChainBreak,
                    };
                    return ready(Err(Error::Damaged { sandbox, damage }));
                }
                break;
            }
            prev = stored.hash;
            events.push(stored.clone());
        }
        ready(Ok(events))
    }

    fn export(
        &self,
        sandbox: SandboxId,
        from: Seq,
        limit: usize,
    ) -> BoxFuture<Result<Vec<Raw>, Error>> {
        let read = self.read(sandbox, from, limit);
        Box::pin(async move { Ok(read.await?.iter().map(as_stored).collect()) })
    }

    fn import(&self, sandbox: SandboxId, events: Vec<Raw>) -> BoxFuture<Result<Head, Error>> {
        ready(self.state().import(sandbox, events))
    }

    fn unleased(&self) -> BoxFuture<Result<Vec<SandboxId>, Error>> {
        let state = self.state();
        let unleased = state.journals.iter().filter(|(_, j)| !j.leased);
        ready(Ok(unleased.map(|(id, _)| *id).collect()))
    }

    fn tail(&self, sandbox: SandboxId) -> Result<watch::Receiver<Seq>, Error> {
        self.state().journal(sandbox).map(|j| j.tail.subscribe())
    }

    fn list(&self) -> BoxFuture<Result<Vec<(SandboxId, SandboxName)>, Error>> {
        let state = self.state();
        let list = state.journals.iter().map(|(id, j)| (*id, j.name.clone()));
        ready(Ok(list.collect()))
    }

    fn remove(&self, sandbox: SandboxId) -> BoxFuture<Result<(), Error>> {
        let removed = self.state().journals.remove(&sandbox);
        ready(match removed {
            Some(_) => Ok(()),
            None => Err(Error::UnknownSandbox { sandbox }),
        })
    }

    fn verify(
        &self,
        sandbox: SandboxId,
        witness: Option<Head>,
    ) -> BoxFuture<Result<Report, Error>> {
        let mut state = self.state();
        let journal = match state.journal(sandbox) {
            Ok(journal) => journal,
            Err(e) => return ready(Err(e)),
        };
        let head = journal.head();
        let mut damage = Vec::new();
        let mut prev = Head::EMPTY.hash;
        let mut readable = Seq(0);
        for stored in &journal.events {
            if !intact(&prev, stored) {
                damage.push(Damage {
                    seq: stored.seq,
                    flaw: Flaw::ChainBreak,
                });
            } else if damage.is_empty() {
                readable = stored.seq;
            }
            prev = stored.hash;
        }
        if let Some(witness) = witness
            && witness.seq > Seq(0)
        {
            let flaw = match journal.at(witness.seq) {
                None => Some(Flaw::WitnessAhead { head: head.seq }),
                Some(stored) if stored.hash != witness.hash => Some(Flaw::WitnessDisagrees),
                Some(_) => None,
            };
            damage.extend(flaw.map(|flaw| Damage {
                seq: witness.seq,
                flaw,
            }));
        }
        ready(Ok(Report {
            head,
            readable,
            damage,
        }))
    }

    fn failed(&self) -> watch::Receiver<Option<Failure>> {
        self.failed.subscribe()
    }
}
