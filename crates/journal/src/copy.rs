//! A journal on its way to another place: events as they are stored, byte for byte, so that the chain still holds there.

use std::io::{self, Read};

use protocol::{Epoch, EventId, Head, Seq, UnixMillis};

use crate::encoded::Raw;
use crate::{Flaw, MAX_APPEND_BYTES};

/// Bytes of a frame before the payload, its length not counted.
const FIXED: usize = 8 + 8 + 8 + 2 + 4 + 16 + 32;

impl Raw {
    /// The head that it makes.
    #[must_use]
    pub fn head(&self) -> Head {
        Head {
            seq: self.seq,
            hash: self.hash,
        }
    }

    /// Appends its frame: the length of what follows as four bytes, place, epoch, time, version, CRC, id, hash, payload.
    /// Numbers are little-endian.
    pub fn encode(&self, to: &mut Vec<u8>) {
        // A payload is far below 4 GiB: an append is.
        let len = u32::try_from(FIXED + self.payload.len()).unwrap_or(u32::MAX);
        to.extend(len.to_le_bytes());
        to.extend(self.seq.0.to_le_bytes());
        to.extend(self.epoch.0.to_le_bytes());
        to.extend(self.at.0.to_le_bytes());
        to.extend(self.version.to_le_bytes());
        to.extend(self.crc.to_le_bytes());
        to.extend(self.id.0);
        to.extend(self.hash);
        to.extend(&self.payload);
    }

    /// Reads the next frame; `None` at the end.
    ///
    /// # Errors
    /// What the reader says; `InvalidData` for what is no frame, `UnexpectedEof` for half a one.
    pub fn decode_from(from: &mut dyn Read) -> io::Result<Option<Self>> {
        let mut len = [0; 4];
        match from.read(&mut len[..1])? {
            0 => return Ok(None),
            _ => from.read_exact(&mut len[1..])?,
        }
        let len = u32::from_le_bytes(len) as usize;
        // A journal of another release may have longer events, but not by much.
        if !(FIXED..=FIXED + 2 * MAX_APPEND_BYTES).contains(&len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "this is no event",
            ));
        }
        let mut frame = vec![0; len];
        from.read_exact(&mut frame)?;
        let mut rest = frame.as_slice();
        Ok(Some(Self {
            seq: Seq(u64::from_le_bytes(take(&mut rest))),
            epoch: Epoch(u64::from_le_bytes(take(&mut rest))),
            at: UnixMillis(u64::from_le_bytes(take(&mut rest))),
            version: u16::from_le_bytes(take(&mut rest)),
            crc: u32::from_le_bytes(take(&mut rest)),
            id: EventId(take(&mut rest)),
            hash: take(&mut rest),
            payload: rest.to_vec(),
        }))
    }

    /// Says what is wrong with it as the event after `head`, which was written under `epoch`.
    pub(crate) fn flaw_after(&self, head: Head, epoch: Epoch) -> Option<Flaw> {
        if self.seq != head.seq.next() {
            return Some(Flaw::Gap);
        }
        if self.epoch < epoch {
            return Some(Flaw::EpochAhead {
                event: epoch,
                head: self.epoch,
            });
        }
        if !self.follows(&head.hash) {
            return Some(Flaw::ChainBreak);
        }
        None
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (part, rest) = from.split_at(N);
    *from = rest;
    let mut out = [0; N];
    out.copy_from_slice(part);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(payload: &[u8]) -> Raw {
        Raw {
            seq: Seq(3),
            id: EventId([7; 16]),
            epoch: Epoch(2),
            at: UnixMillis(5),
            version: 1,
            payload: payload.to_vec(),
            crc: crc32fast::hash(payload),
            hash: [9; 32],
        }
    }

    #[test]
    fn frames_come_back_as_they_were_and_half_a_one_is_told() {
        let (one, two) = (raw(b"{}"), raw(b""));
        let mut bytes = Vec::new();
        one.encode(&mut bytes);
        two.encode(&mut bytes);
        let mut from = bytes.as_slice();
        assert_eq!(Raw::decode_from(&mut from).unwrap(), Some(one));
        assert_eq!(Raw::decode_from(&mut from).unwrap(), Some(two));
        assert_eq!(Raw::decode_from(&mut from).unwrap(), None);
        for cut in 1..10 {
            let mut half = &bytes[..cut];
            let told = Raw::decode_from(&mut half).unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::UnexpectedEof);
        }
        let told = Raw::decode_from(&mut [0xff; 90].as_slice()).unwrap_err();
        assert_eq!(told.kind(), io::ErrorKind::InvalidData);
    }
}
