//! Images in files: a tar of an OCI layout, or what `docker save` writes.
//!
//! The tar is gone through once for where its members lie; documents and layers are then read in place. Nothing of it is
//! unpacked to a disk, and its layers are checked as those of a registry are.

mod docker;
mod oci;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::digest::Digest;
use crate::error::{Kind, io_kind};
use crate::layer::{Expected, LayerError};
use crate::limits::Limits;
use crate::manifest::{Configuration, ManifestError};
use crate::text::shown;

/// Members of an archive that are looked at; an image has a handful.
const MAX_MEMBERS: usize = 100_000;
/// Links from one member to another that are followed.
const MAX_HOPS: usize = 8;

/// Why an archive gave no image.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file could not be read.
    #[error("it cannot be read")]
    Io(#[source] io::Error),
    /// It is no tar.
    #[error("it is no tar archive that can be read")]
    Tar(#[source] LayerError),
    /// It is compressed as a whole.
    #[error("it is compressed as a whole")]
    Compressed,
    /// Something is not in it.
    #[error("`{member}` is not in it")]
    Missing {
        /// The member's name.
        member: String,
    },
    /// A document in it is too large.
    #[error("`{member}` in it is larger than {allowed} bytes")]
    TooLarge {
        /// The member's name.
        member: String,
        /// What is allowed.
        allowed: u64,
    },
    /// It holds another number of images than one.
    #[error("there are {count} images in it, and one is wanted")]
    Choice {
        /// How many there are.
        count: usize,
        /// Their names.
        names: Vec<String>,
    },
    /// A member is not what its digest says.
    #[error("`{member}` in it has the digest {found}")]
    Digest {
        /// The member's name.
        member: String,
        /// What it is.
        found: Digest,
    },
    /// A document in it is of no use.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

impl ArchiveError {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Io(error) => io_kind(error),
            Self::Digest { .. } => Kind::Corrupt,
            _ => Kind::Invalid,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Compressed => Some("unpack it first: gunzip, or zstd -d".into()),
            Self::Choice { names, .. } if !names.is_empty() => Some(format!(
                "put one of these behind a colon at the end of the file's name: {}",
                names.join(", ")
            )),
            _ => None,
        }
    }
}

/// An image in an archive, ready to be unpacked.
pub(crate) struct Found {
    /// The digest that names the image.
    pub(crate) digest: Digest,
    pub(crate) configuration: Configuration,
    pub(crate) layers: Vec<(Expected, Box<dyn Read + Send>)>,
}

/// Finds the image in a tar of an OCI layout.
pub(crate) fn open_oci(
    file: &Path,
    name: Option<&str>,
    limits: Limits,
) -> Result<Found, ArchiveError> {
    oci::open(&Archive::open(file, limits)?, name)
}

/// Finds the image in what `docker save` wrote.
pub(crate) fn open_docker(
    file: &Path,
    name: Option<&str>,
    limits: Limits,
) -> Result<Found, ArchiveError> {
    docker::open(&Archive::open(file, limits)?, name)
}

#[derive(Debug, Clone)]
enum Member {
    Data {
        offset: u64,
        size: u64,
    },
    /// Older versions of `docker save` wrote a layer once and links to it.
    Link(Vec<u8>),
}

/// An archive and where its members lie.
struct Archive {
    file: Arc<File>,
    limits: Limits,
    members: HashMap<Vec<u8>, Member>,
}

impl Archive {
    fn open(path: &Path, limits: Limits) -> Result<Self, ArchiveError> {
        let mut file = File::open(path).map_err(ArchiveError::Io)?;
        if !file.metadata().map_err(ArchiveError::Io)?.is_file() {
            return Err(ArchiveError::Io(io::Error::from(
                io::ErrorKind::InvalidInput,
            )));
        }
        let mut start = [0; 4];
        let count = file.read_at(&mut start, 0).map_err(ArchiveError::Io)?;
        if start[..count].starts_with(&[0x1f, 0x8b]) || start == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(ArchiveError::Compressed);
        }
        let members = crate::layer::members(&mut Seeking(&mut file), limits, MAX_MEMBERS)
            .map_err(ArchiveError::Tar)?;
        let members = members.into_iter().map(|(path, offset, size, link)| {
            let member = match link {
                Some(link) => Member::Link(beside(&path, &link)),
                None => Member::Data { offset, size },
            };
            (plain(&path), member)
        });
        Ok(Self {
            members: members.collect(),
            file: Arc::new(file),
            limits,
        })
    }

    /// Returns where a member's data lies.
    fn find(&self, name: &str) -> Result<(u64, u64), ArchiveError> {
        let mut path = plain(name.as_bytes());
        for _ in 0..MAX_HOPS {
            match self.members.get(&path) {
                Some(Member::Data { offset, size }) => return Ok((*offset, *size)),
                Some(Member::Link(to)) => path.clone_from(to),
                None => break,
            }
        }
        Err(ArchiveError::Missing {
            member: shown(name.as_bytes()),
        })
    }

    /// Reads a document whole.
    fn document(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let (offset, size) = self.find(name)?;
        let allowed = self.limits.max_document_bytes;
        if size > allowed {
            let member = shown(name.as_bytes());
            return Err(ArchiveError::TooLarge { member, allowed });
        }
        let mut bytes = Vec::new();
        let mut part = self.part(offset, size);
        part.read_to_end(&mut bytes).map_err(ArchiveError::Io)?;
        Ok(bytes)
    }

    fn part(&self, offset: u64, size: u64) -> Part {
        Part {
            file: Arc::clone(&self.file),
            offset,
            left: size,
        }
    }

    /// Returns a layer's length and a reader of it.
    fn layer(&self, name: &str) -> Result<(u64, Box<dyn Read + Send>), ArchiveError> {
        let (offset, size) = self.find(name)?;
        Ok((
            size,
            Box::new(BufReader::with_capacity(128 << 10, self.part(offset, size))),
        ))
    }
}

/// A part of a file, read without moving anybody's place in it.
struct Part {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Lets the tar reader pass over a member without reading it.
pub(crate) struct Seeking<'f>(&'f mut File);

impl Seeking<'_> {
    pub(crate) fn position(&mut self) -> io::Result<u64> {
        self.0.stream_position()
    }

    pub(crate) fn skip_to(&mut self, offset: u64) -> io::Result<()> {
        self.0.seek(SeekFrom::Start(offset)).map(drop)
    }
}

impl Read for Seeking<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

/// Names a member in one way: without `./` and slashes to spare; `..` takes a name away.
fn plain(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// Returns where a link in `path` leads.
fn beside(path: &[u8], link: &[u8]) -> Vec<u8> {
    if link.starts_with(b"/") {
        return plain(link);
    }
    let parent = path
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(b"".as_slice(), |end| &path[..end]);
    plain(&[parent, b"/", link].concat())
}
