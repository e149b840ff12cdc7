//! What is on its way at this moment, so that a policy that becomes tighter ends what it would not have allowed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use policy::Policy;

use tokio_util::sync::CancellationToken;

/// Says whether a policy would have let this begin.
type Still = Box<dyn Fn(&Policy) -> bool + Send>;

/// All of one sandbox.
#[derive(Default)]
pub(crate) struct Flows {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    live: HashMap<u64, (Still, CancellationToken)>,
}

impl Flows {
    /// Takes a flow in until its ticket is dropped.
    pub(crate) fn enter(
        self: &Arc<Self>,
        still: impl Fn(&Policy) -> bool + Send + 'static,
    ) -> Ticket {
        let ended = CancellationToken::new();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let number = table.next;
        table.next += 1;
        table.live.insert(number, (Box::new(still), ended.clone()));
        Ticket {
            flows: self.clone(),
            number,
            ended,
        }
    }

    /// Ends a flow that a policy does not allow: for one that began while the policy was changed.
    pub(crate) fn judge_one(&self, ticket: &Ticket, policy: &Policy) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((still, ended)) = table.live.get(&ticket.number)
            && !still(policy)
        {
            ended.cancel();
        }
    }

    /// Ends what a new policy does not allow.
    pub(crate) fn judge(&self, policy: &Policy) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        for (still, ended) in table.live.values() {
            if !still(policy) {
                ended.cancel();
            }
        }
    }
}

/// A flow's place among the others.
pub(crate) struct Ticket {
    flows: Arc<Flows>,
    number: u64,
    /// Cancelled when the flow must end.
    pub(crate) ended: CancellationToken,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self
            .flows
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        table.live.remove(&self.number);
    }
}
