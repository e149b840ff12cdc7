//! Leases: a secret is used by the sandbox it was resolved for, in the epoch it was resolved in, and by nobody else.
//!
//! A sandbox that is fenced, removed or rewound loses its lease at once; what holds a value under it can no longer use it,
//! wherever it is in its work. A fork takes a lease of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use protocol::{Epoch, SandboxId};

use crate::value::Value;

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndedBy {
    /// Another writer has the sandbox's journal, or the sandbox was given to another lease.
    Fenced,
    /// The sandbox was removed.
    Removed,
    /// The sandbox was put back to an earlier checkpoint.
    Rewound,
    /// The secret was taken from the sandbox.
    Revoked,
}

/// A secret was used under a lease that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "sandbox {sandbox} may not use its secrets any more in epoch {epoch}: {}; what was sent before is not affected",
    by.text()
)]
pub struct Ended {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The epoch that the lease was given in.
    pub epoch: Epoch,
    /// Why.
    pub by: EndedBy,
}

/// The right of one sandbox, in one epoch, to use secrets. Copies of it end together, and for ever.
#[derive(Debug, Clone)]
pub struct Lease {
    sandbox: SandboxId,
    epoch: Epoch,
    ended: Arc<AtomicU8>,
}

impl EndedBy {
    const ALL: [Self; 4] = [Self::Fenced, Self::Removed, Self::Rewound, Self::Revoked];

    fn text(self) -> &'static str {
        match self {
            Self::Fenced => "another has the sandbox now",
            Self::Removed => "the sandbox was removed",
            Self::Rewound => "the sandbox was put back to an earlier checkpoint",
            Self::Revoked => "the secret was taken from it",
        }
    }

    /// 0 is a lease that has not ended.
    fn number(self) -> u8 {
        match self {
            Self::Fenced => 1,
            Self::Removed => 2,
            Self::Rewound => 3,
            Self::Revoked => 4,
        }
    }
}

impl Lease {
    /// Gives a lease that nothing but [`end`](Self::end) ends.
    #[must_use]
    pub fn new(sandbox: SandboxId, epoch: Epoch) -> Self {
        Self {
            sandbox,
            epoch,
            ended: Arc::new(AtomicU8::new(0)),
        }
    }

    /// Returns whose it is.
    #[must_use]
    pub fn sandbox(&self) -> SandboxId {
        self.sandbox
    }

    /// Returns the epoch it was given in.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Tells whether secrets may be used under it now.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.check().is_ok()
    }

    /// Checks that secrets may be used under it now.
    ///
    /// # Errors
    /// It has ended.
    pub fn check(&self) -> Result<(), Ended> {
        let number = self.ended.load(Ordering::Acquire);
        match EndedBy::ALL.into_iter().find(|by| by.number() == number) {
            None => Ok(()),
            Some(by) => Err(Ended {
                sandbox: self.sandbox,
                epoch: self.epoch,
                by,
            }),
        }
    }

    /// Ends it, and all copies of it. The first reason stays.
    pub fn end(&self, by: EndedBy) {
        let _first =
            self.ended
                .compare_exchange(0, by.number(), Ordering::AcqRel, Ordering::Acquire);
    }

    /// Puts a value under the lease.
    #[must_use]
    pub fn bind(&self, value: Arc<Value>) -> Leased {
        Leased {
            lease: self.clone(),
            value,
        }
    }
}

/// A value that can be used while its lease is current.
#[derive(Debug, Clone)]
pub struct Leased {
    lease: Lease,
    value: Arc<Value>,
}

impl Leased {
    /// Returns the value. Call it where the value is used up, not before something that takes time.
    ///
    /// # Errors
    /// The lease has ended.
    pub fn value(&self) -> Result<&Value, Ended> {
        self.lease.check()?;
        Ok(&self.value)
    }
}

/// The leases that this daemon has given, one for each sandbox.
#[derive(Debug, Default)]
pub struct Leases(Mutex<HashMap<SandboxId, Lease>>);

impl Leases {
    /// Gives a sandbox its lease. One that it had before, in this epoch or an earlier one, ends as fenced.
    ///
    /// # Errors
    /// The sandbox has a lease of a later epoch: whoever asks is the one that was fenced.
    pub fn give(&self, sandbox: SandboxId, epoch: Epoch) -> Result<Lease, Ended> {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = leases.get(&sandbox) {
            if before.epoch > epoch {
                return Err(Ended {
                    sandbox,
                    epoch,
                    by: EndedBy::Fenced,
                });
            }
            before.end(EndedBy::Fenced);
        }
        let lease = Lease::new(sandbox, epoch);
        leases.insert(sandbox, lease.clone());
        Ok(lease)
    }

    /// Ends a sandbox's lease, where it has one. What it may use afterwards it is given anew.
    pub fn end(&self, sandbox: SandboxId, by: EndedBy) {
        let leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = leases.get(&sandbox) {
            lease.end(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: SandboxId = SandboxId(1);

    #[test]
    fn a_value_cannot_be_used_when_its_lease_has_ended() {
        for by in EndedBy::ALL {
            let leases = Leases::default();
            let lease = leases.give(ADA, Epoch(3)).expect("it is the first");
            let held = lease.bind(Arc::new(Value::new("hunter2")));
            assert_eq!(held.value().map(Value::expose), Ok(&b"hunter2"[..]));
            leases.end(ADA, by);
            leases.end(ADA, EndedBy::Removed);
            let ended = held.value().expect_err("it has ended");
            assert_eq!((ended.by, ended.epoch), (by, Epoch(3)));
            assert!(!lease.is_current() && !lease.clone().is_current());
            assert!(!format!("{ended} {ended:?} {held:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_new_lease_ends_the_one_before_and_no_other_sandboxs() {
        let leases = Leases::default();
        let (first, fork) = (
            leases.give(ADA, Epoch(1)).expect("it is the first"),
            leases
                .give(SandboxId(2), Epoch(1))
                .expect("it is the first"),
        );
        let second = leases.give(ADA, Epoch(2)).expect("it is later");
        assert_eq!(
            first.check().map_err(|ended| ended.by),
            Err(EndedBy::Fenced)
        );
        assert!(second.is_current() && fork.is_current());
        let rewound = leases.give(ADA, Epoch(2)).expect("it is the same writer");
        assert!(!second.is_current() && rewound.is_current());
    }

    #[test]
    fn who_was_fenced_gets_no_lease_and_ends_none() {
        let leases = Leases::default();
        let lease = leases.give(ADA, Epoch(2)).expect("it is the first");
        leases.end(ADA, EndedBy::Removed);
        assert!(leases.give(ADA, Epoch(1)).is_err());
        let lease_again = leases.give(ADA, Epoch(2)).expect("it is the same writer");
        assert!(leases.give(ADA, Epoch(1)).is_err());
        assert!(!lease.is_current() && lease_again.is_current());
    }
}
