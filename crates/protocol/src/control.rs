//! What daemon and supervisor say to each other over the control socket.
//!
//! One frame is `u32 length (LE) | u32 CRC-32 | JSON`. The daemon opens with [`ToSupervisor::Fence`]; until it is answered
//! with [`FromSupervisor::Fenced`] nothing else is obeyed. One daemon at a time: a newer fence ends the older connection.
//! Output never travels here: the daemon reads the spool files itself, [`FromSupervisor::Output`] says how far they reach.
//!
//! A connection that opens with [`ToSupervisor::Files`], [`ToSupervisor::Doors`], [`ToSupervisor::Listen`] or
//! [`ToSupervisor::Owner`] instead is for that one request, and needs the epoch of a daemon that has fenced.

use std::net::SocketAddr;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::table::{OpRow, RunSpec};
use crate::{Boot, CodecError, Epoch, Head, Offset, OpId, Settlement, TtySize, base64_bytes, shim};

/// The longest frame; stdin travels in pieces far below it.
pub const MAX_FRAME: usize = 4 << 20;
/// The most stdin in one [`ToSupervisor::Stdin`].
pub const MAX_STDIN_CHUNK: usize = 256 << 10;

/// The most sockets that one sandbox has for what leaves it; all of them fit into one message of the kernel's.
pub const MAX_DOORS: usize = 128;
/// The most that a policy can name: besides the usual ones, DNS over UDP and the proxy.
pub const MORE_DOORS: usize = MAX_DOORS - crate::paths::DOOR_PORTS.len() - 2;

/// A socket of a sandbox at which what leaves it ends. Its descriptor travels beside, in the same order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Door {
    /// What arrives there.
    pub kind: DoorKind,
    /// The port, on every address; that of the proxy on the loopback only.
    pub port: u16,
}

/// What arrives at a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoorKind {
    /// Connections to any address: an accepted socket's own address is the one that was asked for.
    Tcp,
    /// Datagrams to any address, which comes beside each as packet information; an answer is sent from it.
    Udp,
    /// Connections of clients that want a proxy.
    Proxy,
}

/// A port that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unopened {
    /// Which.
    pub port: u16,
    /// Why, in words for people.
    pub problem: String,
}

