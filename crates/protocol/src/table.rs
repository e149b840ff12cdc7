//! The supervisor's own durable table of operations: an append-only file of records, the second witness beside the journal.
//!
//! A frame is `u32 length (LE) | u32 CRC-32 | JSON` (as in [`crate::control`]); the JSON is one record or an array of those
//! that became durable together. The next frame is written only when the last one is durable. The daemon reads the file
//! itself when the supervisor is gone. Zeros behind the last frame are room for more. A torn last frame is cut off on
//! opening: it was never acknowledged. Damage before the last frame is an error: acknowledged records behind it would be
//! lost in silence.

use std::collections::BTreeMap;

use bytes::{BufMut, BytesMut};
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
    /// The highest journal head it was shown. Written where the records that carried it are left out.
    Witness {
        /// The head.
        head: Head,
    },
}

/// One frame's content.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    One(Record),
    Batch(Vec<Record>),
}

/// Appends one frame of `records` to `out`, for a file written in place.
///
/// Its length is a multiple of eight, so that the header of a frame never lies across two sectors: of a frame that was
/// not synced either all of the header is there or nothing.
///
/// # Errors
/// [`CodecError::TooLong`] beyond [`crate::control::MAX_FRAME`].
pub fn encode_frame(records: &[Record], out: &mut BytesMut) -> Result<(), CodecError> {
    let mut json = serde_json::to_vec(records).map_err(|e| CodecError::Content(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= crate::control::MAX_FRAME);
    let Some(length) = length else {
        return Err(CodecError::TooLong(json.len()));
    };
    out.reserve(8 + json.len());
    out.put_u32_le(length);
    out.put_u32_le(crc32fast::hash(&json));
    out.put_slice(&json);
    Ok(())
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
            Record::Witness { head } => self.see(*head),
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

    /// Folds a whole file; returns the table and how many bytes of the file are whole frames.
    ///
    /// # Errors
    /// Damage anywhere but in a torn last frame.
    pub fn read(file: &[u8]) -> Result<(Self, usize), CodecError> {
        let mut table = Self::default();
        let whole = read_records(file, |record| table.apply(&record))?;
        Ok((table, whole))
    }
}

/// Hands every record of a whole file to `each`; returns how many bytes of the file are whole frames.
///
/// # Errors
/// Damage anywhere but in a torn last frame.
pub fn read_records(file: &[u8], mut each: impl FnMut(Record)) -> Result<usize, CodecError> {
    let mut input = BytesMut::from(file);
    loop {
        let at = file.len() - input.len();
        match crate::control::decode::<Content>(&mut input) {
            Ok(Some(Content::One(record))) => each(record),
            Ok(Some(Content::Batch(records))) => records.into_iter().for_each(&mut each),
            // A crash can leave zeros or half-written bytes in the last frame, never before it.
            Ok(None) | Err(_) if !frame_behind(file, at) => return Ok(at),
            Ok(None) => return Err(CodecError::Torn),
            Err(error) => return Err(error),
        }
    }
}

/// Whether a whole frame lies anywhere behind `at`. The length claimed at `at` may be what is damaged, so it says nothing.
fn frame_behind(file: &[u8], at: usize) -> bool {
    (at + 1..file.len()).any(|start| {
        let rest = &file[start..];
        let Some((header, rest)) = rest.split_first_chunk::<8>() else {
            return false;
        };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        length > 0 && length <= rest.len() && crc32fast::hash(&rest[..length]) == crc
    })
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

    #[test]
    fn a_frame_torn_in_the_zeros_is_cut_and_damage_before_another_frame_is_told() {
        let mut out = BytesMut::new();
        encode_frame(&[Record::Boot { boot: Boot(1) }], &mut out).unwrap();
        let one = out.len();
        let batch = [
            Record::Fence { epoch: Epoch(3) },
            Record::Boot { boot: Boot(2) },
        ];
        encode_frame(&batch, &mut out).unwrap();
        let two = out.len();
        assert_eq!((one % 8, two % 8), (0, 0));
        out.resize(two + 512, 0);
        let (table, whole) = Table::read(&out).unwrap();
        assert_eq!((table.boot, table.epoch, whole), (Boot(2), Epoch(3), two));

        let mut torn = out.clone();
        torn[one + 20..two].fill(0);
        assert_eq!(Table::read(&torn).unwrap().1, one);

        for (byte, error) in [(12, CodecError::Checksum), (2, CodecError::Torn)] {
            let mut damaged = out.clone();
            damaged[byte] ^= 1;
            assert_eq!(Table::read(&damaged), Err(error));
        }
    }
}
