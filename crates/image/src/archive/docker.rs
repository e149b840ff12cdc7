//! What `docker save` writes: `manifest.json`, a configuration, and a tar for each layer.
//!
//! Such an archive has no manifest with a digest of its own. The image is named by the digest of the manifest that a
//! registry would be given for it with unpacked layers: the same image saved twice has the same name.

use serde::Deserialize;

use super::{Archive, ArchiveError, Found};
use crate::digest::Digest;
use crate::layer::Expected;
use crate::manifest::{Configuration, ManifestError};
use crate::text::shown;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn open(archive: &Archive, name: Option<&str>) -> Result<Found, ArchiveError> {
    let bytes = archive.document("manifest.json")?;
    let images: Vec<Image> =
        serde_json::from_slice(&bytes).map_err(|e| ManifestError::Malformed {
            what: "manifest.json",
            why: shown(e.to_string().as_bytes()),
        })?;
    let image = pick(images, name)?;
    let config_bytes = archive.document(&image.config)?;
    let configuration = Configuration::parse(&config_bytes)?;
    configuration.check_count(image.layers.len())?;
    let mut layers = Vec::new();
    for (name, &diff_id) in image.layers.iter().zip(&configuration.diff_ids) {
        let (size, reader) = archive.layer(name)?;
        let expected = Expected {
            size,
            blob: None,
            diff_id,
        };
        layers.push((expected, reader));
    }
    let config = Digest::of(&config_bytes);
    // A configuration names itself, in one of two ways.
    let stated = image
        .config
        .trim_end_matches(".json")
        .rsplit('/')
        .next()
        .unwrap_or("");
    if stated.len() == 64 && stated.bytes().all(|b| b.is_ascii_hexdigit()) && stated != config.hex()
    {
        let member = shown(image.config.as_bytes());
        return Err(ArchiveError::Digest {
            member,
            found: config,
        });
    }
    Ok(Found {
        digest: name_of(config, config_bytes.len(), &configuration.diff_ids),
        configuration,
        layers,
    })
}

fn pick(images: Vec<Image>, name: Option<&str>) -> Result<Image, ArchiveError> {
    let tags = |image: &Image| image.repo_tags.clone().unwrap_or_default();
    let names: Vec<String> = images
        .iter()
        .flat_map(tags)
        .map(|tag| shown(tag.as_bytes()))
        .collect();
    let mut wanted: Vec<Image> = match name {
        None => images,
        Some(name) => images
            .into_iter()
            .filter(|image| tags(image).iter().any(|tag| tag == name))
            .collect(),
    };
    let count = wanted.len();
    match (wanted.pop(), count) {
        (Some(image), 1) => Ok(image),
        _ => Err(ArchiveError::Choice { count, names }),
    }
}

fn name_of(config: Digest, config_bytes: usize, diff_ids: &[Digest]) -> Digest {
    let layers: Vec<_> = diff_ids
        .iter()
        .map(|id| serde_json::json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": id}))
        .collect();
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_bytes},
        "layers": layers,
    });
    Digest::of(manifest.to_string().as_bytes())
}
