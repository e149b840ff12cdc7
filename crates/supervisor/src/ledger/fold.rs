//! What a rewritten table must still say.

use std::collections::BTreeMap;

use protocol::OpId;
use protocol::table::{Record, Table};

/// The table without what the journal is known to have: operations whose settlement was announced are its to remember.
#[derive(Debug, Default)]
pub(super) struct Fold {
    pub(super) table: Table,
    starting: BTreeMap<OpId, Record>,
}

impl Fold {
    pub(super) fn apply(&mut self, record: Record) {
        self.table.apply(&record);
        match record {
            Record::Starting { ref op, .. } => {
                self.starting.insert(op.clone(), record);
            }
            Record::Announced { ref op, .. } => {
                self.table.ops.remove(op);
                self.starting.remove(op);
            }
            Record::Settled { .. }
            | Record::Boot { .. }
            | Record::Fence { .. }
            | Record::Witness { .. } => {}
        }
    }

    /// Returns records that fold to the same.
    pub(super) fn records(&self) -> Vec<Record> {
        let table = &self.table;
        let mut records = vec![
            Record::Boot { boot: table.boot },
            Record::Fence { epoch: table.epoch },
            Record::Witness {
                head: table.witness,
            },
        ];
        for (op, row) in &table.ops {
            records.extend(self.starting.get(op).cloned());
            records.extend(row.settlement.clone().map(|settlement| Record::Settled {
                op: op.clone(),
                attempt: row.attempt,
                settlement,
            }));
        }
        records
    }
}
