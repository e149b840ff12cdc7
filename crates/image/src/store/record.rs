//! What is written down of an image and of a name, and how: whole, or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::ImageConfig;

/// An image as it is written down beside its root directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) digest: Digest,
    pub(super) config: ImageConfig,
    pub(super) size_bytes: u64,
    pub(super) created: Option<String>,
    pub(super) pulled_at: SystemTime,
    pub(super) notes: Vec<String>,
}

/// A name, and what it led to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Reference {
    pub(super) source: String,
    pub(super) digest: Digest,
}

/// Reads a document; nothing where there is none.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Error::Damaged {
            path: path.to_path_buf(),
            why: error.to_string(),
        })
}

pub(super) fn read_reference(path: &Path) -> Result<Option<Reference>> {
    read(path)
}

/// Writes a document and syncs it.
pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes =
        serde_json::to_vec_pretty(value).map_err(|error| Error::io("write", path)(error.into()))?;
    let mut file = File::create(path).map_err(Error::io("make", path))?;
    file.write_all(&bytes).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("sync", path))
}

/// Makes what was renamed in a directory last.
pub(super) fn sync_dir(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|dir| dir.sync_all());
    synced.map_err(Error::io("sync", path))
}

/// Marks a document as used now.
pub(super) fn touch(path: &Path) -> Result<()> {
    let touched = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    touched.map_err(Error::io("set the time of", path))
}

/// Lists the names in a directory of ours.
pub(super) fn names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}
