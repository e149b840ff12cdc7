//! What all parts of one supervisor share.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use protocol::{Boot, Epoch, Head};

use crate::doors::Doors;
use crate::files::Helpers;
use crate::launch::Launcher;
use crate::ledger::Ledger;
use crate::ops::Ops;
use crate::outbox::Link;
use crate::owner::Owners;
use crate::reaper::Reaper;
use crate::shims::Shims;
use crate::spool::Spool;
use crate::tree::Proc;

pub(crate) struct Core {
    pub(crate) boot: Boot,
    /// The highest epoch seen; its record may still be on the way to the disk.
    pub(crate) epoch: Cell<Epoch>,
    /// The highest journal head shown.
    pub(crate) witness: Cell<Head>,
    pub(crate) ledger: Ledger,
    pub(crate) launcher: Launcher,
    pub(crate) spool: Arc<Spool>,
    pub(crate) proc: Arc<Proc>,
    pub(crate) reaper: Rc<Reaper>,
    pub(crate) ops: Ops,
    pub(crate) link: Link,
    pub(crate) shims: Shims,
    /// Where what leaves the sandbox ends.
    pub(crate) doors: Doors,
    /// Whose the connections are that end there.
    pub(crate) owners: Owners,
    /// Those that serve files to the daemon.
    pub(crate) helpers: Helpers,
    /// Set by the order to end: nothing new is started.
    pub(crate) closing: Cell<bool>,
}

impl Core {
    /// Keeps `head` if it is the highest yet.
    pub(crate) fn see(&self, head: Head) {
        if head.seq > self.witness.get().seq {
            self.witness.set(head);
        }
    }
}