/// From the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ToSupervisor {
    /// Refuse every older epoch from now on, durably; answer [`FromSupervisor::Fenced`] or [`FromSupervisor::Refused`].
    Fence {
        /// The daemon's epoch.
        epoch: Epoch,
    },
    /// Instead of a fence, as the first and only frame of a connection: let a files helper serve it (see [`crate::files`]).
    /// Answer [`FromSupervisor::FilesReady`], or [`FromSupervisor::FilesRefused`], or [`FromSupervisor::Refused`] for an
    /// epoch that is not obeyed.
    Files {
        /// The daemon's epoch.
        epoch: Epoch,
        /// With whose rights; none is root.
        user: Option<String>,
    },
    /// Instead of a fence: hand out the doors. Answer [`FromSupervisor::Doors`] with their descriptors, or
    /// [`FromSupervisor::Refused`] for an epoch that is not obeyed.
    Doors {
        /// The daemon's epoch.
        epoch: Epoch,
    },
    /// Instead of a fence: open further doors for TCP, and hand out all that were asked for. The answer is that of `Doors`.
    Listen {
        /// The daemon's epoch.
        epoch: Epoch,
        /// Those that are open already are only handed out.
        ports: Vec<u16>,
    },
    /// Instead of a fence: which operation holds the client's end of this TCP connection? Answer
    /// [`FromSupervisor::Owner`], or [`FromSupervisor::Refused`] for an epoch that is not obeyed.
    Owner {
        /// The daemon's epoch.
        epoch: Epoch,
        /// The address of the client's end.
        client: SocketAddr,
        /// The address of the accepted end.
        server: SocketAddr,
    },
    /// Is this command startable? Changes nothing; answer [`FromSupervisor::Checked`].
    Check {
        /// Chosen by the daemon, comes back in the answer.
        token: u64,
        /// What would be started.
        run: RunSpec,
    },
    /// Start the operation unless its id is known already: then this is answered with what is known.
    Start {
        /// Its id.
        op: OpId,
        /// Which run of it this is, from 1.
        attempt: u32,
        /// What to start.
        run: RunSpec,
        /// The journal's head that made this durable; kept as witness.
        witness: Head,
    },
    /// Input for an operation. Bytes below the accepted offset are skipped; a gap is an error of the daemon.
    Stdin {
        /// Which operation.
        op: OpId,
        /// Where `data` starts.
        offset: Offset,
        /// The bytes, at most [`MAX_STDIN_CHUNK`].
        #[serde(with = "base64_bytes")]
        data: Bytes,
        /// Whether nothing follows.
        eof: bool,
    },
    /// Send a signal to the operation's whole process group.
    Signal {
        /// Which operation.
        op: OpId,
        /// The signal's number.
        signal: u8,
    },
    /// End it: SIGTERM, after `grace_ms` SIGKILL; it settles as `cancelled`.
    Cancel {
        /// Which operation.
        op: OpId,
        /// Milliseconds between the two signals.
        grace_ms: u64,
    },
    /// A new size for its terminal.
    Resize {
        /// Which operation.
        op: OpId,
        /// The size.
        size: TtySize,
    },
    /// Its settlement is in the journal: shims may be told now. The head that made it so is kept as witness.
    Announce {
        /// Which operation.
        op: OpId,
        /// The journal's head.
        witness: Head,
    },
    /// The daemon's answer to [`FromSupervisor::Shim`]: the op is journaled (and started by a separate `Start`), or refused.
    ShimAnswer {
        /// The shim connection.
        shim: u64,
        /// The operation to attach to, or why not.
        answer: Result<OpId, String>,
    },
    /// What a shim attached to whose settlement the supervisor no longer knows: its output is in the spool (as far as the
    /// daemon kept it), its settlement in the journal. Comes after, or instead of, the `ShimAnswer`.
    ShimSettled {
        /// The shim connection.
        shim: u64,
        /// The operation.
        op: OpId,
        /// Which run of it.
        attempt: u32,
        /// How it ended.
        settlement: Settlement,
    },
    /// End everything in the sandbox, then yourself.
    Shutdown {
        /// Milliseconds between SIGTERM and SIGKILL.
        grace_ms: u64,
    },
}

/// From the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum FromSupervisor {
    /// The epoch is kept; here is everything it knows. Rows that the journal has settled may be left out after `Announce`.
    Fenced {
        /// This boot.
        boot: Boot,
        /// Every operation it knows and has not been told to forget.
        ops: Vec<OpRow>,
        /// The highest journal head it was ever shown.
        witness: Head,
    },
    /// A higher epoch was seen; the connection ends.
    Refused {
        /// The highest epoch seen.
        highest: Epoch,
    },
    /// A files helper is at the other end from the next byte on.
    FilesReady,
    /// There is no files helper to be had.
    FilesRefused {
        /// Whether it is for the moment only.
        passing: bool,
        /// Why, in words for people.
        problem: String,
    },
    /// Here are doors; as many descriptors as there are in `doors` come with this message.
    Doors {
        /// Which, in the order of the descriptors. None at all in a sandbox that was started without.
        doors: Vec<Door>,
        /// What of a `Listen` could not be opened.
        unopened: Vec<Unopened>,
    },
    /// The answer to `Owner`.
    Owner {
        /// None where no process holds it any more, or none of an operation. What a process says of itself is believed
        /// only where its ancestors do not tell.
        op: Option<OpId>,
    },
    /// The answer to `Check`.
    Checked {
        /// From the question.
        token: u64,
        /// Why it cannot be started, in words for people; none where it can.
        problem: Option<String>,
    },
    /// The operation runs; its row is durable.
    Started {
        /// Which operation.
        op: OpId,
        /// Which run.
        attempt: u32,
    },
    /// Its spool files reach this far. Sent at most every few milliseconds, the last one before `Settled`.
    Output {
        /// Which operation.
        op: OpId,
        /// Which run.
        attempt: u32,
        /// Length of its stdout.
        stdout: Offset,
        /// Length of its stderr.
        stderr: Offset,
    },
    /// Input up to this offset is with the operation; more may be sent.
    StdinAccepted {
        /// Which operation.
        op: OpId,
        /// The next byte wanted.
        offset: Offset,
        /// Whether it takes no more: it closed its stdin or ended.
        closed: bool,
    },
    /// It ended; the settlement is durable in the table and all output before it is durable in the spool.
    Settled {
        /// Which operation.
        op: OpId,
        /// Which run.
        attempt: u32,
        /// How.
        settlement: Settlement,
    },
    /// A process inside asks for an operation through the shim; answer with `ShimAnswer`.
    Shim {
        /// The connection, for the answer.
        shim: u64,
        /// What it asks for.
        request: shim::Exec,
    },
}

