//! The supervisor's own durable table of operations: an append-only file of records, the second witness beside the journal.
//!
//! A record is `u32 length (LE) | u32 CRC-32 | JSON` (as in [`crate::control`]). The daemon reads the file itself when the
//! supervisor is gone. A torn last record is cut off on opening: it was never acknowledged. Damage before the last record
//! is an error: acknowledged records behind it would be lost in silence.

use std::collections::BTreeMap;

use bytes::BytesMut;
use serde::{Deserialize, Serialize};

use crate::{Boot, CodecError, Epoch, Head, OpId, Role, Settlement, TtySize};

/// What the supervisor is to start: an [`crate::OpSpec`] with the sandbox's defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: String,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// A name of the image's `/etc/passwd`, `uid` or `uid:gid`; none is root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Wall-clock limit in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// A terminal of this size instead of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Whether input will be sent; without it stdin is `/dev/null` (or an idle terminal).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// Which part it plays: when a shim goes away while its harness lives, the shim's operation is cancelled.
    #[serde(default)]
    pub role: Role,
}

/// One record of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// A supervisor opened the table.
    Boot {
        /// Its number; one more than the last.
        boot: Boot,
    },
    /// Epochs below this are refused.
    Fence {
        /// The highest epoch seen.
        epoch: Epoch,
    },
    /// An operation is about to be executed. Durable before `execve`.
    Starting {
        /// Its id.
        op: OpId,
        /// Which run of it.
        attempt: u32,
        /// In which boot.
        boot: Boot,
        /// What.
        run: RunSpec,
        /// The journal's head that made the intent durable.
        witness: Head,
    },
    /// It ended. Durable before anyone is told, and after its output is.
    Settled {
        /// Its id.
        op: OpId,
        /// Which run of it.
        attempt: u32,
        /// How.
        settlement: Settlement,
    },
    /// The journal has the settlement. Written lazily: losing it only costs a second look.
    Announced {
        /// Its id.
        op: OpId,
        /// The journal's head then.
        witness: Head,
    },
}

/// What the table knows of one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRow {
    /// Its id.
    pub op: OpId,
    /// The latest run.
    pub attempt: u32,
    /// The boot of that run.
    pub boot: Boot,
    /// Its end; none while it runs, or where its boot was lost.
    pub settlement: Option<Settlement>,
    /// Whether the journal is known to have the settlement.
    pub announced: bool,
}

/// The fold of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The last boot; 0 before the first.
    pub boot: Boot,
    /// The highest epoch seen.
    pub epoch: Epoch,
    /// The highest journal head it was shown.
    pub witness: Head,
    /// Every operation.
    pub ops: BTreeMap<OpId, OpRow>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            boot: Boot(0),
            epoch: Epoch(0),
            witness: Head::EMPTY,
            ops: BTreeMap::new(),
        }
    }
}

impl Table {
    /// Folds one record in.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Boot { boot } => self.boot = *boot,
            Record::Fence { epoch } => self.epoch = self.epoch.max(*epoch),
            Record::Starting {
                op,
                attempt,
                boot,
                witness,
                ..
            } => {
                self.see(*witness);
                let row = OpRow {
                    op: op.clone(),
                    attempt: *attempt,
                    boot: *boot,
                    settlement: None,
                    announced: false,
                };
                self.ops.insert(op.clone(), row);
            }
            Record::Settled {
                op,
                attempt,
                settlement,
            } => {
                if let Some(row) = self.ops.get_mut(op).filter(|row| row.attempt == *attempt) {
                    row.settlement = Some(settlement.clone());
                }
            }
            Record::Announced { op, witness } => {
                self.see(*witness);
                if let Some(row) = self.ops.get_mut(op) {
                    row.announced = true;
                }
            }
        }
    }

    fn see(&mut self, witness: Head) {
        if witness.seq > self.witness.seq {
            self.witness = witness;
        }
    }

    /// Folds a whole file; returns the table and how many bytes of the file are whole records.
    ///
    /// # Errors
    /// Damage anywhere but in a torn last record.
    pub fn read(file: &[u8]) -> Result<(Self, usize), CodecError> {
        let mut input = BytesMut::from(file);
        let mut table = Self::default();
        loop {
            let before = input.len();
            match crate::control::decode::<Record>(&mut input) {
                Ok(Some(record)) => table.apply(&record),
                Ok(None) => return Ok((table, file.len() - before)),
                // A crash can leave zeros or half-written bytes in the last record, never before it.
                Err(_) if Self::is_last(file, file.len() - before) => {
                    return Ok((table, file.len() - before));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the record that starts at `at` claims to reach the end of the file or beyond, or only zeros follow.
    fn is_last(file: &[u8], at: usize) -> bool {
        let rest = &file[at..];
        let claimed = rest
            .first_chunk::<4>()
            .map_or(0, |b| u32::from_le_bytes(*b) as usize);
        rest.iter().all(|b| *b == 0) || 8 + claimed >= rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[Record]) -> Vec<u8> {
        let mut out = BytesMut::new();
        for record in records {
            crate::control::encode(record, &mut out).unwrap();
        }
        out.to_vec()
    }

    #[test]
    fn a_torn_tail_is_cut_and_damage_in_the_middle_is_told() {
        let records = [
            Record::Boot { boot: Boot(1) },
            Record::Fence { epoch: Epoch(3) },
            Record::Boot { boot: Boot(2) },
        ];
        let whole = file(&records);
        let two = file(&records[..2]).len();
        for cut in two..whole.len() {
            let (table, good) = Table::read(&whole[..cut]).unwrap();
            assert_eq!((table.boot, table.epoch, good), (Boot(1), Epoch(3), two));
        }
        let mut flipped = whole.clone();
        flipped[10] ^= 1;
        assert!(Table::read(&flipped).is_err());
        let mut zeros = whole.clone();
        zeros.extend([0; 64]);
        assert_eq!(Table::read(&zeros).unwrap().1, whole.len());
    }
}
