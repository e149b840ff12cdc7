//! What the daemon and the files helper inside a sandbox say to each other.
//!
//! The daemon opens a connection of its own on the control socket and begins with [`crate::control::ToSupervisor::Files`];
//! once the supervisor has answered, the helper is at the other end. Frames are `u32 length (LE) | u8 kind | content`.
//! The helper runs with a sandboxed user's rights and may be anybody's by now: what it says is to be judged, not trusted.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{CodecError, base64_bytes};

/// Bytes in front of each frame's content.
pub const HEADER: usize = 5;
/// The longest content.
pub const MAX_FRAME: usize = 1 << 20;
/// How much of a file travels in one frame.
pub const CHUNK: usize = 256 << 10;
/// The longest path that the kernel takes.
pub const MAX_PATH: usize = 4095;

/// A path or a part of one: any bytes. In JSON it is text where it is UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NameAs {
    Text(String),
    Bytes {
        #[serde(with = "base64_bytes")]
        base64: Vec<u8>,
    },
}

impl Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => NameAs::Bytes {
                base64: self.0.clone(),
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match NameAs::deserialize(deserializer)? {
            NameAs::Text(text) => Self(text.into_bytes()),
            NameAs::Bytes { base64 } => Self(base64),
        })
    }
}

impl Name {
    /// For people and JSON: bytes that are no UTF-8 as `\xNN`.
    #[must_use]
    pub fn escaped(&self) -> String {
        let chunks = self.0.utf8_chunks();
        chunks
            .map(|chunk| {
                let odd = chunk.invalid().iter();
                let odd: String = odd.map(|byte| format!("\\x{byte:02x}")).collect();
                format!("{}{odd}", chunk.valid())
            })
            .collect()
    }

    /// The bytes as base64, where they are no UTF-8.
    #[must_use]
    pub fn base64(&self) -> Option<String> {
        use base64::Engine as _;
        std::str::from_utf8(&self.0)
            .is_err()
            .then(|| base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

/// What the daemon asks of a helper. It asks once, except that [`Ask::Send`] follows [`Ask::Read`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What is at the path? Answered with [`Say::Entry`].
    Stat {
        /// The path.
        path: Name,
        /// Whether a link at its end is followed.
        follow: bool,
    },
    /// What is in the directory? Answered with an [`Say::Entry`] each, sorted by name, and [`Say::Done`].
    List {
        /// The directory; a link is followed. What is no directory lists itself.
        path: Name,
        /// Whether directories in it are listed too, links to some not.
        recursive: bool,
    },
    /// Open a regular file. Answered with [`Say::Entry`] as it is when opened.
    Read {
        /// The file; links are followed.
        path: Name,
    },
    /// Send so much of the opened file, in bytes frames, then [`Say::Done`].
    Send {
        /// The first byte.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// Send the path and all below it as a tar archive, links as links. Answered with [`Say::Entry`], bytes, [`Say::Done`].
    Pack {
        /// The path.
        path: Name,
    },
    /// Tell what changes, until the connection ends. Answered with [`Say::Entry`] once nothing can be missed any more.
    Watch {
        /// A directory, or something else that is then watched alone.
        path: Name,
        /// Whether directories below it are watched too.
        recursive: bool,
    },
}

/// What a helper says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Say {
    /// Something that is there.
    Entry(Entry),
    /// A change that was seen.
    Change(Change),
    /// It could not be done, or not to the end.
    Failed(Problem),
    /// That was all.
    Done,
}

/// What something in the tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A block or character device.
    Device,
}

impl Kind {
    /// Its name as it stands in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// One path as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// From what was asked for; empty for that itself.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// Bytes of content.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its names.
    pub links: u64,
    /// Its number in the file system.
    pub inode: u64,
    /// Nanoseconds since 1970 when its content changed.
    pub modified_ns: i64,
    /// The same for anything about it, as the kernel saw it.
    pub changed_ns: i64,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Name>,
}

impl Entry {
    /// Tells one state of a file from any other: it differs after every write and every replacement.
    #[must_use]
    pub fn tag(&self) -> String {
        format!(
            "{:x}-{:x}-{:x}-{:x}",
            self.inode, self.size, self.modified_ns, self.changed_ns
        )
    }
}

/// One change that a watch saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// What happened.
    pub event: Happened,
    /// To what, from the watched directory.
    pub name: Name,
    /// What it was called before, for a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Name>,
    /// Whether it is a directory.
    pub directory: bool,
}

/// What a watch can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// It is new at this name.
    Create,
    /// Its content changed.
    Modify,
    /// Its mode, owner, times or attributes changed.
    Attributes,
    /// It is gone from this name.
    Delete,
    /// It moved within what is watched.
    Rename,
    /// More happened than the kernel kept: list again.
    Overflow,
    /// What was watched is gone, or has moved away; nothing follows.
    Gone,
}

impl Happened {
    /// Its name as it stands in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Modify => "modify",
            Self::Attributes => "attributes",
            Self::Delete => "delete",
            Self::Rename => "rename",
            Self::Overflow => "overflow",
            Self::Gone => "gone",
        }
    }
}

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What the caller can do about it.
    pub why: Why,
    /// In words: what failed on what.
    pub words: String,
}

