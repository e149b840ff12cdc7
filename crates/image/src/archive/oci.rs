//! An OCI image layout in a tar: `index.json` and `blobs/sha256/…`.

use super::{Archive, ArchiveError, Found};
use crate::digest::Digest;
use crate::layer::Expected;
use crate::manifest::{Configuration, Descriptor, Document, Index, Manifest, ManifestError};

/// An index may name indexes; nobody nests them deeper.
const MAX_NESTING: usize = 4;

pub(super) fn open(archive: &Archive, name: Option<&str>) -> Result<Found, ArchiveError> {
    let index = archive.document("index.json")?;
    let Document::Index(mut index) = Document::parse(&index, None)? else {
        let media_type = "image manifest".to_owned();
        return Err(ManifestError::MediaType {
            what: "index.json",
            media_type,
        }
        .into());
    };
    if let Some(name) = name {
        index = index.named(name);
    }
    let names = index.names();
    // Several entries are several images, or one image for several machines.
    let first = match index.manifests.as_slice() {
        [only] => only.clone(),
        [] => return Err(ArchiveError::Choice { count: 0, names }),
        several if names.len() > 1 => {
            let count = several.len();
            return Err(ArchiveError::Choice { count, names });
        }
        _ => index.pick()?.clone(),
    };
    let (digest, manifest) = manifest(archive, first)?;
    found(archive, digest, &manifest)
}

fn manifest(
    archive: &Archive,
    mut descriptor: Descriptor,
) -> Result<(Digest, Manifest), ArchiveError> {
    for _ in 0..MAX_NESTING {
        let bytes = blob(archive, &descriptor)?;
        match Document::parse(&bytes, Some(&descriptor.media_type))? {
            Document::Manifest(manifest) => return Ok((descriptor.digest, manifest)),
            Document::Index(index) => descriptor = Index::pick(&index)?.clone(),
        }
    }
    let why = "its indexes are nested too deeply".to_owned();
    Err(ManifestError::Malformed { what: "index", why }.into())
}

fn found(archive: &Archive, digest: Digest, manifest: &Manifest) -> Result<Found, ArchiveError> {
    manifest.check_layers()?;
    let configuration = Configuration::parse(&blob(archive, &manifest.config)?)?;
    let ids = configuration.diff_ids.iter();
    let mut layers = Vec::new();
    for (layer, &diff_id) in manifest.layers.iter().zip(ids) {
        // A member of another length is told by the layer's own check.
        let (_, reader) = archive.layer(&path(&layer.digest))?;
        let expected = Expected {
            size: layer.size,
            blob: Some(layer.digest),
            diff_id,
        };
        layers.push((expected, reader));
    }
    configuration.check_count(manifest.layers.len())?;
    Ok(Found {
        digest,
        configuration,
        layers,
    })
}

fn blob(archive: &Archive, descriptor: &Descriptor) -> Result<Vec<u8>, ArchiveError> {
    let member = path(&descriptor.digest);
    let bytes = archive.document(&member)?;
    let found = Digest::of(&bytes);
    if found == descriptor.digest {
        Ok(bytes)
    } else {
        Err(ArchiveError::Digest { member, found })
    }
}

fn path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