/// Appends one frame to `out`.
///
/// # Errors
/// [`CodecError::TooLong`] beyond [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T, out: &mut BytesMut) -> Result<(), CodecError> {
    let json = serde_json::to_vec(message).map_err(|e| CodecError::Content(e.to_string()))?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= MAX_FRAME);
    let Some(length) = length else {
        return Err(CodecError::TooLong(json.len()));
    };
    out.reserve(8 + json.len());
    out.put_u32_le(length);
    out.put_u32_le(crc32fast::hash(&json));
    out.put_slice(&json);
    Ok(())
}

/// Takes one frame off the front of `input`; `None` while it is incomplete.
///
/// # Errors
/// A frame that is too long, damaged or not understood. The connection must then end.
pub fn decode<T: DeserializeOwned>(input: &mut BytesMut) -> Result<Option<T>, CodecError> {
    let Some((header, _)) = input.split_first_chunk::<8>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let crc = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if length > MAX_FRAME {
        return Err(CodecError::TooLong(length));
    }
    if input.len() < 8 + length {
        return Ok(None);
    }
    input.advance(8);
    let json = input.split_to(length);
    if crc32fast::hash(&json) != crc {
        return Err(CodecError::Checksum);
    }
    serde_json::from_slice(&json)
        .map(Some)
        .map_err(|e| CodecError::Content(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_split() {
        let sent = [
            ToSupervisor::Fence { epoch: Epoch(7) },
            ToSupervisor::Stdin {
                op: "a".parse().unwrap(),
                offset: Offset(1),
                data: Bytes::from_static(b"\0x"),
                eof: true,
            },
        ];
        let mut wire = BytesMut::new();
        for message in &sent {
            encode(message, &mut wire).unwrap();
        }
        let (mut input, mut got) = (BytesMut::new(), Vec::new());
        for byte in wire {
            input.put_u8(byte);
            while let Some(message) = decode::<ToSupervisor>(&mut input).unwrap() {
                got.push(message);
            }
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn addresses_and_doors_survive() {
        let mut wire = BytesMut::new();
        let ask = ToSupervisor::Owner {
            epoch: Epoch(3),
            client: "[2001:db8::1]:40000".parse().unwrap(),
            server: "1.2.3.4:443".parse().unwrap(),
        };
        encode(&ask, &mut wire).unwrap();
        assert_eq!(decode(&mut wire), Ok(Some(ask)));
        let kinds = [DoorKind::Tcp, DoorKind::Udp, DoorKind::Proxy];
        let say = FromSupervisor::Doors {
            doors: kinds.map(|kind| Door { kind, port: 53 }).to_vec(),
            unopened: vec![Unopened {
                port: 1,
                problem: "taken".to_owned(),
            }],
        };
        encode(&say, &mut wire).unwrap();
        assert_eq!(decode(&mut wire), Ok(Some(say)));
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut wire = BytesMut::new();
        encode(&ToSupervisor::Fence { epoch: Epoch(7) }, &mut wire).unwrap();
        let last = wire.len() - 2;
        wire[last] ^= 1;
        assert_eq!(decode::<ToSupervisor>(&mut wire), Err(CodecError::Checksum));
    }
}