/// The kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is not there.
    Missing,
    /// The user may not.
    Denied,
    /// It is there already.
    Exists,
    /// It is not in the state that the caller asked for.
    Precondition,
    /// It is of a kind that this cannot be done to.
    Unfit,
    /// There is no room.
    Full,
    /// Anything else.
    Other,
}

/// A change of files by the daemon, as the one argument of the helper that makes it: an operation like any other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alter {
    /// Replace a file by stdin, in one step.
    Put(Put),
    /// Make a directory.
    Mkdir {
        /// Where.
        path: Name,
        /// Permission bits; 755 where not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
        /// Make those above it as well, and be content with one that is there.
        #[serde(default, skip_serializing_if = "is_false")]
        parents: bool,
    },
    /// Remove a file, a link, or a directory.
    Remove {
        /// Which. A link is removed, not what it leads to.
        path: Name,
        /// Whether a directory may have something in it.
        #[serde(default, skip_serializing_if = "is_false")]
        recursive: bool,
    },
    /// Give something another name.
    Rename {
        /// Which.
        from: Name,
        /// The new one.
        to: Name,
        /// Whether what has that name may be replaced.
        #[serde(default, skip_serializing_if = "is_false")]
        replace: bool,
    },
}

/// How a file is to be replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// Which; a link is followed to what it names.
    pub path: Name,
    /// Permission bits; those of the old file where not given, else 644.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// User and group; those of the old file where not given and possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
    /// Make the directories above it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub parents: bool,
    /// Only where it is there with one of these tags; none of them stands for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_match: Option<Vec<String>>,
    /// Only where it is not there with one of these tags; none of them stands for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_none_match: Option<Vec<String>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// What a frame holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// An [`Ask`] or a [`Say`] as JSON.
    Json(Bytes),
    /// Content.
    Bytes(Bytes),
}

impl Frame {
    /// Reads a message.
    ///
    /// # Errors
    /// Bytes where a message was expected, or one that is not understood.
    pub fn message<T: serde::de::DeserializeOwned>(&self) -> Result<T, CodecError> {
        match self {
            Self::Json(json) => {
                serde_json::from_slice(json).map_err(|e| CodecError::Content(e.to_string()))
            }
            Self::Bytes(_) => Err(CodecError::Content(
                "bytes in the place of words".to_owned(),
            )),
        }
    }
}

const JSON: u8 = 1;
const BYTES: u8 = 2;

/// Returns the header of a frame with content.
#[must_use]
pub fn bytes_header(length: usize) -> [u8; HEADER] {
    header(BYTES, length)
}

fn header(kind: u8, length: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    // No caller has more than MAX_FRAME.
    out[..4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out[4] = kind;
    out
}

/// Appends a message.
///
/// # Errors
/// [`CodecError::TooLong`] beyond [`MAX_FRAME`].
pub fn encode<T: Serialize>(message: &T, out: &mut BytesMut) -> Result<(), CodecError> {
    let json = serde_json::to_vec(message).map_err(|e| CodecError::Content(e.to_string()))?;
    if json.len() > MAX_FRAME {
        return Err(CodecError::TooLong(json.len()));
    }
    out.put_slice(&header(JSON, json.len()));
    out.put_slice(&json);
    Ok(())
}

/// Takes one frame off the front; `Ok(None)` while it is incomplete.
///
/// # Errors
/// A frame that is too long or of no known kind: nothing after it can be understood.
pub fn decode(input: &mut BytesMut) -> Result<Option<Frame>, CodecError> {
    let Some(head) = input.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let kind = head[4];
    if length > MAX_FRAME {
        return Err(CodecError::TooLong(length));
    }
    if !matches!(kind, JSON | BYTES) {
        return Err(CodecError::Content(format!("frame kind {kind}")));
    }
    if input.len() < HEADER + length {
        input.reserve(HEADER + length - input.len());
        return Ok(None);
    }
    input.advance(HEADER);
    let content = input.split_to(length).freeze();
    Ok(Some(if kind == JSON {
        Frame::Json(content)
    } else {
        Frame::Bytes(content)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_survive_json() {
        for bytes in [&b"/plain"[..], b"new\nline", b"\xff\xfe/x", b""] {
            let name = Name(bytes.to_vec());
            let json = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<Name>(&json).unwrap(), name, "{json}");
        }
        assert_eq!(Name(b"a\xffb".to_vec()).escaped(), "a\\xffb");
        assert_eq!(Name(b"\xff".to_vec()).base64().as_deref(), Some("/w=="));
        assert_eq!(Name(b"a\\xff".to_vec()).base64(), None);
    }

    #[test]
    fn frames_survive_any_split_and_a_hostile_one_is_refused() {
        let ask = Ask::Send {
            offset: 7,
            length: u64::MAX,
        };
        let mut wire = BytesMut::new();
        encode(&ask, &mut wire).unwrap();
        wire.put_slice(&bytes_header(3));
        wire.put_slice(b"abc");
        let (mut input, mut got) = (BytesMut::new(), Vec::new());
        for byte in wire {
            input.put_u8(byte);
            got.extend(decode(&mut input).unwrap());
        }
        assert_eq!(got[0].message::<Ask>().unwrap(), ask);
        assert_eq!(got[1], Frame::Bytes(Bytes::from_static(b"abc")));
        for bad in [[0xff, 0xff, 0xff, 0xff, 1], [0, 0, 0, 0, 9]] {
            assert!(decode(&mut BytesMut::from(&bad[..])).is_err());
        }
    }
}
