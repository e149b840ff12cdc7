//! The store: what there is, and getting more of it.

mod locks;
mod pull;
mod record;
mod stage;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use self::pull::Progress;

use self::locks::Locks;
use self::record::Record;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::manifest::ImageConfig;
use crate::source::Source;

/// How a store is opened.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What images may cost.
    pub limits: Limits,
    /// Where docker's `config.json` is; otherwise `$DOCKER_CONFIG`, or `~/.docker`.
    pub docker_config: Option<PathBuf>,
}

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Its name: the digest of its manifest.
    pub digest: Digest,
    /// Its root directory. Read-only to everybody.
    pub root: PathBuf,
    /// How its program is meant to be started.
    pub config: ImageConfig,
    /// What it takes of the disk.
    pub size_bytes: u64,
    /// Whether this very call brought it.
    pub pulled: bool,
    /// What was left out of it: device nodes, and attributes that an image may not set.
    pub notes: Vec<String>,
}

/// A line of the list of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The image.
    pub digest: Digest,
    /// The sources that led to it when they were last pulled.
    pub references: Vec<String>,
    /// What it takes of the disk.
    pub size_bytes: u64,
    /// When it was made, as its maker says (RFC 3339).
    pub created: Option<String>,
    /// When it was unpacked here.
    pub pulled_at: SystemTime,
    /// When it was last got or pulled.
    pub last_used: SystemTime,
}

/// The images of one data directory. Cheap to clone; several processes may have the same one open.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    options: Options,
    locks: Locks,
}

impl Store {
    /// Opens a store, makes it if there is none, and sweeps what a killed process left, unless another is building there.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::open_with(dir, Options::default())
    }

    /// The same with other options.
    pub fn open_with(dir: &Path, options: Options) -> Result<Self> {
        for dir in [
            dir.to_path_buf(),
            dir.join("images"),
            dir.join("locks"),
            dir.join("refs"),
            dir.join("tmp"),
        ] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(Error::io("make the directory", dir))?;
        }
        let dir = fs::canonicalize(dir).map_err(Error::io("find the directory", dir))?;
        stage::sweep(&dir)?;
        let locks = Locks::default();
        let inner = Arc::new(Inner {
            dir,
            options,
            locks,
        });
        Ok(Self { inner })
    }

    /// Returns an image by its digest, and marks it as used.
    pub fn get(&self, digest: &Digest) -> Result<Option<Pulled>> {
        let record = self.inner.record(digest)?;
        if record.is_some() {
            record::touch(&self.inner.record_path(digest))?;
        }
        Ok(record.map(|record| self.inner.pulled(record, false)))
    }

    /// Returns the image that a source led to when it was last pulled here. Asks nobody.
    pub fn find(&self, source: &Source) -> Result<Option<Pulled>> {
        match record::read_reference(&self.inner.reference_path(source))? {
            Some(reference) => self.get(&reference.digest),
            None => Ok(None),
        }
    }

    /// Lists the images, those used last first.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let references = self.inner.references()?;
        let mut listed = Vec::new();
        for digest in self.inner.digests()? {
            // One that was removed since is none.
            let Some(record) = self.inner.record(&digest)? else {
                continue;
            };
            let mut names: Vec<String> = references
                .iter()
                .filter(|r| r.digest == digest)
                .map(|r| r.source.clone())
                .collect();
            names.sort();
            let path = self.inner.record_path(&digest);
            let last_used = fs::metadata(&path)
                .and_then(|m| m.modified())
                .map_err(Error::io("look at", path))?;
            listed.push(Listed {
                digest,
                references: names,
                size_bytes: record.size_bytes,
                created: record.created,
                pulled_at: record.pulled_at,
                last_used,
            });
        }
        listed.sort_by_key(|image| (std::cmp::Reverse(image.last_used), image.digest));
        Ok(listed)
    }

    /// Removes an image and the names that led to it. `users` tells who uses it; if anybody does, it stays.
    ///
    /// The caller keeps others from beginning to use it meanwhile. A kill in the middle leaves a whole image or none.
    pub fn remove(
        &self,
        digest: &Digest,
        users: impl FnOnce(&Digest) -> Vec<String>,
    ) -> Result<()> {
        let place = self.inner.image_path(digest);
        if !place.try_exists().map_err(Error::io("look at", &place))? {
            return Err(Error::NoImage { digest: *digest });
        }
        let users = users(digest);
        if !users.is_empty() {
            return Err(Error::InUse {
                digest: *digest,
                users,
            });
        }
        let stage = stage::Stage::new(&self.inner.dir)?;
        match stage.take(&place) {
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoImage { digest: *digest });
            }
            taken => taken?,
        }
        for reference in self.inner.references()? {
            if reference.digest == *digest {
                let path = self.inner.reference_path_of(&reference.source);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::io("remove", path)(error));
                    }
                    _ => {}
                }
            }
        }
        stage.discard()
    }
}

impl Inner {
    fn image_path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("images").join(digest.hex())
    }

    fn record_path(&self, digest: &Digest) -> PathBuf {
        self.image_path(digest).join("image.json")
    }

    fn reference_path(&self, source: &Source) -> PathBuf {
        self.reference_path_of(&source.to_string())
    }

    fn reference_path_of(&self, source: &str) -> PathBuf {
        self.dir
            .join("refs")
            .join(Digest::of(source.as_bytes()).hex())
    }

    fn record(&self, digest: &Digest) -> Result<Option<Record>> {
        let path = self.record_path(digest);
        let record: Option<Record> = record::read(&path)?;
        match record {
            Some(record) if record.digest != *digest => Err(Error::Damaged {
                path: self.image_path(digest),
                why: format!("it says that it is {}", record.digest),
            }),
            record => Ok(record),
        }
    }

    fn pulled(&self, record: Record, pulled: bool) -> Pulled {
        Pulled {
            root: self.image_path(&record.digest).join("rootfs"),
            digest: record.digest,
            config: record.config,
            size_bytes: record.size_bytes,
            pulled,
            notes: record.notes,
        }
    }

    fn digests(&self) -> Result<Vec<Digest>> {
        let names = record::names(&self.dir.join("images"))?;
        Ok(names
            .iter()
            .filter_map(|name| format!("sha256:{name}").parse().ok())
            .collect())
    }

    fn references(&self) -> Result<Vec<record::Reference>> {
        let dir = self.dir.join("refs");
        let mut references = Vec::new();
        for name in record::names(&dir)? {
            references.extend(record::read_reference(&dir.join(name))?);
        }
        Ok(references)
    }
}
