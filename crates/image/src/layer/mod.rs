//! One layer after the other, applied to a root directory.
//!
//! What comes in is never trusted: the bytes may be those of an attacker until the last of them was hashed, and then
//! they are those of whoever made the image. So the tree being built lies in a private directory, nothing outside of it
//! can be named (see [`tree`]), and it is thrown away unless every digest was right.

mod apply;
mod content;
mod error;
mod meta;
mod pax;
mod tar;
pub(crate) mod tree;

use std::cell::Cell;
use std::io::{self, BufReader, Read};

pub(crate) use self::apply::Applier;
pub use self::error::LayerError;

use self::content::{Blob, Content};
use crate::archive::Seeking;
use crate::digest::{Digest, Hashing};
use crate::limits::Limits;

/// What a layer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The length and the digest of the blob as it is stored; an archive does not always say.
    pub(crate) size: u64,
    pub(crate) blob: Option<Digest>,
    /// The digest of its content.
    pub(crate) diff_id: Digest,
}

/// Applies a layer. Anything but success leaves a tree to be thrown away.
pub(crate) fn apply(
    applier: &mut Applier,
    blob: impl Read,
    expected: Expected,
) -> Result<(), LayerError> {
    let mut blob = Blob::new(blob, expected.size);
    let unpacked = unpack(applier, &mut blob);
    // A blob that is another one than was asked for explains everything else that is wrong with it.
    if matches!(unpacked, Ok(_) | Err(LayerError::Malformed { .. })) {
        let found = blob.finish()?;
        if expected.blob.is_some_and(|wanted| wanted != found) {
            return Err(LayerError::BlobDigest { found });
        }
    }
    let found = unpacked?;
    if found != expected.diff_id {
        return Err(LayerError::DiffId { found });
    }
    Ok(())
}

/// Returns the digest of the content.
fn unpack(applier: &mut Applier, blob: impl Read) -> Result<Digest, LayerError> {
    let packed = Cell::new(0);
    let limits = applier.limits();
    let content = Hashing::new(Content::open(blob, &packed, limits)?);
    let mut reader = tar::Reader::new(BufReader::with_capacity(64 << 10, content), limits);
    applier.begin_layer();
    while let Some(entry) = reader.next()? {
        applier.entry(entry, &mut reader)?;
    }
    // Behind the end there is filling, which the digest covers.
    let mut content = reader.into_inner();
    io::copy(&mut content, &mut io::sink()).map_err(LayerError::from_reader)?;
    Ok(content.into_inner().hasher.finish())
}

/// A member of a tar: its name, where its data begins, how long it is, and what it links to.
pub(crate) type Member = (Vec<u8>, u64, u64, Option<Vec<u8>>);

/// Lists the files and links in a tar file, without reading through them.
pub(crate) fn members(
    file: &mut Seeking<'_>,
    limits: Limits,
    max: usize,
) -> Result<Vec<Member>, LayerError> {
    let read = |source| LayerError::Read { source };
    let mut members = Vec::new();
    let mut reader = tar::Reader::new(file, limits);
    while let Some(entry) = reader.next()? {
        let file = reader.inner();
        let offset = file.position().map_err(read)?;
        match entry.kind {
            tar::Kind::File if entry.sparse.is_some() => {
                return Err(LayerError::refused(&entry.path, "it is a sparse file"));
            }
            tar::Kind::File => {
                let end = entry
                    .data
                    .checked_next_multiple_of(512)
                    .and_then(|whole| offset.checked_add(whole));
                let end =
                    end.ok_or_else(|| LayerError::malformed("a file in it has no possible size"))?;
                file.skip_to(end).map_err(read)?;
                reader.passed();
                members.push((entry.path, offset, entry.data, None));
            }
            tar::Kind::Symlink => members.push((entry.path, 0, 0, Some(entry.link))),
            // A hard link is named from the archive's root.
            tar::Kind::HardLink => members.push((
                entry.path,
                0,
                0,
                Some([b"/".as_slice(), &entry.link].concat()),
            )),
            _ => {}
        }
        if members.len() > max {
            return Err(LayerError::malformed("there are too many files in it"));
        }
    }
    Ok(members)
}
