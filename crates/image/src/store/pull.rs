//! Bringing an image: find out its digest, take it if it is there, else build it beside and put it to its place.

use std::collections::HashSet;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;

use super::record::{self, Record};
use super::stage::Stage;
use super::{Inner, Pulled, Store};
use crate::archive::{self, ArchiveError};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layer::{self, Applier, Expected};
use crate::manifest::{Configuration, Descriptor, Manifest, ManifestError};
use crate::registry::{Client, RegistryError};
use crate::source::Source;

/// Pieces of a layer that wait to be unpacked; one is what a connection gives at once, some tens of KiB.
const QUEUE: usize = 64;

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// It is known which image it is, and what it weighs as it is stored there.
    Found {
        /// The image.
        digest: Digest,
        /// How many layers there are.
        layers: usize,
        /// The bytes of all their blobs.
        bytes: u64,
    },
    /// Some of it was unpacked.
    Unpacked {
        /// Bytes of blobs that are done, of [`Progress::Found`]'s.
        bytes: u64,
    },
    /// All is unpacked and is being made to last.
    Syncing,
}

type Tell = Arc<dyn Fn(Progress) + Send + Sync>;
/// A layer as it must be, and where its bytes come from.
type Layers = Vec<(Expected, Box<dyn Read + Send>)>;

impl Store {
    /// Brings an image here, unless it is here already, and notes that this source leads to it.
    ///
    /// A tag is always asked for anew; [`Store::find`] asks nobody. Two pulls of the same image share one result. Dropping
    /// the future stops the work, and nothing is left of it.
    pub async fn pull(
        &self,
        source: &Source,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Pulled> {
        let tell: Tell = Arc::new(progress);
        let inner = Arc::clone(&self.inner);
        let name = source.to_string();
        let pulled = match source {
            Source::Registry(reference) => {
                let (config, limits) = (inner.options.docker_config.clone(), inner.options.limits);
                let client = Client::new(reference.clone(), config, limits);
                Box::pin(inner.from_registry(&client, &name, tell)).await?
            }
            Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => {
                let found = {
                    let (source, limits) = (source.clone(), inner.options.limits);
                    blocking(move || match &source {
                        Source::DockerArchive { file, name } => {
                            archive::open_docker(file, name.as_deref(), limits)
                        }
                        Source::OciArchive { file, name } => {
                            archive::open_oci(file, name.as_deref(), limits)
                        }
                        Source::Registry(_) => {
                            Err(ArchiveError::Io(io::ErrorKind::Unsupported.into()))
                        }
                    })
                    .await
                };
                let found = found.map_err(|source| Error::Archive {
                    file: file.clone(),
                    source,
                })?;
                Box::pin(inner.from_archive(found, &name, tell)).await?
            }
        };
        let (path, digest) = (self.inner.reference_path(source), pulled.digest);
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            inner.refer(
                &path,
                record::Reference {
                    source: name,
                    digest,
                },
            )
        })
        .await?;
        Ok(pulled)
    }
}

impl Inner {
    async fn from_registry(
        self: Arc<Self>,
        client: &Client,
        name: &str,
        tell: Tell,
    ) -> Result<Pulled> {
        let failed = |source: RegistryError| match source {
            RegistryError::Manifest(source) => Error::Manifest {
                source_name: name.to_owned(),
                source,
            },
            source => Error::Registry {
                source_name: name.to_owned(),
                source,
            },
        };
        let (digest, manifest) = client.manifest().await.map_err(failed)?;
        let held = self.locks.hold(&self.dir, &digest).await?;
        if let Some(there) = self.there(digest)? {
            return Ok(there);
        }
        let unusable = |source: ManifestError| Error::Manifest {
            source_name: name.to_owned(),
            source,
        };
        self.check(&manifest).map_err(unusable)?;
        let configuration = client.config(&manifest.config).await.map_err(failed)?;
        let configuration = Configuration::parse(&configuration).map_err(unusable)?;
        configuration
            .check_count(manifest.layers.len())
            .map_err(unusable)?;
        let (mut layers, mut feeds) = (Layers::new(), Vec::new());
        for (layer, &diff_id) in manifest.layers.iter().zip(&configuration.diff_ids) {
            let (to, from) = mpsc::channel(QUEUE);
            let expected = Expected {
                size: layer.size,
                blob: Some(layer.digest),
                diff_id,
            };
            let from = Queue {
                from,
                bytes: Bytes::new(),
            };
            layers.push((expected, Box::new(from)));
            feeds.push((layer, to));
        }
        let (this, source_name) = (Arc::clone(&self), name.to_owned());
        let built =
            blocking(move || this.build(digest, configuration, layers, &source_name, &tell));
        let (fed, built) = tokio::join!(feed(client, feeds), built);
        // What broke the stream explains what was found at its end.
        fed.map_err(failed)?;
        drop(held);
        built
    }

    async fn from_archive(
        self: Arc<Self>,
        found: archive::Found,
        name: &str,
        tell: Tell,
    ) -> Result<Pulled> {
        let held = self.locks.hold(&self.dir, &found.digest).await?;
        if let Some(there) = self.there(found.digest)? {
            return Ok(there);
        }
        let (this, source_name) = (Arc::clone(&self), name.to_owned());
        let archive::Found {
            digest,
            configuration,
            layers,
        } = found;
        let built =
            blocking(move || this.build(digest, configuration, layers, &source_name, &tell)).await;
        drop(held);
        built
    }

    fn there(&self, digest: Digest) -> Result<Option<Pulled>> {
        let record = self.record(&digest)?;
        if record.is_some() {
            record::touch(&self.record_path(&digest))?;
        }
        Ok(record.map(|record| self.pulled(record, false)))
    }

    fn check(&self, manifest: &Manifest) -> std::result::Result<(), ManifestError> {
        manifest.check_layers()?;
        let (count, allowed) = (manifest.layers.len(), self.options.limits.max_layers);
        if count > allowed {
            let why = format!("it has {count} layers, and max_layers is {allowed}");
            return Err(ManifestError::Malformed {
                what: "manifest",
                why,
            });
        }
        Ok(())
    }

    /// Unpacks the layers beside, syncs, and puts the whole to its place.
    fn build(
        &self,
        digest: Digest,
        configuration: Configuration,
        layers: Layers,
        source_name: &str,
        tell: &Tell,
    ) -> Result<Pulled> {
        let stage = Stage::new(&self.dir)?;
        let built = stage.path().join("image");
        let root = built.join("rootfs");
        let made = DirBuilder::new().mode(0o700).create(&built);
        made.and_then(|()| DirBuilder::new().mode(0o755).create(&root))
            .map_err(Error::io("make the directory", &root))?;
        let open = |path: &Path| layer::tree::open_dir(path).map_err(Error::errno("open", path));
        let bytes = layers.iter().map(|(expected, _)| expected.size).sum();
        tell(Progress::Found {
            digest,
            layers: layers.len(),
            bytes,
        });
        let mut applier = Applier::new(open(&root)?, self.options.limits);
        let mut done = 0;
        let mut last = digest;
        let count = layers.len();
        for (number, (expected, reader)) in layers.into_iter().enumerate() {
            last = expected.blob.unwrap_or(expected.diff_id);
            let reader = Told {
                inner: reader,
                done: &mut done,
                tell,
            };
            layer::apply(&mut applier, reader, expected).map_err(|source| Error::Layer {
                source_name: source_name.to_owned(),
                number: number + 1,
                digest: last,
                source,
            })?;
        }
        // While all of it can still be read, whatever the modes of the image's directories.
        let size_bytes = size_of(&root).map_err(Error::io("measure", &root))?;
        let notes = applier.finish().map_err(|source| Error::Layer {
            source_name: source_name.to_owned(),
            number: count,
            digest: last,
            source,
        })?;
        tell(Progress::Syncing);
        let record = Record {
            digest,
            config: configuration.config,
            size_bytes,
            created: configuration.created,
            pulled_at: SystemTime::now(),
            notes,
        };
        record::write(&built.join("image.json"), &record)?;
        rustix::fs::syncfs(open(&built)?).map_err(Error::errno("sync", &built))?;
        let needed = stage.put(&built, &self.image_path(&digest))?;
        Ok(self.pulled(record, needed))
    }

    fn refer(&self, path: &Path, reference: record::Reference) -> Result<()> {
        let known = record::read_reference(path);
        if matches!(&known, Ok(Some(known)) if known.digest == reference.digest) {
            return Ok(());
        }
        let stage = Stage::new(&self.dir)?;
        let written = stage.path().join("reference");
        record::write(&written, &reference)?;
        stage.put(&written, path).map(drop)
    }
}

/// Sends the layers one after the other.
async fn feed(
    client: &Client,
    feeds: Vec<(&Descriptor, mpsc::Sender<Bytes>)>,
) -> std::result::Result<(), RegistryError> {
    for (layer, to) in feeds {
        // Nobody takes any more: unpacking has failed, and says why.
        if to.is_closed() {
            break;
        }
        client.blob(layer, &to).await?;
    }
    Ok(())
}

/// The bytes of a layer as they come from the network.
struct Queue {
    from: mpsc::Receiver<Bytes>,
    bytes: Bytes,
}

impl Read for Queue {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.bytes.is_empty() {
            match self.from.blocking_recv() {
                Some(bytes) => self.bytes = bytes,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.bytes.len());
        self.bytes.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// Tells how much was read.
struct Told<'t, R> {
    inner: R,
    done: &'t mut u64,
    tell: &'t Tell,
}

impl<R: Read> Read for Told<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        *self.done += count as u64;
        (self.tell)(Progress::Unpacked { bytes: *self.done });
        Ok(count)
    }
}

/// Returns what a tree takes of the disk; a file with several names once.
fn size_of(root: &Path) -> io::Result<u64> {
    let mut size = 0;
    let mut shared = HashSet::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                todo.push(entry.path());
            } else if meta.nlink() > 1 && !shared.insert(meta.ino()) {
                continue;
            }
            size += meta.blocks() * 512;
        }
    }
    Ok(size)
}

/// Does something that blocks, where that harms nobody. Only a panic in it can fail here, and goes on from here.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
